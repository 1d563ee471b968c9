"""
What a worker may do next: claim, cross the dispatch boundary and come back, publish, end its attempt, or die.

A worker that is paused is a worker that takes no step while the clock goes on. So every step here is also the step of a
worker that wakes up late, with a lease that is long gone, between its intent and its request, or after the answer.
"""

from __future__ import annotations

from typing import Any

from tenure.lab import invariants
from tenure.lab.counters import BIT
from tenure.lab.machine import NOTHING, Decision, Edge, Machine, Ripple, renamed
from tenure.lab.record import CURRENT, NEW
from tenure.lab.world import (
    BEGUN,
    DOUBTING,
    FAILED,
    HEARD,
    HELD,
    IDLE,
    KNOWN,
    LATE,
    LOST,
    MAY_END,
    OPENED,
    PUBLISHED,
    PUBLISHING,
    REFUSED,
    SENT,
    TOLD,
    UNSURE,
    WAITING,
    WROTE,
    Note,
    Worker,
    World,
    accepted,
    add_flight,
    idle,
    looked_up,
)
from tenure.rules.effect import EffectState
from tenure.rules.status import Status

_AFTER_FINISH = {"ok": KNOWN, "before": FAILED, "rejected": REFUSED, "unknown": UNSURE}
_AFTER_ANSWER = {
    EffectState.SUCCEEDED: KNOWN,
    EffectState.REJECTED: REFUSED,
    EffectState.FAILED_BEFORE_DISPATCH: HELD,
    EffectState.UNKNOWN: UNSURE,
}
_FOUND = {
    EffectState.SUCCEEDED: BIT["lost effect found"],
    EffectState.FAILED_BEFORE_DISPATCH: BIT["never sent, and sent once"],
}
_PROVES = {"ok": "accepted", "before": "not_sent", "rejected": "declined"}
_ENDINGS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "complete": ("complete", ()),
    "retry": ("fail", (True,)),
    "fail": ("fail", (False,)),
    "release": ("release", ()),
    "halt": ("end", ("halt",)),
    "time_out": ("end", ("time_out",)),
    "mark": ("end", ("mark",)),
}
_BEGIN = ("begin", False)
_FAIL = ("fail", True)
_SAYS = {
    "complete": "completes the job",
    "retry": "reports a failure that may be retried",
    "fail": "reports a failure for good",
    "release": "gives the job back",
    "halt": "halts the job as unsafe",
    "time_out": "runs out of time",
    "mark": "says that the outcome is not known",
}


