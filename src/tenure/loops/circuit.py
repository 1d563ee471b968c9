"""
The pause of a destination that does not work: nothing is claimed for it but, now and then, one message that tries.

What counts as not working is said in `rules.outage`; here is only when to try again, and what becomes of what was on
its way. No message is set aside for an outage, however long it lasts.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from tenure.rules.message import Deferred
from tenure.rules.outage import ENOUGH, Blamed, blame, says_so, works
from tenure.rules.outbox import Answer, Paused, Together

logger = logging.getLogger("tenure.relay")

# Seconds between two tries: the first pause, and the longest.
PAUSE_FIRST, PAUSE_MAX = 0.25, 15.0
# A message that tried in vain and may be to blame lets others try for as long as the outage has lasted, within these.
WAIT_MIN, WAIT_MAX = 2.0, 600.0
# What was put off is due again at most so long after its time.
PROMOTED = 2.0
# The longest wish to be left alone that is heard.
WISH_MAX = 600.0


class Circuit:
    """
    Whether a destination is paused, and until when.

    Args:
        name: The destination's.
        clock: Monotonic seconds.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._known: tuple[Blamed, ...] = ()
        self._since: float | None = None
        self._reason = ""
        self._pause = PAUSE_FIRST
        self._next = 0.0
        self._trying = False
        self._failed = 0.0
        self._back = 0.0
        self._quiet = False

    @property
    def trouble(self) -> str | None:
        """Say what a person has to know while it is paused and something waits for it."""
        since = self._since
        if since is None or self._quiet:
            return None
        return (
            f"destination {self._name} does not work since {self._clock() - since:.0f} s and is tried again by "
            f"itself; its messages wait and lose no attempts: {self._reason}"
        )

    @property
    def note(self) -> str | None:
        """Say what is left of an outage when nothing waits for its end: nobody is waked for that, and nobody tries."""
        if self._since is None or not self._quiet:
            return None
        return (
            f"destination {self._name} did not work when it was last tried, {self._clock() - self._failed:.0f} s ago; "
            f"nothing waits for it, and its next message will try it: {self._reason}"
        )

    def nothing_due(self) -> None:
        """Take note that a try found nothing to try with, and nothing that was put off is still to come back."""
        if self._since is not None and not self._quiet and self._clock() > self._back:
            self._quiet = True
            logger.warning("nothing waits any more for destination %s; its next message will try it", self._name)

    @contextmanager
    def turn(self, batch: int) -> Iterator[int]:
        """Say how many messages may be claimed in this round: none during a pause, and one where it is time to try."""
        if self._since is None:
            yield batch
        elif self._trying or self._clock() < self._next:
            yield 0
        else:
            self._trying = True
            try:
                yield 1
            finally:
                self._trying = False

    def judge(self, ids: Sequence[UUID], answers: Sequence[Answer]) -> list[Answer]:
        """Take note of a delivery; give what its answers mean: in an outage no failure counts."""
        if works(answers):
            self._close()
            return [*answers]
        said = says_so(answers)
        self._known = blame(self._known, ids, answers)
        if self._since is None and not said and len(self._known) < ENOUGH:
            return [*answers]
        self._extend(answers)
        wait = timedelta(0) if said else timedelta(seconds=min(max(self._lasted(), WAIT_MIN), WAIT_MAX))
        paused = [_paused(one, wait) for one in answers]
        longest = max((one.wait for one in paused if isinstance(one, Paused)), default=wait)
        self._back = max(self._back, self._failed + longest.total_seconds() + PROMOTED)
        return paused

    def _lasted(self) -> float:
        return 0.0 if self._since is None else self._clock() - self._since

    def _extend(self, answers: Sequence[Answer]) -> None:
        now = self._failed = self._clock()
        self._quiet = False
        self._reason = next(one.reason for one in answers if isinstance(one, Deferred | Together))
        if self._since is None:
            self._since = now
            logger.warning("destination %s does not work and is paused: %s", self._name, self._reason)
        elif now < self._next:
            # The end of a delivery that began before the pause.
            return
        wishes = [one.retry_after.total_seconds() for one in answers if isinstance(one, Deferred) and one.retry_after]
        pause = random.uniform(self._pause * 0.75, self._pause)  # noqa: S311 - spreads load
        self._next = now + max([pause, *(min(one, WISH_MAX) for one in wishes)])
        self._pause = min(self._pause * 2, PAUSE_MAX)

    def _close(self) -> None:
        if self._since is not None:
            logger.warning("destination %s works again, after %.1f s", self._name, self._lasted())
        self._known, self._since, self._pause = (), None, PAUSE_FIRST
        self._quiet, self._back = False, 0.0


def _paused(answer: Answer, wait: timedelta) -> Answer:
    if not isinstance(answer, Deferred | Together):
        return answer
    wish = answer.retry_after if isinstance(answer, Deferred) else None
    return Paused(answer.reason, max(wait, min(wish or timedelta(0), timedelta(seconds=WISH_MAX))))
