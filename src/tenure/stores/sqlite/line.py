"""
Who may use the writer connection next.

Callers that find nobody before them take the line and work in their own thread. All others stand in it with a ticket;
the writer thread takes the line, serves many tickets in one commit, and hands the line itself to a ticket that wants a
transaction of its own. Renewals go first. A plain lock would not do: whoever releases it could take it again before a
waiter wakes up, for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from tenure.stores.sqlite.failures import closed
from tenure.yields import Procedure

# Nobody waits longer than this, in seconds, without progress of those before them.
PATIENCE = 5.0


class Ticket:
    """
    One place in the line, of a blocked thread or of an awaiting task.

    Attributes:
        procedure: What to run, or None where the holder wants the line itself.
        since: When it was drawn, monotonic.
        granted: True once the line itself was handed over.
        gone: True where the caller gave up while the ticket was being served.
    """

    __slots__ = ("_gate", "error", "future", "gone", "granted", "loop", "procedure", "since", "value")

    def __init__(self, procedure: Procedure[Any] | None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.procedure = procedure
        self.since = time.monotonic()
        self.value: Any = None
        self.error: BaseException | None = None
        self.granted = False
        self.gone = False
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None
        if loop is None:
            self._gate = threading.Lock()
            self._gate.acquire()
        else:
            self.future = loop.create_future()

    def wait(self) -> Any:
        """Block until the ticket is served."""
        with self._gate:
            pass
        if self.error is not None:
            raise self.error
        return self.value

    def open(self) -> None:
        """Wake a blocked thread."""
        self._gate.release()


def hand_out(tickets: Iterable[Ticket]) -> None:
    """Give served tickets back to those who wait; one wake-up for each event loop, however many tickets it holds."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for ticket in tickets:
        if ticket.loop is None:
            ticket.open()
        else:
            by_loop.setdefault(ticket.loop, []).append(ticket)
    for loop, served in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, served)
        except RuntimeError:
            # The loop was closed meanwhile: nobody is left to be told, and what was committed stays committed.
            continue


def _deliver(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():  # a caller that was cancelled is not told
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.value)


class Watched(Protocol):
    """
    Somebody who holds the line and must let go in time.

    Attributes:
        ends: When the time is over, monotonic.
        owner: The thread that took the line.
    """

    ends: float
    owner: int

    def expire(self) -> None:
        """End what the holder does with the line, and release it."""
        ...


class Line:
    """
    The line and who holds it. All attributes are read and written under `changed`.

    Attributes:
        held: True while somebody uses the writer connection.
        watched: The holder, where it has a deadline.
        paused: True while nobody may begin: a fork or the end is near.
        closed: True after `close`; nobody enters any more.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.held = False
        self.watched: Watched | None = None
        self.paused = False
        self.closed = False
        self._urgent: deque[Ticket] = deque()
        self._ordinary: deque[Ticket] = deque()
        self._progress = time.monotonic()

    def take(self) -> bool:
        """Take the line if nobody holds it or stands in it."""
        with self.changed:
            self._check()
            if self.held or self.paused or self._urgent or self._ordinary:
                return False
            self.held = True
            return True

    def enter(self, ticket: Ticket) -> None:
        """Stand in line."""
        with self.changed:
            self._check()
            urgent = ticket.procedure is not None and ticket.procedure.urgent
            (self._urgent if urgent else self._ordinary).append(ticket)
            self.changed.notify_all()

    def _check(self) -> None:
        if self.closed:
            raise closed()

    def waits(self) -> bool:
        """Tell whether anybody stands in line; under `changed`."""
        return bool(self._urgent or self._ordinary)

    def pop(self) -> Ticket | None:
        """Take the next ticket, which the holder must serve."""
        with self.changed:
            if self._urgent:
                return self._urgent.popleft()
            return self._ordinary.popleft() if self._ordinary else None

    def grant(self, ticket: Ticket) -> bool:
        """Hand the line to a ticket; False where its caller gave up, and the line stays with the one who asks."""
        with self.changed:
            ticket.granted = not ticket.gone
            return ticket.granted

    def leave(self, ticket: Ticket) -> None:
        """Give up a ticket for the line itself, wherever it is by now."""
        with self.changed:
            if ticket.granted:
                self._free()
            elif ticket in self._ordinary:
                self._ordinary.remove(ticket)
            else:
                ticket.gone = True

    def watch(self, holder: Watched) -> None:
        """Have the holder's deadline watched by the writer thread."""
        with self.changed:
            self.watched = holder
            self._progress = time.monotonic()
            self.changed.notify_all()

    def release(self, *, progress: bool = True) -> None:
        """
        Let the next one have the line.

        Args:
            progress: False where the holder could not use it, so that the patience of the others goes on running.
        """
        with self.changed:
            self._free()
            if progress:
                self._progress = time.monotonic()

    def _free(self) -> None:
        self.held = False
        self.watched = None
        # The writer thread sleeps through calls that found the line empty and left it empty.
        if self._urgent or self._ordinary or self.paused or self.closed:
            self.changed.notify_all()

    def patience(self) -> float:
        """Tell until when the first in line is willing to wait, monotonic; under `changed`."""
        heads = [line[0].since for line in (self._urgent, self._ordinary) if line]
        return max(min(heads, default=time.monotonic()), self._progress) + PATIENCE

    def give_up(self) -> list[Ticket]:
        """Take out those whose patience is over; under `changed`."""
        latest = time.monotonic() - PATIENCE
        gone = []
        for line in (self._urgent, self._ordinary):
            while line and max(line[0].since, self._progress) <= latest:
                gone.append(line.popleft())
        return gone

    def pause(self, patience: float) -> bool:
        """Let nobody begin any more and wait for the holder; True when the line is free and stays so."""
        with self.changed:
            self.paused = True
            return self.changed.wait_for(lambda: not self.held, patience)

    def resume(self) -> None:
        """End a pause."""
        with self.changed:
            self.paused = False
            self.changed.notify_all()
