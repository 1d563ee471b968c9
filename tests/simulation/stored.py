"""Take the explorer's steps with the procedures of the package on a real database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from tenure.errors import LeaseLost, TenureError
from tenure.lab.machine import Edge, realised, said_by
from tenure.lab.record import BARE_KEY, CURRENT, DIGEST, EFFECT_NAME, JOB_ID, OPENED, TICK, Book
from tenure.lab.search import Space
from tenure.procedures import claim, effect, enqueue, hold, inspect, operate, publish, reconcile, upkeep
from tenure.rules import creation, moves
from tenure.rules.job import Job
from tenure.rules.lease import Lease
from tenure.stores.contract import Store
from tenure.testing.clock import ManualClock
from tenure.yields import Procedure

_STRANGER = UUID(int=2**64)


class Stored:
    """
    One job in a store, on a queue of its own.

    Attributes:
        leases: What the worker on the left and the one on the right present.
        names: Their names.
    """

    def __init__(self, space: Space, store: Store, clock: ManualClock) -> None:
        self.space, self.store, self.clock = space, store, clock
        self.leases: list[Lease | None] = [None, None]
        self.names = list(space.configuration.workers)
        self.id = uuid4()
        self.queue = f"queue {self.id}"
        # A bare mark's key is unique within the tenant, and every job here belongs to one tenant.
        self.bare_key = f"{BARE_KEY} {self.id}"
        template = space.machine.forms.template
        made = creation.new_job(
            job_id=self.id,
            organization=template.organization,
            project=template.project,
            idempotency_key=str(self.id),
            kind=template.kind,
            payload={"quote": 17},
            queue=self.queue,
            max_attempts=template.max_attempts,
            backoff_base=template.backoff_base,
            lease_duration=template.lease_duration,
            on_reconciled=template.on_reconciled,
            on_declined=template.on_declined,
            execution=creation.ExecutionInput(tenant=template.tenant, actor="user:42", trace="t-1"),
            options=template.options,
        )
        store.run(enqueue.create([made]))

    def job(self) -> Job:
        return self.store.run(inspect.get_job(self.id))

    def form(self) -> Book:
        """The normal form of what the database holds, under the ids of the explorer."""
        job = self.job()
        effects = tuple(replace(e, operation_key=self._key(e.operation_key)) for e in job.effects)
        stored = [
            replace(e, operation_key=self._key(e.operation_key)) for e in self.store.run(inspect.list_evidence(self.id))
        ]
        known = replace(job, id=JOB_ID, effects=effects)
        form = self.space.machine.forms.form(known, stored, self.clock.now())
        return form if form.lease is None else form._replace(lease=form.lease._replace(holder=0))

    def follow(self, before: int, slot: int, edge: Edge | None, after: int) -> str | None:
        """Take one step; gives the name of the refusal, also of one that followed a commit."""
        said = None
        if edge is None:
            self.clock.advance(TICK)
        elif edge.op is not None:
            said = self._transact(slot, *edge.op)
        if self.space.turned(before, slot, edge, after):
            self.leases.reverse()
            self.names.reverse()
        return said

    def _key(self, key: str) -> str:
        return BARE_KEY if key == self.bare_key else key.replace(str(self.id), str(JOB_ID))

    def _own_key(self, key: str) -> str:
        return self.bare_key if key == BARE_KEY else key.replace(str(JOB_ID), str(self.id))

    def _attempt(self, symbol: int) -> UUID:
        job = self.job()
        if symbol == CURRENT:
            assert job.lease is not None
            return job.lease.attempt_id
        if symbol == OPENED:
            held = None if job.lease is None else job.lease.attempt_id
            return next(e.attempt_id for e in job.effects if e.is_open and e.attempt_id != held)
        return _STRANGER

    def _transact(self, slot: int, name: str, who: Any, arguments: tuple[Any, ...]) -> str | None:
        machine = self.space.machine
        given = realised(machine.forms, machine.order, name, arguments, self._attempt, self.clock.now())
        try:
            if name == "claim":
                self._claim(slot)
            elif name == "renew":
                return self._renew(slot)
            elif who is not None:
                lease = self.leases[slot]
                assert lease is not None
                self.store.run(self._held(lease, name, given))
            else:
                self.store.run(self._unheld(name, given))
        except TenureError as error:
            return said_by(error)
        return None

    def _claim(self, slot: int) -> None:
        start = self.space.configuration.start
        (one,) = self.store.run(claim.claim(self.names[slot], queues=[self.queue], start=start))
        self.leases[slot] = one.lease

    def _renew(self, slot: int) -> str | None:
        """A heartbeat answers False; whether that is a lost lease or a cancellation, a renewal of many says."""
        lease = self.leases[slot]
        assert lease is not None
        (answer,) = self.store.run(hold.renew([lease]))
        return said_by(answer) if isinstance(answer, TenureError) else None

    def _held(self, lease: Lease, name: str, given: tuple[Any, ...]) -> Procedure[Any]:
        machine = self.space.machine
        ends: dict[str, Callable[[], hold.Ask]] = {
            "complete": lambda: hold.completing(lease, "done"),
            "fail": lambda: hold.failing(lease, "E", "it did not work", retryable=given[0]),
            "release": lambda: hold.releasing(lease, "shutdown"),
            "acknowledge": lambda: hold.acknowledging(lease),
        }
        if name == "end":
            said = (lease, "E", "the handler said so")
            ways: dict[str, Callable[[], hold.Ask]] = {
                "halt": lambda: hold.marking(moves.mark_halt_unsafe, *said),
                "time_out": lambda: hold.timing_out(*said),
                "mark": lambda: hold.marking(moves.mark_indeterminate, *said),
            }
            return hold.hold_one(ways[given[0]]())
        if name in ends:
            return hold.hold_one(ends[name]())
        timeout = self.space.configuration.timeout * TICK
        match name:
            case "begin":
                terms = machine.forms.terms
                return effect.begin_effect(
                    effect.Beginning(lease, EFFECT_NAME, DIGEST, terms, timeout, resend=given[0])
                )
            case "mark":
                return effect.mark_dispatched(lease, self.bare_key)
            case "finish":
                return effect.finish_effect(effect.Finishing(lease, EFFECT_NAME, given[1]))
            case _:
                assert name == "publish", name
                return publish.close_publish(lease, uuid4())

    def _unheld(self, name: str, given: tuple[Any, ...]) -> Procedure[Any]:
        template = self.space.machine.forms.template
        patient = self.space.configuration.patient
        match name:
            case "recover":
                return upkeep.recover()
            case "cancel":
                return operate.cancel_job(self.id, "not wanted")
            case "revoke":
                return operate.revoke_job(self.id, "not wanted", "operator")
            case "retry":
                return operate.retry_job(self.id, "operator", 1, given[0])
            case "resume":
                return operate.resume_sweep(self.id, "operator")
            case "submit":
                key, attempt, evidence = given
                return effect.submit_evidence(self._own_key(key), evidence, self._committed(key, attempt))
            case "state":
                key, evidence = given
                own = None if key is None else self._own_key(key)
                reason = "looked at the provider"
                return reconcile.reconcile_dispatched(
                    self.id, evidence, operation_key=own, reason=reason, actor="operator"
                )
            case "sweep":
                where = (template.organization, template.project, template.tenant)
                return reconcile.sweep_step(self.id, *where, patient=patient)
            case _:
                assert name == "answer", name
                key, attempt, evidence, asked_at = given
                job = self.job()
                asked = replace(job.effects[0], operation_key=self._own_key(key), attempt_id=attempt)
                return reconcile.sweep_answer(reconcile.Question(job, asked, asked_at), evidence, patient=patient)

    def _committed(self, key: str, attempt: UUID) -> UUID:
        """An attempt of the past that has an intent under the key: evidence of a stranger would be unknown."""
        if attempt != _STRANGER:
            return attempt
        held = {lease.attempt_id for lease in self.leases if lease is not None}
        job = self.job()
        current = None if job.lease is None else job.lease.attempt_id
        opened = {e.attempt_id for e in job.effects if e.is_open}
        for past in [*self.past, *held]:
            if past not in {current, *opened}:
                return past
        raise LeaseLost(f"nobody of the past began under {key}", reason="test")

    @property
    def past(self) -> list[UUID]:
        """The attempts whose claims are in the trail, oldest first."""
        events = self.store.run(inspect.list_events(self.id))
        return [UUID(str(event.data["attempt_id"])) for event in events if event.name == "claimed"]