class Turn:
    """Collects the steps of one worker that ask the database: they depend on the book and on the worker."""

    def __init__(self, machine: Machine, book: int, worker: int, slot: int) -> None:
        self.machine = machine
        self.configuration = machine.configuration
        self.book = book
        self.job = machine.jobs[book]
        self.worker: Worker = machine.workers.values[worker]
        self.slot = slot
        self.edges: list[Edge] = []
        self.mask = 0
        self._in_database()

    # --- one step -----------------------------------------------------------------------------------------------------

    def ask(
        self,
        action: str,
        name: str,
        *arguments: Any,
        done: Worker,
        unsure: Worker | None = None,
        cancelled: Worker | None = None,
        ripple: Ripple = NOTHING,
        lost: Ripple = NOTHING,
        tags: int = 0,
    ) -> None:
        """
        Ask the database for something.

        Args:
            done: The worker after a commit, under the names from before it.
            unsure: The worker after a refusal as uncertain, or because the provider had refused.
            cancelled: The worker after a refusal because of a cancellation.
            ripple: What the commit changes in the world.
            lost: What changes when the worker has learned that its lease is lost.
        """
        worker, machine = self.worker, self.machine
        claims = name == "claim"
        who = (self.slot, NEW, 0) if claims else (self.slot, worker.attempt, worker.behind)
        decision = machine.decide(self.book, name, who, arguments)
        own = None if claims else worker.own
        said = decision.refused or decision.late
        broken = machine.checked(self.book, name, who, arguments, own)
        self.mask |= tags | decision.tags | self._tags(name, said, own)
        after = done
        if said is not None and said.startswith(("LeaseLost", "EpochClosed")):
            after, ripple = idle(worker.own), lost
        elif said is not None and said.startswith(("Uncertain", "EffectRejected")):
            after = unsure or worker
        elif said is not None and said.startswith("CancelRequested"):
            after = cancelled or worker
        elif decision.refused is not None:
            after = worker
        if decision.refused is not None and ripple is not lost:
            ripple = NOTHING
        shift = machine.shifts.values[decision.shift]
        if claims and decision.refused is None:
            lease = machine.books.values[decision.book].lease
            after = done._replace(attempt=CURRENT, behind=lease.behind if lease else 0)
        elif after.at != IDLE:
            after = renamed(after, shift)
        unchanged = after == worker and ripple == NOTHING and decision.book == self.book
        if unchanged and not broken:
            return
        self.edges.append(
            Edge(
                action=action,
                op=(name, who, arguments),
                book=decision.book,
                worker=machine.workers(after),
                world=-1,
                ripple=machine.ripples(ripple),
                shift=decision.shift,
                swapped=decision.swapped,
                broken=broken,
                fault=False,
                pair="claim" if claims else "",
                note=f"refused: {said}" if said else "",
            )
        )

    def go(
        self,
        action: str,
        worker: Worker,
        ripple: Ripple = NOTHING,
        *,
        fault: bool = False,
        tags: int = 0,
        broken: tuple[tuple[str, str], ...] = (),
        note: str = "",
    ) -> None:
        """Do something that the database does not answer."""
        self.mask |= tags
        self.edges.append(outside(self.machine, action, worker, -1, ripple, fault, broken, note))

    def _tags(self, name: str, said: str | None, own: int | None) -> int:
        tags = 0
        if said is None:
            tags |= BIT["current write accepted"] if own else 0
            tags |= BIT["published"] if self.worker.at == WROTE else 0
            tags |= BIT["job reclaimed"] if name == "claim" and self._claimed_before() else 0
        elif said.startswith("EpochClosed"):
            tags |= BIT["held work refused"]
        elif said.startswith("LeaseLost"):
            tags |= BIT["stale publish refused" if name == "publish" else "stale write refused"]
        elif said.startswith("CancelRequested"):
            tags |= BIT["cancellation refused work"]
        elif said.startswith("Uncertain") and name in {"begin", "mark"}:
            tags |= BIT["second begin refused"]
        return tags

    # --- what asks the database ---------------------------------------------------------------------------------------

    def _in_database(self) -> None:  # noqa: C901, PLR0912 - one question after the other, in the order of a handler's life
        worker, configuration = self.worker, self.configuration
        own = configuration.lease
        if worker.at == IDLE:
            # The claim's own rule says who may be claimed; a live lease is not worth asking about.
            lease = self.machine.books.values[self.book].lease
            if self.job.status is Status.QUEUED or (lease is not None and lease.left <= 0):
                start = " and starts it" if configuration.start else ""
                self.ask(f"claims the job{start}", "claim", done=Worker(HELD, NEW, 0, own))
            return
        if worker.at in PUBLISHING:
            self._publish()
            return
        if configuration.renews:
            self.ask("renews its lease", "renew", done=worker._replace(own=own))
        if worker.at == LOST:
            self._try_everything()
        if worker.at in MAY_END:
            self._end()
        if worker.at in {HELD, FAILED}:
            if self.machine.order.intent_first:
                self._begin(resend=False)
            else:
                self._send_first()
        if worker.at == UNSURE and configuration.resends:
            self._begin(resend=True)
        if worker.at == TOLD:
            self._finish()
        if worker.at == HEARD:
            self._hear()
        if worker.at == KNOWN and configuration.publishes:
            self.ask("opens a publish and passes the fence", "publish", done=worker._replace(at=OPENED))

    def _try_everything(self) -> None:
        """A worker that wakes up after its lease was lost asks for whatever its handler happened to ask for."""
        worker, gone = self.worker, idle()
        self.ask("wakes up and completes the job", "complete", done=gone)
        self.ask("wakes up and reports a failure", *_FAIL, done=gone)
        self.ask("wakes up and gives the job back", "release", done=gone)
        if self.configuration.bare:
            self.ask("wakes up and sets the dispatch mark", "mark", done=worker._replace(at=BEGUN, left=0))
        else:
            self.ask("wakes up and begins the effect", *_BEGIN, done=worker._replace(at=BEGUN, left=0))
        if self.configuration.publishes:
            self.ask("wakes up and opens a publish", "publish", done=worker._replace(at=OPENED))
        if self.job.cancel_requested_at is not None:
            self.ask("wakes up and acknowledges the cancellation", "acknowledge", done=gone)

    def _begin(self, *, resend: bool) -> None:
        worker = self.worker
        if self.configuration.bare:
            if worker.at == HELD:
                left = self.configuration.timeout
                done = worker._replace(at=BEGUN, key=0, left=min(left, worker.own) if worker.own else left)
                self.ask("sets the dispatch mark", "mark", done=done, unsure=settled(worker, UNSURE))
            return
        name = "begins the effect again in the same attempt" if resend else "begins the effect"
        refused = settled(worker, REFUSED if self._state() is EffectState.REJECTED else UNSURE)
        decision = self._peek("begin", resend)
        if decision.refused is None and self._lost(decision):
            done = worker._replace(at=DOUBTING, key=self.machine.books.values[decision.book].effects[0].key, left=0)
            self.ask("writes the intent that may be lost", "begin", resend, done=done, tags=BIT["asked before sending"])
            return
        if decision.refused is None and not decision.send:
            tags = BIT["receipt read instead of sending"]
            self.ask(name, "begin", resend, done=settled(worker, KNOWN), tags=tags)
            return
        form = self.machine.books.values[decision.book].effects
        begun = worker._replace(at=BEGUN, outcome="", receipt=None)
        if decision.refused is None:
            left = min(self.configuration.timeout, max(worker.own, 1)) if resend else max(form[0].deadline, 0)
            begun = begun._replace(key=form[0].key, left=left)
        tags = BIT["sent again in the attempt"] if resend and decision.refused is None else 0
        self.ask(name, "begin", resend, done=begun, unsure=refused, tags=tags)

    def _lost(self, decision: Decision) -> bool:
        return self.machine.jobs[decision.book].effects[0].is_lost

    def _hear(self) -> None:
        """Record what the provider said, and go on by how the effect stands then."""
        worker = self.worker
        told = (worker.outcome, worker.receipt, worker.left)
        decision = self._peek("hear", *told)
        done, tags = worker, 0
        if decision.refused is None:
            state = self.machine.jobs[decision.book].effects[0].state
            done = settled(worker, _AFTER_ANSWER[state])
            tags = _FOUND.get(state, 0)
        self.ask(f"records what the provider said: {worker.outcome}", "hear", *told, done=done, tags=tags)

    def _claimed_before(self) -> bool:
        return self.job.max_attempts - self.job.attempt_count < self.configuration.attempts

    def _peek(self, name: str, *arguments: Any) -> Decision:
        who = (self.slot, self.worker.attempt, self.worker.behind)
        return self.machine.decide(self.book, name, who, arguments)

    def _state(self) -> EffectState | None:
        return self.job.effects[0].state if self.job.effects else None

    def _finish(self) -> None:
        worker = self.worker
        if not self.machine.order.intent_first and self._state() not in {EffectState.PENDING, EffectState.UNKNOWN}:
            self.ask("records the intent after the call", *_BEGIN, done=worker, unsure=worker)
            return
        done = settled(worker, _AFTER_FINISH[worker.outcome])
        self.ask(
            f"records the outcome: {worker.outcome}",
            "finish",
            worker.key,
            worker.outcome,
            worker.receipt,
            done=done,
            unsure=settled(worker, UNSURE),
        )
        if self.configuration.outages:
            kept = self._journal()
            self.go(
                "cannot reach the database to record the outcome",
                idle(worker.own),
                Ripple(kept, outage=True),
                fault=True,
                tags=BIT["receipt kept in the journal"] if kept else 0,
                note="the receipt goes to its journal" if kept else "there is nothing to keep",
            )

    def _journal(self) -> Note | None:
        worker = self.worker
        proves = _PROVES.get(worker.outcome)
        if proves is None:
            return None
        return Note(worker.key, worker.attempt, proves, worker.receipt if proves == "accepted" else None)

    def _publish(self) -> None:
        worker, order = self.worker, self.machine.order
        if worker.at == OPENED:
            self.go("writes rows in the open transaction", worker._replace(at=WROTE))
            return
        check = "publish" if order.fence_at_end and order.fence_inside else "write"
        self.ask(
            "passes the fence again and commits" if check == "publish" else "commits without a second check",
            check,
            done=settled(worker, PUBLISHED),
            cancelled=settled(worker, KNOWN),
            ripple=Ripple(published=True),
        )
        self.go("rolls its publish back", settled(worker, KNOWN), fault=True)

    def _end(self) -> None:
        worker, configuration = self.worker, self.configuration
        gone = idle()
        if self.job.cancel_requested_at is not None:
            self.ask("acknowledges the cancellation", "acknowledge", done=gone)
        kept = NOTHING
        if configuration.bare and worker.at == KNOWN:
            kept = Ripple(Note(worker.key, worker.attempt, "accepted", worker.receipt))
        finished = worker.at == (PUBLISHED if configuration.publishes else KNOWN)
        if finished or (worker.at == UNSURE and not configuration.bare):
            swallowed = "" if finished else " although its effect is open"
            self.ask(f"completes the job{swallowed}", "complete", done=gone, unsure=gone, lost=kept)
        ways = set(configuration.endings)
        if worker.at == REFUSED:
            ways.add("fail")
        if worker.at in {UNSURE, FAILED}:
            ways.add("retry")
        for way in sorted(ways):
            name, arguments = _ENDINGS[way]
            if way != "complete" or worker.at == HELD:
                self.ask(_SAYS[way], name, *arguments, done=gone)

    def _send_first(self) -> None:
        """The order of a broken variant: the request leaves, and the intent is written when its answer is there."""
        worker = self.worker
        if self._state() is EffectState.SUCCEEDED:
            self.go("reads the receipt of an earlier attempt", settled(worker, KNOWN))
            return
        self.go(
            "sends the request without an intent",
            worker._replace(at=SENT, left=self.configuration.timeout + self.configuration.settles),
            broken=invariants.broken(invariants.Step("send", self.job, intended=False)),
        )


