"""
The stateful test itself: any verb at any time, by anybody, and after each step the database against the oracle.

Two connections of other programs may stand between the end of their verb and their COMMIT while others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID
from zlib import crc32

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tenure import verbs
from tenure.connectors.provider import terms
from tenure.errors import Invalid, TenureError, Unavailable
from tenure.procedures.claim import Claim
from tenure.procedures.enqueue import Created
from tenure.rules import moves, reconcile
from tenure.rules.effect import StoredEvidence
from tenure.rules.envelope import ExecutionInput
from tenure.rules.job import Change, Job
from tenure.rules.lease import Lease, live
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.rules.status import LIVE, TERMINAL, Status
from tenure.service import DurableJobService
from tenure.testing.provider import FakeProvider
from tenure.verbs.scope import Scope
from tenure.yields import AfterCommit, new_id
from tests.simulation.stateful_invariants import broken
from tests.simulation.stateful_oracle import Decision, Oracle, Target, guess, instants, ordered
from tests.simulation.stateful_stage import Connection, Stage, impatient, survey

TENANTS = ("acme", "zeta")
OPERATOR = "user:7"
PROVIDERS = (
    FakeProvider("mailer", settles_within=timedelta(seconds=20)),
    # Neither keys nor a look-up.
    FakeProvider("pigeon", idempotency=None, lookup=False),
)
RECEIPTS = ({"id": "r-1"}, {"id": "r-2"})
OUTCOMES = (
    Succeeded(RECEIPTS[0]),
    FailedBeforeDispatch("no connection", retry_after=timedelta(seconds=5)),
    Rejected("no such address"),
    Unknown("no reply"),
)
EVIDENCE = (Accepted(RECEIPTS[0]), Declined("no credit"), Absent(), Accepted(RECEIPTS[1]), NoAnswer("busy"))
LATE = (*EVIDENCE, FailedBeforeDispatch("never left"))
LOOKUPS = (*EVIDENCE, ConnectionError("down"))
JOBS_MAX = 6
SEEDS = st.integers(0, 2**32 - 1)

# The verbs a step may ask for; some more often, so that runs get anywhere.
WEIGHTS = {
    "create_job": 5,
    "claim_job": 5,
    "heartbeat": 2,
    "begin_effect": 5,
    "finish_effect": 4,
    "mark_provider_dispatched": 2,
    "complete_job": 2,
    "fail_job": 3,
    "mark_indeterminate": 3,
    "mark_halt_unsafe": 2,
    "mark_timed_out": 1,
    "release_job": 1,
    "acknowledge_cancellation": 2,
    "cancel_job": 3,
    "revoke_job": 2,
    "retry_job": 2,
    "submit_evidence": 2,
    "reconcile_dispatched": 3,
    "resume_sweep": 3,
    "append_job_event": 1,
}
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
EVERY_VERB = {*WEIGHTS, "sweep_reconciliation_candidates"}
INTERLEAVED = {"held", "committed", "rolled back"}
WAITED = {"waited, then committed truth", "waited, then rollback"}


@dataclass(frozen=True)
class Ask:
    """
    One call of a verb, and the oracle's way to decide it.

    Attributes:
        target: What it has to lock first; None where it waits for nothing.
        decide: Given what others keep locked.
    """

    name: str
    tenant: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    decide: Callable[[frozenset[Target]], Decision]
    target: tuple[Target, ...] = ()

    def procedure(self) -> Any:
        """Give the verb as a procedure."""
        return getattr(verbs, self.name)(Scope(self.tenant, OPERATOR), *self.args, **self.kwargs)


@dataclass
class Seat:
    """
    One of the two connections.

    Attributes:
        ask: What it asked; None while it is idle.
        decision: Made when it had its answer; None while it waits for the other.
    """

    connection: Connection
    ask: Ask | None = None
    decision: Decision | None = None
    answer: Any = None


@dataclass
class Tally:
    """What happened over all runs of one test."""

    verbs: Counter[tuple[str, str]] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)

    def missing(self, *, waits: bool) -> set[Any]:
        """Give what should have happened at least once and did not."""
        wanted = {(name, how) for name in EVERY_VERB for how in ("succeeded", "refused")}
        turns = INTERLEAVED | (WAITED if waits else {"turned away"})
        return (wanted - set(+self.verbs)) | (turns - set(+self.turns))


class Machine(RuleBasedStateMachine):
    """
    One run.

    Args:
        stage: The database; begun anew.
        tally: Counts on over the runs.
    """

    def __init__(self, stage: Stage, tally: Tally) -> None:
        super().__init__()
        self.stage = stage
        self.tally = tally
        stage.reset()
        self.oracle = Oracle(stage.clock.now)
        self.leases: list[Lease] = []
        self.claim_ids: list[UUID] = []
        self.history = 0
        self.forging = False
        self.seen: dict[UUID, Job] = {}
        self.seats = [Seat(stage.connect()) for _ in range(2)]
        self.services = {
            tenant: DurableJobService(stage.store, tenant=tenant, actor=OPERATOR) for tenant in (None, *TENANTS)
        }
        # Both tenants are known before anybody stops in the middle of making one known.
        for tenant in TENANTS:
            self._perform(self._creation(tenant, key="k-0", payload={"n": 0}, max_attempts=3))
        self._compare()

    def teardown(self) -> None:
        try:
            while self._active():
                # Who waits for the other goes on when that one ends, and has an end of its own then.
                self._end(next(seat for seat in self._active() if seat.decision is not None), commit=False)
            self._compare_whole()
        finally:
            for seat in self.seats:
                seat.connection.close()

    # --- steps --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def verb(self, seed: int) -> None:
        """Somebody asks for something."""
        chance = self._chance(seed)
        self._perform(self._draw(chance.choice(NAMES), chance))
        self._compare()

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def verb_again(self, seed: int) -> None:
        """See `verb`: many steps are of this kind, or no run would get far."""
        self.verb(seed)

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def work(self, seed: int) -> None:
        """The one who holds a job goes on with it, or somebody takes one."""
        chance = self._chance(seed)
        held = [
            kept.job for kept in self.oracle.kept.values() if kept.job.lease and live(kept.job.lease, self.oracle.now())
        ]
        if not held:
            self._perform(self._draw("claim_job", chance))
        else:
            stopping = [job for job in held if job.cancel_requested_at is not None]
            job = chance.choice(stopping or held)
            name = chance.choice(_next(job))
            self._perform(self._draw(name, chance, about=frozenset({job.id})))
        self._compare()

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def work_on(self, seed: int) -> None:
        """See `work`, and `verb_again`."""
        self.work(seed)

    @precondition(lambda self: not self._active() and bool(self.leases))
    @rule(seed=SEEDS)
    def forge(self, seed: int) -> None:
        """Somebody asks with a lease that was never given: one after the other for every verb of a lease."""
        chance = self._chance(seed)
        self.forging = True
        for name in sorted(_OF_LEASES):
            self._perform(self._draw(name, chance))
        self.forging = False
        self._compare()

    @precondition(lambda self: not self._active() and bool(self._ended_jobs()))
    @rule(seed=SEEDS)
    def follow(self, seed: int) -> None:
        """Somebody deals with what has ended and is not done."""
        chance = self._chance(seed)
        job = chance.choice(self._ended_jobs())
        names = ["retry_job"] if job.status is Status.FAILED else ["reconcile_dispatched"]
        names += ["resume_sweep"] * 3 if job.escalated_at else ["submit_evidence"]
        self._perform(self._draw(chance.choice(names), chance, about=frozenset({job.id})))
        self._compare()

    @precondition(lambda self: not self._active() and self._has_candidates())
    @rule(seed=SEEDS)
    def sweep(self, seed: int) -> None:
        """A sweep asks a provider whose answers are scripted."""
        chance = self._chance(seed)
        tenant = chance.choice(TENANTS)
        answers = chance.choices(LOOKUPS, k=3)
        asked: list[str] = []
        expected_asked: list[str] = []

        def lookup(key: str, job: Job) -> Any:
            assert job.tenant == tenant, "no sweep asks about another tenant's job"
            asked.append(key)
            answer = answers[(len(asked) - 1) % len(answers)]
            if isinstance(answer, Exception):
                raise answer
            return answer

        def scripted(key: str) -> Any:
            expected_asked.append(key)
            return guess(answers[(len(expected_asked) - 1) % len(answers)])

        scope: dict[str, Any] = {"organization": tenant, "project": "p1"}
        candidates = [job.id for job in self.services[tenant].find_reconciliation_candidates(**scope)]
        verdicts = self.services[tenant].sweep_reconciliation_candidates(**scope, lookup=lookup)
        expected = self.oracle.sweep(tenant, tenant, "p1", scripted)
        assert [(verdict.action, verdict.job_id, verdict.status) for verdict in verdicts] == expected
        assert candidates == [job_id for _, job_id, _ in expected]
        assert asked == expected_asked
        acted = any(action != "leave" for action, _, _ in expected)
        self.tally.verbs["sweep_reconciliation_candidates", "succeeded" if acted else "refused"] += 1
        self._compare()

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def tick(self, seed: int) -> None:
        """Time passes: to just before, onto or just after an instant at which something changes."""
        chance = self._chance(seed)
        ahead = instants(self.oracle)[:3]
        offset = chance.choice((0, 0, -1, 1))
        now = self.oracle.now()
        goal = chance.choice(ahead) + timedelta(microseconds=offset) if ahead else now + timedelta(seconds=1)
        self.stage.clock.manual.advance(max(goal - now, timedelta(0)))
        self._compare()

    # --- steps of transactions that stand open ------------------------------------------------------------------------

    @precondition(lambda self: not self._active())
    @rule(seed=SEEDS)
    def hold(self, seed: int) -> None:
        """A connection runs a verb and stops before its COMMIT: nobody else sees anything of it."""
        chance = self._chance(seed)
        seat = self.seats[0]
        seat.ask = self._try_hard(chance, lambda ask: ask.decide(frozenset()).error is None)
        seat.connection.ask(seat.ask.procedure())
        self._settle(seat, frozenset())
        self.tally.turns["held"] += seat.ask is not None
        self._compare()

    @precondition(lambda self: len(self._active()) == 1)
    @rule(seed=SEEDS)
    def rival(self, seed: int) -> None:
        """Another connection comes in between, most often for what the first one has locked."""
        first = self._active()[0]
        second = self._other(first)
        assert first.decision is not None
        chance = self._chance(seed)
        locks = first.decision.locks
        same = chance.choice((True, True, False))
        ask = self._try_hard(
            chance, lambda ask: not same or ask.name == "claim_job" or bool(locks & set(ask.target)), about=locks
        )
        if not self.stage.waits:
            self._turned_away(ask)
            return
        second.ask = ask
        second.connection.ask(ask.procedure())
        expected = bool(locks & set(ask.target))
        blocked = self.stage.blocked(second.connection, first.connection)
        assert blocked == expected, f"{ask.name} {'waits' if blocked else 'does not wait'}"
        if not blocked:
            self._settle(second, locks)
        self._compare()

    @precondition(lambda self: bool(self._active()))
    @rule(seed=SEEDS)
    def end(self, seed: int) -> None:
        """An open transaction commits or rolls back; who waited for it goes on and sees the truth."""
        chance = self._chance(seed)
        seat = chance.choice(self._active())
        commit = chance.choice((True, True, False))
        self._end(seat if seat.decision is not None else self._other(seat), commit=commit)
        self._compare()

    # --- how a step is made -------------------------------------------------------------------------------------------

    def _chance(self, seed: int) -> Random:
        # Hypothesis likes to draw the same seed again; after another history it makes other choices all the same.
        self.history = crc32(b"step", self.history)
        return Random(f"{seed} {self.history}")

    def _try_hard(self, chance: Random, good: Callable[[Ask], bool], about: frozenset[Target] = frozenset()) -> Ask:
        """Draw a verb for an open transaction; a few times, where the first ones are not of the kind wanted."""
        asks = [self._draw(chance.choice(NAMES), chance, repeatable=False, about=about) for _ in range(8)]
        return next((ask for ask in asks if good(ask)), asks[-1])

    def _has_candidates(self) -> bool:
        return any(self.oracle.candidate(kept) for kept in self.oracle.kept.values())

    def _ended_jobs(self) -> list[Job]:
        jobs = [kept.job for kept in self.oracle.kept.values()]
        return [job for job in jobs if job.status in TERMINAL and job.status is not Status.COMPLETED]

    def _active(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.ask is not None]

    def _other(self, seat: Seat) -> Seat:
        return self.seats[1 - self.seats.index(seat)]

    def _perform(self, ask: Ask) -> None:
        """Ask through the service and compare the answer."""
        decision = ask.decide(frozenset())
        try:
            answer = getattr(self.services[ask.tenant], ask.name)(*ask.args, **ask.kwargs)
        except TenureError as error:
            answer = error
        self._check(ask, decision, answer)
        self._apply(decision, answer)

    def _settle(self, seat: Seat, locked: frozenset[Target]) -> None:
        """A connection has its answer: it stands before its COMMIT, or was refused and holds nothing."""
        assert seat.ask is not None
        decision = seat.ask.decide(locked)
        try:
            answer = seat.connection.answer()
        except TenureError as error:
            answer = error
        if isinstance(answer, AfterCommit):
            answer = answer.error
        self._check(seat.ask, decision, answer)
        seat.decision, seat.answer = decision, answer
        if isinstance(answer, TenureError) and not decision.changes:
            seat.connection.end(commit=False)
            seat.ask = seat.decision = None

    def _end(self, seat: Seat, *, commit: bool) -> None:
        assert seat.decision is not None
        seat.connection.end(commit=commit)
        self.tally.turns["committed" if commit else "rolled back"] += 1
        if commit:
            self._apply(seat.decision, seat.answer)
        seat.ask = seat.decision = None
        waiting = self._other(seat)
        if waiting.ask is not None and waiting.decision is None:
            self.tally.turns["waited, then committed truth" if commit else "waited, then rollback"] += 1
            self._settle(waiting, frozenset())

    def _turned_away(self, ask: Ask) -> None:
        """SQLite has one writer: who comes second is told to come again later, and nothing is written."""
        with impatient():
            try:
                answer = getattr(self.services[ask.tenant], ask.name)(*ask.args, **ask.kwargs)
            except Unavailable as busy:
                if busy.code != "STORE_BUSY":
                    raise
                self.tally.turns["turned away"] += 1
            except Invalid:
                # What is wrong in itself needs no database to be refused.
                if ask.decide(frozenset()).error is None:
                    raise
            else:
                raise AssertionError(f"{ask.name} wrote beside an open transaction: {answer!r}")
        self._compare()

    def _apply(self, decision: Decision, answer: Any) -> None:
        self.oracle.apply(decision, answer)
        if decision.claim is not None:
            self.claim_ids.append(decision.claim[0])
        if isinstance(answer, Claim):
            self.leases.append(answer.lease)

    def _check(self, ask: Ask, decision: Decision, answer: Any) -> None:
        said = f"{ask.name} gave {answer!r}"
        self.history = crc32(f"{ask.name} {type(answer).__name__}".encode(), self.history)
        told = f"job {answer.id.int & 0xFF} {answer.status}" if isinstance(answer, Job) else repr(answer)
        note(f"{self.oracle.now():%H:%M:%S.%f} {ask.name} for {ask.tenant or 'all'}: {told}")
        if decision.error is not None:
            assert isinstance(answer, TenureError), f"{said}, not {decision.error!r}"
            assert type(answer) is type(decision.error), f"{said}, not {decision.error!r}"
            assert answer.code == decision.error.code, said
            assert getattr(answer, "reason", None) == getattr(decision.error, "reason", None), said
            if decision.worded:
                assert str(answer) == str(decision.error)
        else:
            assert not isinstance(answer, TenureError), said
            self._check_answer(decision, answer)
        yes = decision.error is None and (answer is not None and answer is not False)
        self.tally.verbs[ask.name, "succeeded" if yes or (decision.changes and decision.error) else "refused"] += 1

    def _check_answer(self, decision: Decision, answer: Any) -> None:
        match answer:
            case Claim(job, lease):
                assert job.lease == lease
                expected = decision.answer
                assert job.id == (expected.id if isinstance(expected, Job) else expected)
                if isinstance(expected, Job):
                    assert ordered(job) == expected
            case Created(job, created):
                if created:
                    assert decision.learn is not None, "the key was known"
                else:
                    assert (ordered(job), created) == decision.answer
            case Job():
                assert ordered(answer) == ordered(decision.answer)
            case _:
                assert answer == decision.answer

    # --- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Read every job and hold it against the oracle and the invariants."""
        if self._active() and not self.stage.reads_beside:
            return
        found = self.stage.store.run(survey(list(self.oracle.kept)))
        for job_id, kept in self.oracle.kept.items():
            stored = found[job_id]
            assert stored.job == kept.job
            assert stored.places == (kept.place,)
            assert stored.trail == kept.trail
            assert _plain(stored.evidence) == _plain(kept.evidence)
            assert broken(stored, self.seen.get(job_id)) == []
            self.seen[job_id] = stored.job

    def _compare_whole(self) -> None:
        """Read through the public verbs and the tables, at the end of a run."""
        service = self.services[None]
        for job_id, kept in self.oracle.kept.items():
            assert service.get_job(job_id) == kept.job
            assert service.list_effects(job_id) == [effect for effect in kept.job.effects if effect.name]
            assert service.list_job_events(job_id) == kept.trail
            assert self.services[kept.job.tenant].list_jobs(tenant=kept.job.tenant)[0].tenant == kept.job.tenant
        for tenant in TENANTS:
            listed = {job.id for job in self.services[tenant].list_jobs()}
            assert listed == {job_id for job_id, kept in self.oracle.kept.items() if kept.job.tenant == tenant}
        rows = self.stage.rows(f"SELECT tenant, operation_key, attempt_id FROM {self.stage.table('intent')}")
        intents = {
            (kept.job.tenant, intent.operation_key, intent.attempt_id)
            for kept in self.oracle.kept.values()
            for intent in kept.intents
        }
        assert {(tenant, key, UUID(str(attempt))) for tenant, key, attempt in rows} == intents
        # One place for each job and nothing else in any of them: at most one lease, live or not.
        places = [
            UUID(str(row[0]))
            for place in ("ready", "deferred", "lease", "resting", "outcome")
            for row in self.stage.rows(f"SELECT job_id FROM {self.stage.table(place)}")
        ]
        assert sorted(places) == sorted(self.oracle.kept)

    # --- drawing a verb -----------------------------------------------------------------------------------------------

    def _draw(
        self,
        name: str,
        chance: Random,
        *,
        repeatable: bool = True,
        about: frozenset[Target] = frozenset(),
    ) -> Ask:
        """
        Draw the arguments of a verb.

        Args:
            repeatable: A claim may have a claim id.
            about: Prefer these jobs.
        """
        about_jobs = [job_id for job_id in self.oracle.kept if job_id in about]
        if name == "create_job":
            return self._draw_creation(chance, about)
        if name == "claim_job":
            return self._draw_claim(chance, repeatable=repeatable)
        if name == "submit_evidence":
            return self._draw_evidence(chance, about) or self._draw_claim(chance, repeatable=repeatable)
        if name in _OF_LEASES:
            leases = [lease for lease in self.leases if lease.job_id in about_jobs] or self.leases
            if not leases:
                return self._draw_claim(chance, repeatable=repeatable)
            lease = self._draw_lease(chance, leases)
            tenant = self._draw_tenant(chance, lease.job_id)
            ask: Ask = getattr(self, f"_{name}")(chance, lease, tenant)
            return replace(ask, target=(lease.job_id, *ask.target))
        job_id = self._draw_job(chance, about_jobs or list(self.oracle.kept), name)
        ask = getattr(self, f"_{name}")(chance, job_id, self._draw_tenant(chance, job_id))
        return replace(ask, target=ask.target or (job_id,))

    def _draw_tenant(self, chance: Random, job_id: UUID) -> str | None:
        own = self.oracle.kept[job_id].job.tenant
        foreign = next(tenant for tenant in TENANTS if tenant != own)
        return chance.choice((None,) * 3 + (own,) * 9 + (foreign,))

    def _draw_lease(self, chance: Random, leases: list[Lease]) -> Lease:
        """Draw the lease of a holder, most often; else an old one, or one that nobody was ever given."""
        current = [
            kept.job.lease
            for kept in self.oracle.kept.values()
            if kept.job.lease is not None and any(lease.job_id == kept.job.id for lease in leases)
        ]
        how = "forged" if self.forging else chance.choice(("current",) * 7 + ("any", "forged"))
        if how == "current" and current:
            return chance.choice(current)
        lease = leases[-1 - chance.randint(0, 5) % len(leases)]
        if how != "forged":
            return lease
        forgeries: tuple[dict[str, Any], ...] = (
            {"worker_id": "C"},
            {"generation": lease.generation + 1},
            {"attempt_id": UUID(int=7)},
        )
        return replace(lease, **chance.choice(forgeries))

    def _draw_job(self, chance: Random, jobs: list[UUID], name: str) -> UUID:
        """Draw a job, most often one that the verb may succeed on."""
        fitting = [job_id for job_id in jobs if _FITS.get(name, _any_job)(self.oracle.kept[job_id].job)]
        if fitting and chance.random() < 0.75:
            return chance.choice(fitting)
        return chance.choice(jobs)

    def _draw_creation(self, chance: Random, about: frozenset[Target]) -> Ask:
        tenant = chance.choice(TENANTS)
        keys = sorted(str(target[-1]) for target in about if isinstance(target, tuple) and target[0] == "key")
        number = len(self.oracle.kept)
        new = not keys and number < JOBS_MAX and chance.random() < 0.5
        known = keys or sorted(key for owner, _, key in self.oracle.keys if owner == tenant)
        return self._creation(
            tenant,
            key=f"k-{number}" if new else chance.choice(known),
            # What a known key must not be used for again.
            payload={"n": 0 if new else chance.choice((0, 1))},
            max_attempts=chance.randint(1, 3),
            priority=chance.randint(0, 1),
            on_reconciled=chance.choice((None, "complete", "resume")),
            on_declined=chance.choice(("failed", "dead_letter")),
            scheduled_at=chance.choice((None, None, self.oracle.now() + timedelta(seconds=30))),
        )

    def _creation(self, tenant: str, *, key: str, **fields: Any) -> Ask:
        given = {
            "organization": tenant,
            "project": "p1",
            "idempotency_key": key,
            "kind": "send_quote",
            "execution": ExecutionInput(tenant=tenant, actor="user:42", trace="t-1"),
            **fields,
        }
        decide: Callable[[Any], Decision] = lambda _: self.oracle.create(tenant, given)  # noqa: E731
        return Ask("create_job", tenant, (), given, decide, (("key", tenant, "p1", key),))

    def _draw_claim(self, chance: Random, *, repeatable: bool) -> Ask:
        worker = chance.choice(("A", "B"))
        tenant = chance.choice((None, None, *TENANTS))
        start = chance.choice((True, True, False))
        claim_id = None
        if repeatable:
            how = chance.choice(("none", "none", "new", "known"))
            claim_id = new_id() if how == "new" else None
            if how == "known" and self.claim_ids:
                claim_id = self.claim_ids[-1 - chance.randint(0, 1) % len(self.claim_ids)]

        def decide(locked: frozenset[Target]) -> Decision:
            return self.oracle.claim(worker, tenant, start=start, claim_id=claim_id, locked=locked)

        return Ask("claim_job", tenant, (worker,), {"start": start, "claim_id": claim_id}, decide)

    def _draw_evidence(self, chance: Random, about: frozenset[Target]) -> Ask | None:
        intents = [(kept.job.id, intent) for kept in self.oracle.kept.values() for intent in kept.intents]
        intents = [(job_id, intent) for job_id, intent in intents if job_id in about] or intents
        if not intents:
            return None
        job_id, intent = chance.choice(intents)
        tenant = self._draw_tenant(chance, job_id)
        attempt_id = chance.choice((intent.attempt_id,) * 5 + (UUID(int=7),))
        evidence = chance.choice(LATE)
        key = intent.operation_key
        owner = self.oracle.intended(tenant, key, attempt_id)

        def decide(_: object) -> Decision:
            return self.oracle.submit(tenant, key, evidence, attempt_id)

        target = () if owner is None else (owner,)
        return Ask("submit_evidence", tenant, (key, evidence), {"attempt_id": attempt_id}, decide, target)

    # Verbs of a lease.

    def _of_lease(
        self,
        name: str,
        lease: Lease,
        tenant: str | None,
        move: Callable[..., Change],
        *given: Any,
        **named: Any,
    ) -> Ask:
        def decide(_: object) -> Decision:
            return self.oracle.one(
                lease.job_id, tenant, lambda kept: move(kept.job, lease, *given, now=self.oracle.now(), **named)
            )

        return Ask(name, tenant, (lease,), {}, decide)

    def _heartbeat(self, _: Random, lease: Lease, tenant: str | None) -> Ask:
        return Ask("heartbeat", tenant, (lease,), {}, lambda _: self.oracle.heartbeat(lease, tenant))

    def _begin_effect(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        name = chance.choice(("send", "send", "send", "bill"))
        request = {"n": chance.choice((0, 0, 0, 0, 0, 1))}
        provider = chance.choice(PROVIDERS)
        resend = chance.choice((False, False, True))
        timeout = timedelta(seconds=30)

        def decide(_: object) -> Decision:
            return self.oracle.begin(
                lease, tenant, name=name, request=request, terms=terms(provider), timeout=timeout, resend=resend
            )

        given = {"name": name, "request": request, "provider": provider, "deadline": timeout, "resend": resend}
        return Ask("begin_effect", tenant, (lease,), given, decide)

    def _finish_effect(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        job = self.oracle.kept[lease.job_id].job
        fitting = [effect.name for effect in job.effects if effect.is_open and effect.name]
        name = chance.choice(fitting or ["send"])
        outcome = chance.choice(OUTCOMES)
        decide: Callable[[Any], Decision] = lambda _: self.oracle.finish(lease, tenant, name, outcome)  # noqa: E731
        return Ask("finish_effect", tenant, (lease,), {"name": name, "outcome": outcome}, decide)

    def _mark_provider_dispatched(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        key = chance.choice(("own-1", "own-1", "own-2"))
        owner = self.oracle.kept[lease.job_id].job.tenant
        decide: Callable[[Any], Decision] = lambda _: self.oracle.mark(lease, tenant, key)  # noqa: E731
        ask = Ask("mark_provider_dispatched", tenant, (lease,), {"operation_key": key}, decide)
        # The key is asked for only by a mark that nothing else refuses.
        allowed = self.oracle.mark(lease, tenant, key).error is None
        return replace(ask, target=(("operation", owner, key),) if allowed else ())

    def _complete_job(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        result = chance.choice(({"done": True}, None, float("nan")))
        ask = self._of_lease("complete_job", lease, tenant, moves.complete, result)
        return replace(ask, kwargs={"result": result})

    def _fail_job(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        named = {
            "retryable": chance.random() < 0.5,
            "retry_after": chance.choice((None, timedelta(minutes=5))),
        }
        code = chance.choice(("BROKEN", "BROKEN", "BROKEN", " "))
        ask = self._of_lease("fail_job", lease, tenant, moves.fail, code, "it broke", **named)
        return replace(ask, kwargs={"code": code, "message": "it broke", **named})

    def _ended(self, name: str, move: Callable[..., Change], _: object, lease: Lease, tenant: str | None) -> Ask:
        ask = self._of_lease(name, lease, tenant, move, "STUCK", "it got stuck")
        return replace(ask, kwargs={"code": "STUCK", "message": "it got stuck"})

    def _mark_indeterminate(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        return self._ended("mark_indeterminate", moves.mark_indeterminate, chance, lease, tenant)

    def _mark_halt_unsafe(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        return self._ended("mark_halt_unsafe", moves.mark_halt_unsafe, chance, lease, tenant)

    def _mark_timed_out(self, chance: Random, lease: Lease, tenant: str | None) -> Ask:
        return self._ended("mark_timed_out", moves.mark_timed_out, chance, lease, tenant)

    def _release_job(self, _: Random, lease: Lease, tenant: str | None) -> Ask:
        return replace(
            self._of_lease("release_job", lease, tenant, moves.release, "not now"), kwargs={"reason": "not now"}
        )

    def _acknowledge_cancellation(self, _: Random, lease: Lease, tenant: str | None) -> Ask:
        return self._of_lease("acknowledge_cancellation", lease, tenant, moves.acknowledge_cancellation)

    # Verbs of an operator.

    def _of_job(
        self, name: str, job_id: UUID, tenant: str | None, kwargs: dict[str, Any], move: Callable[..., Change]
    ) -> Ask:
        def decide(_: object) -> Decision:
            return self.oracle.one(job_id, tenant, lambda kept: move(kept.job, now=self.oracle.now()))

        return Ask(name, tenant, (job_id,), kwargs, decide)

    def _cancel_job(self, _: Random, job_id: UUID, tenant: str | None) -> Ask:
        given: dict[str, Any] = {"reason": "no longer wanted"}
        return self._of_job("cancel_job", job_id, tenant, given, partial(moves.cancel, **given, actor=OPERATOR))

    def _revoke_job(self, _: Random, job_id: UUID, tenant: str | None) -> Ask:
        given: dict[str, Any] = {"reason": "taken away"}
        return self._of_job("revoke_job", job_id, tenant, given, partial(moves.revoke, **given, actor=OPERATOR))

    def _retry_job(self, chance: Random, job_id: UUID, tenant: str | None) -> Ask:
        rejected = [e.name for e in self.oracle.kept[job_id].job.effects if e.state == "rejected" and e.name]
        given: dict[str, Any] = {
            "attempts": chance.randint(1, 2),
            "reopen": chance.choice((rejected, rejected, [], ["send"])),
        }
        return self._of_job("retry_job", job_id, tenant, given, partial(moves.retry, **given, actor=OPERATOR))

    def _resume_sweep(self, _: Random, job_id: UUID, tenant: str | None) -> Ask:
        return self._of_job("resume_sweep", job_id, tenant, {}, partial(reconcile.resume_sweep, actor=OPERATOR))

    def _reconcile_dispatched(self, chance: Random, job_id: UUID, tenant: str | None) -> Ask:
        evidence = chance.choice(EVIDENCE)
        keys = [effect.operation_key for effect in self.oracle.kept[job_id].job.effects]
        key = chance.choice((None, None, *keys, "nobody's"))

        def move(job: Job, *, now: Any) -> Change:
            stored = self.oracle.kept[job.id].evidence
            reason = "asked the provider"
            return reconcile.state_fact(
                job, evidence, new_id(), now, key=key, actor=OPERATOR, reason=reason, stored=stored
            )

        given = {"operation_key": key, "reason": "asked the provider"}
        ask = self._of_job("reconcile_dispatched", job_id, tenant, given, move)
        return replace(ask, args=(job_id, evidence))

    def _append_job_event(self, chance: Random, job_id: UUID, tenant: str | None) -> Ask:
        event = chance.choice(("admission_checked", "execution_control_shadow", "completed", "made_up"))
        told = {"by": "gate"}

        def decide(_: object) -> Decision:
            return self.oracle.append(job_id, tenant, event, told, OPERATOR)

        # A name that may not be appended is refused before anything is locked.
        reserved = event in {"completed", "made_up"}
        return Ask("append_job_event", tenant, (job_id, event, told), {}, decide, (None,) if reserved else ())


def _any_job(_: Job) -> bool:
    return True


_OF_LEASES = {
    "heartbeat",
    "begin_effect",
    "finish_effect",
    "mark_provider_dispatched",
    "complete_job",
    "fail_job",
    "mark_indeterminate",
    "mark_halt_unsafe",
    "mark_timed_out",
    "release_job",
    "acknowledge_cancellation",
}
_FITS: dict[str, Callable[[Job], bool]] = {
    "cancel_job": lambda job: job.status in LIVE,
    "revoke_job": lambda job: job.status in {Status.QUEUED, *LIVE},
    "retry_job": lambda job: job.status is Status.FAILED,
    "resume_sweep": lambda job: job.escalated_at is not None,
    "reconcile_dispatched": lambda job: job.status in {Status.INDETERMINATE, Status.TIMED_OUT},
}


def _next(job: Job) -> list[str]:
    """Give what the holder of a job may sensibly do next, the likelier more often."""
    opened = [effect for effect in job.effects if effect.is_open]
    names = ["heartbeat", "complete_job", "fail_job", "cancel_job", "cancel_job"]
    if job.cancel_requested_at is not None:
        names += ["acknowledge_cancellation"] * 12
    if any(effect.name for effect in opened):
        return [*names, *["finish_effect"] * 6, "begin_effect", *["mark_indeterminate"] * 3, "mark_timed_out"]
    if opened:
        return [*names, "complete_job", "fail_job", "mark_timed_out"]
    return [*names, *["begin_effect"] * 6, "mark_provider_dispatched", "mark_provider_dispatched", "release_job"]


def _plain(evidence: list[StoredEvidence]) -> list[StoredEvidence]:
    """Leave out the ids, which the store makes."""
    return [replace(record, id=UUID(int=0)) for record in evidence]
