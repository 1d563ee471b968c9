"""
Keep leases alive from a thread and a connection of their own.

A handler that blocks the event loop, or every thread of the pool, does not lose its lease: renewals share nothing with
handlers but the interpreter. What they cannot survive is code that holds the interpreter lock for longer than the
lease; then the fence refuses the late write, and that is what it is for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tenure.errors import CancelRequested, TenureError
from tenure.handler import CANCELLED, LEASE_LOST, TIMED_OUT, Attempt
from tenure.loops.supervisor import Pulse
from tenure.procedures.hold import renew
from tenure.rules.lease import BEATS_PER_LEASE
from tenure.stores.contract import Store

logger = logging.getLogger("tenure.worker")

# A beat is looked for this often within one beat's time, so that it is never later than the third of a lease.
_LOOKS_PER_BEAT = 4
_TICK_MAX, _TICK_MIN = 1.0, 0.01
_BATCH = 500


class Heartbeat:
    """
    The renewals of one worker.

    Args:
        store: A store that nobody else uses.
        pulse: Beaten after each round; its period is the longest a round may take.
        stopped: Called from this thread when an attempt has to stop; the reason is on the attempt.
        beat: Seconds between two renewals of a lease; a third of its length when None.
    """

    def __init__(
        self, store: Store, pulse: Pulse, stopped: Callable[[Attempt], None], *, beat: float | None = None
    ) -> None:
        self._store = store
        self._pulse = pulse
        self._stopped = stopped
        self._beat = beat
        self._attempts: dict[object, Attempt] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="tenure-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def add(self, attempts: list[Attempt]) -> None:
        """Keep the leases of these attempts."""
        with self._lock:
            self._attempts.update({attempt.lease.attempt_id: attempt for attempt in attempts})
        self._wake.set()

    def remove(self, attempt: Attempt) -> None:
        """Keep it no longer: its outcome is written, or it is lost."""
        with self._lock:
            self._attempts.pop(attempt.lease.attempt_id, None)

    def end(self) -> None:
        """Stop renewing; called after the last outcome is written."""
        self._ended = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._ended:
            try:
                self.round()
            except Exception as error:  # noqa: BLE001 - leases must go on being renewed whatever one round meets
                self._wake.wait(self._pulse.fail(error))
                self._check_trust()
            else:
                self._pulse.beat()
                self._wake.wait(self._tick())
            self._wake.clear()

    def round(self) -> None:
        """Renew every lease that is due, and stop the attempts that are over their time."""
        now = time.monotonic()
        with self._lock:
            attempts = list(self._attempts.values())
        due = [attempt for attempt in attempts if self._over(attempt, now) is None and self._due(attempt, now)]
        for start in range(0, len(due), _BATCH):
            self._renew(due[start : start + _BATCH])
        self._check_trust()

    def _renew(self, due: list[Attempt]) -> None:
        sent = time.monotonic()
        answers = self._store.run(
            renew([attempt.lease for attempt in due], progress=[attempt.progress for attempt in due])
        )
        for attempt, answer in zip(due, answers, strict=True):
            if answer is None:
                continue  # its row is locked, most likely by its own publish: asked again at the next look
            if not isinstance(answer, TenureError):
                assert answer.lease is not None
                attempt.lease, attempt.sent = answer.lease, sent
            elif isinstance(answer, CancelRequested):
                self._halt(attempt, CANCELLED, f"cancellation of job {attempt.job.id} was requested")
            else:
                self._halt(attempt, LEASE_LOST, str(answer))
                self.remove(attempt)

    def _due(self, attempt: Attempt, now: float) -> bool:
        if attempt.stop is not None and attempt.stop.code == CANCELLED:
            return False
        beat = self._beat or attempt.lease.duration.total_seconds() / BEATS_PER_LEASE
        return now - attempt.sent >= beat - self._tick()

    def _tick(self) -> float:
        with self._lock:
            shortest = min((a.lease.duration.total_seconds() for a in self._attempts.values()), default=None)
        if shortest is None:
            return min(_TICK_MAX, self._pulse.period)
        return max(_TICK_MIN, min(_TICK_MAX, shortest / BEATS_PER_LEASE / _LOOKS_PER_BEAT))

    def _over(self, attempt: Attempt, now: float) -> str | None:
        """Stop an attempt that is over its time: renewing it would hide that it hangs."""
        limit, silence = attempt.kind.timeout, attempt.kind.progress_timeout
        reason = None
        if attempt.deadline is not None and now > attempt.deadline:
            reason = f"the handler ran longer than {limit}"
        elif silence is not None and now - attempt.progressed > silence.total_seconds():
            reason = f"the handler made no progress for {silence}"
        if reason is not None and not attempt.ended:
            self._halt(attempt, TIMED_OUT, reason)
            return reason
        return None

    def _check_trust(self) -> None:
        with self._lock:
            attempts = list(self._attempts.values())
        for attempt in attempts:
            if attempt.trusted <= 0 and not attempt.ended:
                self._halt(attempt, LEASE_LOST, f"the lease on job {attempt.job.id} could not be renewed in time")

    def _halt(self, attempt: Attempt, code: str, reason: str) -> None:
        if attempt.stop is None:
            attempt.halt(code, reason)
            logger.info("attempt stopped: job=%s code=%s", attempt.job.id, code)
            self._stopped(attempt)
