"""One attempt, as the loops keep it and the contexts see it: its lease, what stops it, and what it may call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from tenure.errors import Stop
from tenure.kinds import Kind
from tenure.procedures.claim import Claim
from tenure.procedures.claim_batch import Claimed
from tenure.rules.control import ControlRequest, Judged
from tenure.rules.job import Job
from tenure.rules.lease import Lease, trusted_until
from tenure.rules.ledger import Seen
from tenure.rules.outcome import Evidence, Outcome, Terms
from tenure.stores.contract import AsyncStore, Store
from tenure.yields import Procedure

LEASE_LOST, CANCELLED, TIMED_OUT, SHUTDOWN = "LEASE_LOST", "CANCELLED", "TIMED_OUT", "SHUTDOWN"


class Providers(Protocol):
    """How a provider is called; the worker hands in the real thing."""

    def terms(self, provider: Any) -> Terms:
        """What the provider declares."""
        ...

    def timeout(self, provider: Any) -> timedelta:
        """How long one call may take unless the handler says otherwise."""
        ...

    def encode(self, request: Any) -> Any:
        """Turn a request into the JSON value whose digest is its identity."""
        ...

    async def send(self, provider: Any, request: Any, operation_key: str, allowed: timedelta) -> Outcome:
        """Make the call within `allowed`; never raises for what the provider did."""
        ...

    async def lookup(self, provider: Any, operation_key: str, allowed: timedelta) -> Evidence:
        """Ask what became of an operation within `allowed`; never raises for what the provider did."""
        ...


class Keep(Protocol):
    """Where a receipt goes that the database did not take."""

    def append_receipt(self, operation_key: str, attempt_id: UUID, evidence: Evidence) -> Any:
        """Write it down durably; blocking."""
        ...


class Controls(Protocol):
    """An app's execution control."""

    async def ask(self, request: ControlRequest) -> Judged:
        """Give its answer in time; never raises for what it does."""
        ...


@dataclass(slots=True)
class Runtime:
    """
    What an attempt works with, made by the worker once.

    Attributes:
        wait: Runs an awaitable for a blocking handler, on the worker's loop.
        commit: Runs a procedure of an awaiting handler; the store does where it is left out.
        apart: Runs a function for an awaiting handler in a thread that no handler can keep busy.
        control: Asked before each effect, where there is one.
        seen: The database as the worker has seen it, where there is a ledger.
    """

    store: AsyncStore
    blocking: Store
    providers: Providers
    journal: Keep | None
    wait: Callable[[Awaitable[Any]], Any]
    apart: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    commit: Callable[[Procedure[Any]], Awaitable[Any]] | None = None
    control: Controls | None = None
    seen: Callable[[], Seen | None] = lambda: None


@dataclass(slots=True)
class Attempt:
    """
    One claim of one job while a worker has it; shared by the handler, the heartbeat and the worker.

    Attributes:
        claim: What the claim gave: the job, and the lease as it was then.
        lease: As of the last renewal.
        sent: Monotonic seconds when the claim or the last renewal was sent.
        stop: Why the handler must stop; set once.
        refusal: The code of the refusal behind a stop, where there is one: LEASE_LOST, EPOCH_CLOSED.
        progressed: Monotonic seconds of the last call of `ctx.progress`.
        started: Monotonic seconds when the handler was called; None before that.
        ended: How it ended is on its way to the database; nothing about the handler is judged any more.
    """

    claim: Claim | Claimed
    kind: Kind
    sent: float
    lease: Lease = field(init=False)
    progress: str | None = None
    progressed: float = field(default_factory=time.monotonic)
    stop: Stop | None = None
    refusal: str | None = None
    started: float | None = None
    ended: bool = False

    def __post_init__(self) -> None:
        self.lease = self.claim.lease

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self.claim.job

    def halt(self, code: str, message: str, refusal: str | None = None) -> None:
        """Ask the handler to stop; the first reason stands."""
        if self.stop is None:
            self.refusal = refusal
            self.stop = Stop(message, code=code)

    def check(self) -> None:
        """Raise the reason to stop, if there is one."""
        if self.stop is not None:
            # A new one each time: a raised exception collects the frames it went through.
            raise Stop(str(self.stop), code=self.stop.code)

    def begin(self) -> None:
        """Count the handler's time from now."""
        self.started = self.progressed = time.monotonic()

    def judge(self) -> bool:
        """
        Halt an attempt that is over its time or has lost the trust in its lease; called from several threads.

        Returns:
            Whether it has to stop, for whatever reason.
        """
        if self.stop is None and not self.ended:
            now = time.monotonic()
            limit, silence = self.kind.timeout, self.kind.progress_timeout
            if self.started is not None and limit is not None and now - self.started >= limit.total_seconds():
                self.halt(TIMED_OUT, f"the handler ran longer than {limit}")
            elif self.started is not None and silence is not None and now - self.progressed >= silence.total_seconds():
                self.halt(TIMED_OUT, f"the handler made no progress for {silence}")
            elif self.trusted <= 0:
                self.halt(LEASE_LOST, f"the lease on job {self.job.id} could not be renewed in time")
        return self.stop is not None

    def look_at(self) -> float:
        """Monotonic seconds at which `judge` may first give another answer by itself."""
        at = trusted_until(self.sent, self.lease.duration)
        if self.started is not None and self.kind.timeout is not None:
            at = min(at, self.started + self.kind.timeout.total_seconds())
        if self.started is not None and self.kind.progress_timeout is not None:
            at = min(at, self.progressed + self.kind.progress_timeout.total_seconds())
        return at

    @property
    def trusted(self) -> float:
        """Seconds for which the lease may still be trusted by this process's own clock."""
        return trusted_until(self.sent, self.lease.duration) - time.monotonic()
