"""
Keep leases alive from a thread and a connection of their own.

A handler that blocks the event loop, or every thread of the pool, does not lose its lease: renewals share nothing with
handlers but the interpreter. What they cannot survive is code that holds the interpreter lock for longer than the
lease; then the fence refuses the late write, and that is what it is for.

An attempt that is over its time is not renewed: that would hide that it hangs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from tenure.attempt import CANCELLED, LEASE_LOST, TIMED_OUT, Attempt
from tenure.errors import CancelRequested, TenureError, Unavailable
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
        beat: Seconds between two renewals of a lease; a third of its length when None, and never more than that.
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
        self._looks_at = math.inf
        self._thread = threading.Thread(target=self._run, name="tenure-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def add(self, attempts: list[Attempt]) -> None:
        """Keep the leases of these attempts."""
        with self._lock:
            self._attempts.update({attempt.lease.attempt_id: attempt for attempt in attempts})
            # The thread is woken only where it would look too late; waking it costs more than all else here.
            late = time.monotonic() + self._tick(attempts) < self._looks_at
        if late:
            self._wake.set()

    def remove(self, attempt: Attempt) -> None:
        """Keep it no longer: its outcome is written, or it is lost."""
        with self._lock:
            self._attempts.pop(attempt.lease.attempt_id, None)

    @property
    def kept(self) -> int:
        """How many leases are kept: of handlers that run, and of outcomes that are not written yet."""
        return len(self._attempts)

    def end(self) -> None:
        """Stop renewing; called after the last outcome is written. The thread may still wait for its database."""
        self._ended = True
        self._wake.set()

    def join(self) -> None:
        """Wait for the thread; after `end`."""
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            try:
                self.round()
            except Exception as error:  # noqa: BLE001 - leases must go on being renewed whatever one round meets
                # Not longer than a tick: the next try may be the last one before a lease runs out.
                pause = self._pulse.fail(error)
            else:
                self._pulse.beat()
                pause = math.inf
            with self._lock:
                pause = min(pause, self._tick(list(self._attempts.values())))
                self._looks_at = time.monotonic() + pause
            self._wake.wait(pause)
            self._wake.clear()

    def round(self) -> None:
        """Renew every lease that is due, and stop the attempts that are over their time."""
        with self._lock:
            attempts = list(self._attempts.values())
        try:
            now = time.monotonic()
            tick = self._tick(attempts)
            due = [attempt for attempt in attempts if self._renewable(attempt) and self._due(attempt, now, tick)]
            for start in range(0, len(due), _BATCH):
                self._renew(due[start : start + _BATCH])
        finally:
            for attempt in attempts:
                self._judge(attempt)

    def _renewable(self, attempt: Attempt) -> bool:
        """Whether this attempt is to keep its lease: also while it is being stopped, but not for ever."""
        if attempt.ended:
            # Its outcome is on its way and needs the lease.
            return True
        self._judge(attempt)
        return attempt.stop is None or attempt.stop.code not in {CANCELLED, TIMED_OUT, LEASE_LOST}

    def _renew(self, due: list[Attempt]) -> None:
        try:
            self._extend(due)
        except Unavailable:
            raise
        except Exception:
            # Something is wrong with one of them, and nobody knows with which: the others must not suffer.
            if len(due) == 1:
                raise
            troubles = [trouble for attempt in due if (trouble := self._extended(attempt)) is not None]
            if troubles:
                raise troubles[0] from None

    def _extended(self, attempt: Attempt) -> Exception | None:
        try:
            self._extend([attempt])
        except Exception as trouble:  # noqa: BLE001 - told by the caller, after the others had their turn
            return trouble
        return None

    def _extend(self, due: list[Attempt]) -> None:
        sent = time.monotonic()
        leases = [attempt.lease for attempt in due]
        answers = self._store.run(renew(leases, progress=[attempt.progress for attempt in due]))
        for attempt, answer in zip(due, answers, strict=True):
            if answer is None:
                continue  # its row is locked, most likely by its own publish: asked again at the next look
            if not isinstance(answer, TenureError):
                assert answer.lease is not None
                attempt.lease, attempt.sent = answer.lease, sent
            elif isinstance(answer, CancelRequested):
                self._halt(attempt, CANCELLED, f"cancellation of job {attempt.job.id} was requested")
            else:
                self._halt(attempt, LEASE_LOST, str(answer), answer.code)
                self.remove(attempt)

    def _due(self, attempt: Attempt, now: float, tick: float) -> bool:
        longest = attempt.lease.duration.total_seconds() / BEATS_PER_LEASE
        # A job may have been created with a shorter lease than its kind's, which the given beat was checked against.
        beat = longest if self._beat is None else min(self._beat, longest)
        return now - attempt.sent >= beat - tick

    def _tick(self, attempts: list[Attempt]) -> float:
        longest = min(_TICK_MAX, self._pulse.period)
        shortest = min((one.lease.duration for one in attempts), default=None)
        if shortest is None:
            return longest
        return max(_TICK_MIN, min(longest, shortest.total_seconds() / BEATS_PER_LEASE / _LOOKS_PER_BEAT))

    def _judge(self, attempt: Attempt) -> None:
        if attempt.stop is None and attempt.judge():
            self._tell(attempt)

    def _halt(self, attempt: Attempt, code: str, reason: str, refusal: str | None = None) -> None:
        if attempt.stop is None:
            attempt.halt(code, reason, refusal)
            self._tell(attempt)

    def _tell(self, attempt: Attempt) -> None:
        assert attempt.stop is not None
        logger.info("attempt stopped: job=%s code=%s", attempt.job.id, attempt.stop.code)
        self._stopped(attempt)