class Away:
    """Collects the steps of one worker that no database hears of: they depend on the worker and on the world."""

    def __init__(self, machine: Machine, worker: int, world: int) -> None:
        self.machine = machine
        self.configuration = machine.configuration
        self.worker: Worker = machine.workers.values[worker]
        self.world: World = machine.worlds.values[world]
        self.edges: list[Edge] = []
        self.mask = 0
        self._outside()

    def go(
        self,
        action: str,
        worker: Worker,
        world: World | None = None,
        *,
        fault: bool = False,
        tags: int = 0,
        note: str = "",
    ) -> None:
        """Let something happen."""
        self.mask |= tags
        after = self.machine.world(world or self.world)
        self.edges.append(outside(self.machine, action, worker, after, NOTHING, fault, (), note))

    def _outside(self) -> None:
        worker, world = self.worker, self.world
        if worker.at == IDLE:
            return
        if world.crashes and (worker.at != SENT or len(world.flights) < self.configuration.flights):
            after = world._replace(crashes=world.crashes - 1)
            if worker.at == SENT:
                after = add_flight(after, worker.key, worker.left)
            self.go("crashes", idle(worker.own), after, fault=True)
        if worker.at == BEGUN:
            self._send()
            if not self.configuration.bare:
                self.go("gives up before sending", worker._replace(at=TOLD, left=0, outcome="before"))
        elif worker.at == SENT:
            self._underway()
        elif worker.at == DOUBTING:
            for kind, receipt, fault in looked_up(world, self.configuration, worker.key):
                heard = worker._replace(at=HEARD, outcome=kind, receipt=receipt)
                self.go(f"asks the provider and hears: {kind}", heard, fault=fault)
        elif worker.at == WAITING:
            self._told("hears nothing until its deadline", "unknown", None, world)

    def _send(self) -> None:
        worker = self.worker
        left = worker.left + self.configuration.settles if worker.left else LATE
        self.go(
            "sends the request" if left != LATE else "wakes up and sends the request after its deadline",
            worker._replace(at=SENT, left=left),
            tags=BIT["request sent too late"] if left == LATE else 0,
        )

    def _underway(self) -> None:
        worker, configuration = self.worker, self.configuration
        lost = worker._replace(at=WAITING, left=0)
        self.go("loses the request in the network", lost, fault=True)
        if len(self.world.flights) < configuration.flights:
            flown = add_flight(self.world, worker.key, worker.left)
            self._told("stops waiting while the request is under way", "unknown", None, flown, fault=True)
        if worker.key in self.world.refused:
            self._told("hears the same refusal again", "rejected", None, self.world)
            return
        world, receipt, known = accepted(self.world, configuration, worker.key, worker.left)
        tags = BIT["duplicate prevented by key"] if known else 0
        said = "the provider knows the key and does not act again" if known else f"the provider acts: {receipt}"
        self._told("hears that it was accepted", "ok", receipt, world, tags=tags, note=said)
        self.go("does not hear that it was accepted", lost, world, fault=True, tags=tags, note=said)
        if not known:
            if "before" in configuration.answers:
                self._told("hears: not now", "before", None, self.world)
            if "rejected" in configuration.answers:
                refused = self.world._replace(refused=tuple(sorted({*self.world.refused, worker.key})))
                self._told("hears a definite refusal", "rejected", None, refused)
                self.go("does not hear a definite refusal", lost, refused, fault=True)
            if "denied" in configuration.answers:
                self._told("hears that its credentials are not good", "rejected", None, self.world)

    def _told(
        self,
        action: str,
        kind: str,
        receipt: int | None,
        world: World,
        *,
        fault: bool = False,
        tags: int = 0,
        note: str = "",
    ) -> None:
        worker = self.worker._replace(at=TOLD, left=0, outcome=kind, receipt=receipt)
        if self.configuration.bare:
            at = {"ok": KNOWN, "unknown": UNSURE}.get(kind, REFUSED)
            worker = worker._replace(outcome="", at=at) if at == KNOWN else settled(worker, at)
        self.go(action, worker, world, fault=fault, tags=tags, note=note)


def settled(worker: Worker, at: str) -> Worker:
    """A worker that has no call in hand: what it knew about one is nothing to it any more."""
    return worker._replace(at=at, key=0, left=0, outcome="", receipt=None)


def outside(
    machine: Machine,
    action: str,
    worker: Worker,
    world: int,
    ripple: Ripple,
    fault: bool,  # noqa: FBT001 - all of them are the edge's own
    broken: tuple[tuple[str, str], ...],
    note: str,
) -> Edge:
    """A worker's step that no database answers."""
    return Edge(
        action=action,
        op=None,
        book=-1,
        worker=machine.workers(worker),
        world=world,
        ripple=machine.ripples(ripple),
        shift=0,
        swapped=False,
        broken=broken,
        fault=fault,
        pair="",
        note=note,
    )
