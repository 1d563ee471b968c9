"""The line before the writer: who is next, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from tenure.errors import Invalid
from tenure.stores.sqlite import line, writer
from tenure.stores.sqlite.line import Line, Ticket, hand_out
from tenure.stores.sqlite.store import SqliteStore
from tests.stores_sqlite.support import Background
from tests.stores_sqlite.toy import async_toy_store, keys_aside, put, put_urgently


def test_the_line_is_taken_only_where_nobody_is_before() -> None:
    here = Line()
    assert here.take()
    assert not here.take()
    here.enter(Ticket(None))
    here.release()
    assert not here.take()
    assert here.pop() is not None
    assert here.take()


def test_a_ticket_that_leaves_is_gone_from_wherever_it_was() -> None:
    here = Line()
    standing, served, granted = Ticket(None), Ticket(None), Ticket(None)
    for ticket in (standing, served, granted):
        here.enter(ticket)
    here.held = True
    here.leave(standing)
    assert here.pop() is served
    here.leave(served)  # just when its turn comes
    assert not here.grant(served)
    assert here.held  # whoever wanted to hand the line over still has it
    assert here.pop() is granted
    assert here.grant(granted)
    here.leave(granted)
    assert not here.held
    assert here.pop() is None


def test_urgent_tickets_are_first_and_each_kind_keeps_its_order() -> None:
    here = Line()
    tickets = [Ticket(put("a")), Ticket(put_urgently("b")), Ticket(put("c")), Ticket(put_urgently("d"))]
    for ticket in tickets:
        here.enter(ticket)
    assert [here.pop() for _ in range(5)] == [tickets[1], tickets[3], tickets[0], tickets[2], None]
    for ticket in tickets:
        assert ticket.procedure is not None
        ticket.procedure.script().close()


def test_patience_counts_from_the_last_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "PATIENCE", 0.2)
    here = Line()
    here.take()
    old, new = Ticket(None), Ticket(None)
    old.since -= 10
    here.enter(old)
    here.enter(new)
    assert here.give_up() == []  # the line itself is young: somebody was served a moment ago
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        pass
    here.release(progress=False)
    new.since = time.monotonic()
    assert here.give_up() == [old]
    here.release()
    assert here.give_up() == []


def test_a_closed_line_lets_nobody_in() -> None:
    here = Line()
    here.closed = True
    for use in (here.take, lambda: here.enter(Ticket(None))):
        with pytest.raises(Invalid) as raised:
            use()
        assert raised.value.code == "STORE_CLOSED"


def test_a_pause_waits_for_the_holder_and_keeps_others_out() -> None:
    here = Line()
    assert here.take()
    assert not here.pause(0.01)
    here.resume()
    pausing = Background(here.pause, 30.0)
    with here.changed:
        assert here.changed.wait_for(lambda: here.paused, 30) or here.paused
    here.release()
    assert pausing.result()
    assert not here.take()
    here.resume()
    assert here.take()


def test_tickets_of_one_loop_are_handed_out_together() -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        tickets = [Ticket(None, loop) for _ in range(3)]
        tickets[0].value = "value"
        tickets[1].error = LookupError("failed")
        futures = [ticket.future for ticket in tickets]
        assert futures[2] is not None
        futures[2].cancel()
        hand_out(tickets)
        return await asyncio.gather(*[one for one in futures if one is not None], return_exceptions=True)

    value, error, cancelled = asyncio.run(main())
    assert value == "value"
    assert isinstance(error, LookupError)
    assert isinstance(cancelled, asyncio.CancelledError)


def test_a_task_cancelled_at_the_very_moment_of_its_turn_lets_go(url: str) -> None:
    async def main() -> list[str]:
        async with async_toy_store(url) as store:
            await store.migrate()
            here = store._engine.line
            assert here.take()
            waiting = asyncio.ensure_future(store._engine.line_async())
            await asyncio.sleep(0)
            assert here.waits()
            here.release()
            # The writer thread hands the line over while this loop is kept busy and cannot tell the task.
            end = time.monotonic() + 30
            while here.waits() and time.monotonic() < end:
                pass
            with here.changed:
                assert not here.waits()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await store.run(put("after")) == "after"
            return await store.run(keys_aside())

    assert asyncio.run(main()) == ["after"]


def test_a_store_that_used_the_lock_for_a_while_leaves_a_gap_where_others_want_it(store: SqliteStore) -> None:
    store.run(put("a"))
    own = store._engine.writer

    def began_anew(used_for: float, *, contended: bool) -> bool:
        now = time.monotonic()
        own._contended_until = now + 60 if contended else 0.0
        own._let_go = now + 60  # no gap of its own accord, however slow this machine is
        own._slice_began = now - used_for
        own._leave_gap()
        return own._slice_began > now - used_for

    assert not began_anew(-60.0, contended=True)
    assert began_anew(writer._SLICE * 2, contended=True)
    assert not began_anew(0.0, contended=False)  # half a second is allowed, more than this machine stands still
    assert began_anew(writer._SLICE_ALONE * 2, contended=False)
    # Whoever tries again and again for the lock finds the gap.
    assert writer._GAP > writer.PAUSE_LONGEST
