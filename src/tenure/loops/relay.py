"""
The relay: take messages that are due, deliver them, write how that ended, and say truthfully how old the oldest is.

Loops, each supervised, each with a pulse that `health()` reads:

    <destination>  a few lanes for each: claim, deliver, finish; polls with a growing pause, woken early where it can be
    tend           settles deliveries of lost relays, promotes what is due, releases what is held no more
    announce       says which destinations this relay serves, sets aside what nobody serves
    age            how old the oldest undelivered message is; red, and told once a minute, above the limit
    authority      compares the database with its ledger, and raises its counter, as a worker does
    prune          forgets what was delivered long ago

A message is delivered at least once: a relay that dies between a delivery and its ending leaves it to be delivered
again. Receivers know it by its operation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tenure.connectors.destination import Destination
from tenure.errors import Invalid, TenureError, echo
from tenure.flows.drive import run_flow_async
from tenure.flows.relay import relay_round
from tenure.loops.authority import AUTHORITY_EVERY, AuthorityWatch
from tenure.loops.delivery import Delivering, check_destinations
from tenure.loops.process import Process
from tenure.loops.supervisor import Health, HealthFile, Supervisor, within
from tenure.loops.threads import Threads
from tenure.procedures.outbox_operate import Oldest, oldest_message
from tenure.procedures.outbox_upkeep import (
    PASS_MAX,
    announce_relay,
    prune_messages,
    tend_messages,
    withdraw_relay,
)
from tenure.rules.creation import check_text
from tenure.rules.outbox import BACKOFF
from tenure.yields import new_id

if TYPE_CHECKING:
    from tenure.app import Tenure

logger = logging.getLogger("tenure.relay")

TEND_EVERY, AGE_EVERY, ANNOUNCE_EVERY = timedelta(seconds=0.5), timedelta(seconds=1), timedelta(seconds=2)
PRUNE_EVERY = timedelta(minutes=1)
ANNOUNCED_FOR = timedelta(seconds=15)
LEASE = timedelta(seconds=60)
RETENTION = timedelta(days=7)
ALARM_AFTER = timedelta(seconds=10)
# Seconds between two looks at an empty outbox: the first pause, and the longest.
POLL_MIN, POLL_MAX = 0.02, 0.5
LANES = 2
# How much longer than a delivery may take its lease must be.
_MARGIN = timedelta(seconds=15)
# Passes of one loop over what has piled up, so that the others have their turn too.
_PASSES = 20
_TELL_AGAIN = 60.0
_FAREWELL = 1.0
_NOT_RUNNING = {"new": "it was not started", "starting": "it is starting", "stopped": "it has stopped"}


class Relay:
    """
    Deliver an app's messages.

    Use it as `async with app.relay() as relay:` inside a program, or `await relay.main()` as a process of its own.

    Args:
        app: Whose store.
        destinations: What it serves; the app's own when left out.
        lanes: Deliveries at once to each destination; messages that keep an order never overtake each other.
        lease: How long a delivery is this relay's; longer than any destination's timeout.
        backoff: Before the second delivery; doubled each time, with jitter, an hour at most.
        poll: Longest pause between two looks at an empty outbox.
        retention: How long delivered messages, and with them their operations, are kept.
        alarm_after: Health is red when an undelivered message is due for longer.
        grace: How long a stop may wait for deliveries on their way.
        health_file: Written about once a second.
        relay_id: Made from host and process when left out.
    Raises:
        Invalid: NO_DESTINATIONS, DESTINATION_TAKEN, LEASE_TOO_SHORT and others, before anything is claimed.
    """

    def __init__(
        self,
        app: Tenure,
        *,
        destinations: Sequence[Destination] | None = None,
        lanes: int = LANES,
        lease: timedelta = LEASE,
        backoff: timedelta = BACKOFF,
        poll: timedelta = timedelta(seconds=POLL_MAX),
        retention: timedelta = RETENTION,
        alarm_after: timedelta = ALARM_AFTER,
        grace: timedelta = timedelta(seconds=30),
        health_file: str | Path | None = None,
        relay_id: str | None = None,
    ) -> None:
        found = check_destinations(app.destinations if destinations is None else destinations)
        if not found:
            raise Invalid(
                "a relay needs destinations: app.relay(destinations=[...]), or Tenure(..., destinations=[...])",
                code="NO_DESTINATIONS",
            )
        if type(lanes) is not int or lanes < 1:
            raise Invalid(f"lanes must be a whole number from 1, not {echo(lanes)}", code="BAD_ARGUMENT")
        for name, value in (
            ("lease", lease),
            ("backoff", backoff),
            ("poll", poll),
            ("retention", retention),
            ("alarm_after", alarm_after),
        ):
            if not isinstance(value, timedelta) or value <= timedelta(0):
                raise Invalid(f"{name} is a timedelta above zero", code="BAD_DURATION")
        for one in found.values():
            if lease < one.timeout + _MARGIN:
                raise Invalid(
                    f"a lease of {lease} is too short for destination {one.name!r}, whose deliveries may take "
                    f"{one.timeout}; give lease={one.timeout + _MARGIN} or more, or a shorter timeout",
                    code="LEASE_TOO_SHORT",
                )
        self.app = app
        made = f"{socket.gethostname()}:{os.getpid()}:{new_id().hex[-6:]}"
        self.relay_id = check_text("relay_id", made if relay_id is None else relay_id)
        self.grace = grace.total_seconds()
        self._delivering = {name: Delivering(one) for name, one in found.items()}
        self._lanes = lanes
        self._lease = lease
        self._backoff = backoff
        self.poll = poll.total_seconds()
        self._retention = retention
        self._alarm_after = alarm_after
        self._health_path = None if health_file is None else Path(health_file)
        self._supervisor = Supervisor()
        self._draining = False
        self._underway = 0
        self._authority: AuthorityWatch | None = None
        self._alarm: str | None = None
        self._alarm_told = -_TELL_AGAIN
        self._state = "new"

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """
        Open what is needed and start the loops; a destination that cannot be opened now is tried again.

        Raises:
            Invalid: RELAY_STARTED, a relay runs once; LEDGER_REQUIRED; and what the store or the health file refuses.
            Unavailable, Refused: The ledger cannot be read: nobody knows whether this database is the current one.
        """
        if self._state != "new":
            raise Invalid("this relay was started before; make another with app.relay()", code="RELAY_STARTED")
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        self._lines: list[_Lane] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stack = AsyncExitStack()
        try:
            await self._open()
        except BaseException:
            self._state = "stopped"
            await self._supervisor.end()
            await self._stack.aclose()
            raise
        self._state = "running"
        logger.info("relay %s started: destinations=%s", self.relay_id, ",".join(sorted(self._delivering)))

    async def _open(self) -> None:
        stack = self._stack
        shared = await self.app.astore()
        apart = Threads("tenure-relay")
        stack.callback(apart.close)
        blocking = shared.blocking()
        stack.push_async_callback(apart.run, blocking.close)
        # A store of its own: no handler of the same program can keep its connections busy.
        self._store = blocking.awaiting()
        stack.push_async_callback(self._store.close)
        # Before anything is claimed or set aside: a copy would deliver again what its original delivered since.
        self._authority = AuthorityWatch(self._store, apart.run, wake=self._wake)
        await self._authority.start()
        await self._announce()
        stack.push_async_callback(self._withdraw)
        if self._health_path is not None:
            health = HealthFile(self._health_path, self.health)
            health.start()
            stack.push_async_callback(apart.run, health.end)
        listening = blocking.listen(self._wake_soon)
        await apart.run(listening.__enter__)
        stack.push_async_callback(apart.run, partial(listening.__exit__, None, None, None))
        self._start_loops()

    def _start_loops(self) -> None:
        supervise = self._supervisor
        watch = self._authority
        assert watch is not None
        if watch.watches:
            supervise.keep("authority", AUTHORITY_EVERY, watch.step)
        supervise.keep("tend", TEND_EVERY, self._tend)
        supervise.keep("announce", ANNOUNCE_EVERY, self._announce)
        supervise.keep("age", AGE_EVERY, self._look_at_age)
        supervise.keep("prune", PRUNE_EVERY, self._prune)
        for name, one in self._delivering.items():
            self._stack.push_async_callback(one.leave)
            for nth in range(1, self._lanes + 1):
                lane = _Lane(self, one)
                self._lines.append(lane)
                period = max(timedelta(seconds=1), one.destination.timeout, timedelta(seconds=self.poll))
                label = name if self._lanes == 1 else f"{name}:{nth}"
                supervise.follow(supervise.pulse(label, period), lane.step)

    async def stop(self) -> bool:
        """
        Claim nothing new, wait for deliveries on their way within the grace period, and release everything.

        Returns:
            True when every delivery ended and its ending was written, and no destination had to be left behind.
        """
        if self._state != "running":
            return True
        self._state = "stopping"
        self.drain()
        clean = False
        try:
            # Whoever was in a hurry did not wait for what is on its way.
            clean = await within(self._idle.wait(), self.grace) and not self._underway
        finally:
            await self._supervisor.end()
            self._state = "stopped"
            await self._stack.aclose()
        clean = clean and not self.left_behind
        logger.info("relay %s stopped, %s", self.relay_id, "drained" if clean else "with deliveries on their way")
        return clean

    async def main(self) -> int:
        """Run as a process until a signal asks to stop, in the main thread; give the exit status."""
        return await Process(self).run()

    def claim_no_more(self) -> None:
        """Claim nothing new; safe inside a signal handler."""
        self._draining = True

    def drain(self) -> None:
        """Claim nothing new; deliveries on their way go on."""
        self.claim_no_more()
        self._wake()

    def hurry(self) -> None:
        """Wait for deliveries no longer; their leases run out by themselves."""
        self.drain()
        self._idle.set()

    @property
    def worker_id(self) -> str:
        """The relay's id, by the name that a process knows."""
        return self.relay_id

    @property
    def left_behind(self) -> int:
        """How many calls of destinations go on, of those that ignore their cancellation."""
        return sum(one.left for one in self._delivering.values())

    # --- loops --------------------------------------------------------------------------------------------------------

    async def round(self, delivering: Delivering) -> bool:
        """Claim, deliver and finish once; say whether there is reason to do so again at once."""
        assert self._authority is not None
        if self._authority.holds:
            return False
        with delivering.circuit.turn(delivering.destination.batch) as limit:
            if not limit:
                return False
            await delivering.ready()
            if self._draining:
                return False
            found = await self._deliver(delivering, limit)
            if not found:
                delivering.circuit.nothing_due()
            return found

    async def _deliver(self, delivering: Delivering, limit: int) -> bool:
        self._underway += 1
        self._idle.clear()
        try:
            assert self._authority is not None
            flow = relay_round(
                self.relay_id,
                delivering.name,
                limit,
                self._lease,
                self._backoff,
                delivering.deliver,
                seen=self._authority.seen,
            )
            done = await run_flow_async(flow, self._store.run)
        finally:
            self._underway -= 1
            if not self._underway:
                self._idle.set()
        if done.finished is not None and done.finished.stale:
            logger.warning(
                "relay %s lost the lease of %d messages before they were finished; they are delivered again",
                self.relay_id,
                len(done.finished.stale),
            )
        return bool(done.taken) or done.more

    async def _tend(self) -> None:
        for _ in range(_PASSES):
            moved = await self._store.run(tend_messages(PASS_MAX))
            if moved:
                self._wake()
            if moved < PASS_MAX:
                break

    async def _announce(self) -> None:
        if self._draining:
            return
        for _ in range(_PASSES):
            moved = await self._store.run(announce_relay(self.relay_id, list(self._delivering), ANNOUNCED_FOR))
            if moved:
                self._wake()
            if moved < PASS_MAX:
                break

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL):
                await self._store.run(withdraw_relay(self.relay_id))
        except (TenureError, TimeoutError) as error:
            logger.warning("the announcement of %s runs out by itself: %s", self.relay_id, type(error).__name__)

    async def _look_at_age(self) -> None:
        self._judge(await self._store.run(oldest_message()))

    def _judge(self, oldest: Oldest | None) -> None:
        if oldest is None or oldest.age <= self._alarm_after:
            self._alarm = None
            return
        self._alarm = (
            f"a message for {oldest.destination} is due for {oldest.age.total_seconds():.0f} s and not delivered: "
            f"{oldest.state.value}, deliveries begun: {oldest.attempts}; see `tenure outbox`"
        )
        if time.monotonic() - self._alarm_told >= _TELL_AGAIN:
            self._alarm_told = time.monotonic()
            logger.warning("%s", self._alarm)

    async def _prune(self) -> None:
        for _ in range(_PASSES):
            if await self._store.run(prune_messages(self._retention, PASS_MAX)) < PASS_MAX:
                break

    def _wake(self) -> None:
        for lane in self._lines:
            lane.wake.set()

    def _wake_soon(self) -> None:
        """Called from any thread when messages may have arrived."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            logger.debug("woken after the loop was closed")

    async def pause(self, wake: asyncio.Event, longest: float) -> bool:
        """Wait for a wake-up, or for a jittered pause."""
        return await within(wake.wait(), random.uniform(longest / 2, longest))  # noqa: S311 - spreads load

    # --- health -------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Say how the relay is; callable from any thread. One that does not run is not well."""
        loops = self._supervisor.loops()
        troubles = [one.trouble for one in self._delivering.values() if one.trouble is not None]
        problems = (*troubles, *([] if self._alarm is None else [self._alarm]))
        if self._authority is not None:
            problems = (*self._authority.problems, *problems)
        if self._state not in {"running", "stopping"}:
            problems = (*problems, _NOT_RUNNING[self._state])
        ok = bool(loops) and all(one.ok for one in loops.values()) and not problems
        notes = tuple(one.circuit.note for one in self._delivering.values() if one.circuit.note is not None)
        return Health(ok, self.relay_id, self._underway, self._draining, loops, problems, notes)


class _Lane:
    """One of the lines in which deliveries to a destination follow each other."""

    def __init__(self, relay: Relay, delivering: Delivering) -> None:
        self.wake = asyncio.Event()
        self._relay = relay
        self._delivering = delivering
        self.pause = self._shortest = min(POLL_MIN, relay.poll)

    async def step(self) -> None:
        self.wake.clear()
        if await self._relay.round(self._delivering) or await self._relay.pause(self.wake, self.pause):
            self.pause = self._shortest
        else:
            self.pause = min(self.pause * 2, self._relay.poll)
