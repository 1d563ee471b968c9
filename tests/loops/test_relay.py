"""The relay with all its loops, on real databases: what poison, deaths, outages and large backlogs do to it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import AsyncContext, Context, Tenure, outbox
from tenure.errors import Conflict, Invalid
from tenure.outbox import Deferred, Delivered, Delivery, Message, Refused
from tenure.procedures.outbox import add_messages
from tests.loops.posting import add, play, until
from tests.support.tree import ROOT

SOON = timedelta(milliseconds=20)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outbox.db'}"
    found: str = request.getfixturevalue("postgres_databases").create()
    return found


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    made = Tenure(url, organization="studio", project="sales", actor="user:42")
    made.migrate()
    yield made
    made.close()


class Seen(tenure.Destination):
    """Remembers what it was given; `poison` makes the whole call fail."""

    name = "seen"

    def __init__(self) -> None:
        self.got: list[str] = []
        self.down = False

    async def open(self) -> None:
        if self.down:
            raise ConnectionError("nobody is there")

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        if self.down:
            raise ConnectionError("it went away")
        if any("poison" in one.data for one in messages):
            raise ValueError("it cannot be serialised")
        self.got += [one.operation for one in messages]
        return [Delivered()] * len(messages)


def test_a_poison_event_blocks_its_subject_and_nobody_else(app: Tenure, caplog: pytest.LogCaptureFixture) -> None:
    """Failure B92: 1 is poison, 2 is of its subject, 3 to 100 are others."""
    add(app, "1", data={"poison": 1}, subject="X", ordered=True)
    add(app, "2", subject="X", ordered=True)
    add(app, *(str(nth) for nth in range(3, 101)))
    seen = Seen()

    async def story() -> None:
        relay = app.relay(destinations=[seen], backoff=SOON, alarm_after=timedelta(milliseconds=1))
        async with relay:
            began = time.monotonic()
            await until(lambda: len(seen.got) == 98)
            took = time.monotonic() - began
            await until(lambda: "set_aside" in app.service.outbox_stats().states)
            await until(lambda: any("set_aside" in one or "blocked" in one for one in relay.health().problems))
            assert not relay.health().ok
            assert took < 20, "the limit on a quiet machine is two seconds; here it is only not a matter of budgets"
            (poison,) = app.service.list_messages(state="set_aside")
            (behind,) = app.service.list_messages(state="blocked")
            assert (poison.attempt_count, poison.error_code) == (5, "DELIVERIES_USED_UP")
            assert (behind.message.operation, behind.blocked_by) == ("2", poison.message.id)
            app.service.replay_message(poison.message.id, reason="try it again", attempts=1)
            await until(lambda: app.service.list_messages(state="set_aside"))
            again = app.service.get_message(poison.message.id)
            assert (again.message, again.attempt_count) == (poison.message, 6)
            app.service.discard_message(poison.message.id, reason="nobody can read it")
            await until(lambda: "2" in seen.got)
            await until(lambda: relay.health().ok)

    with caplog.at_level(logging.WARNING, logger="tenure.relay"):
        play(app, story)
    assert sorted(map(int, seen.got)) == list(range(2, 101))
    told = [line for line in caplog.messages if "is due for" in line]
    assert len(told) == 1, "once a minute at most"


def test_what_piled_up_while_the_relay_was_off_is_delivered_in_order(app: Tenure) -> None:
    """Failure B93: 5,000 events and nobody there; all of them arrive, in order within their subjects."""
    subjects = 1_000
    for nth in range(5):
        made = [
            outbox.prepare(
                destination="seen",
                type="t",
                data={},
                tenant="studio",
                subject=f"s/{subject}",
                ordered=True,
                operation=f"{subject}:{nth}",
            )
            for subject in range(subjects)
        ]
        for start in range(0, subjects, 500):
            app.store.run(add_messages(made[start : start + 500]))
    seen = Seen()

    async def story() -> None:
        async with app.relay(destinations=[seen]):
            await until(lambda: len(seen.got) >= 5 * subjects)

    play(app, story)
    assert len(seen.got) == len(set(seen.got)) == 5 * subjects
    last: Counter[str] = Counter()
    for operation in seen.got:
        subject, _, nth = operation.partition(":")
        assert int(nth) == last[subject]
        last[subject] += 1
    assert app.service.outbox_stats().unpublished == 0


def test_three_relays_one_of_which_is_killed_deliver_everything(postgres_databases: Any, tmp_path: Path) -> None:
    postgres_url = postgres_databases.create()
    app = Tenure(postgres_url, organization="studio", project="sales", actor="user:42")
    app.migrate()
    book = tmp_path / "book"
    count = 3_000
    add(app, *(f"{nth:05}" for nth in range(count)), destination="book", subject="none")
    command = [sys.executable, "-m", "tests.loops.relays", postgres_url]
    relays = [subprocess.Popen([*command, "one", str(book)], cwd=ROOT)]
    try:
        until_killed = time.monotonic() + 60
        while not (book.exists() and b" one\n" in book.read_bytes()):
            assert time.monotonic() < until_killed
            time.sleep(0.001)
        # Started only now: on a busy machine they could be done before the first one has begun.
        relays += [subprocess.Popen([*command, name, str(book)], cwd=ROOT) for name in ("two", "three")]
        relays[0].kill()
        end = time.monotonic() + 90
        while app.service.outbox_stats().unpublished:
            assert time.monotonic() < end, app.service.outbox_stats()
            time.sleep(0.05)
        for relay in relays[1:]:
            relay.terminate()
        assert [relay.wait(20) for relay in relays[1:]] == [0, 0]
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
    lines = [line.split() for line in book.read_text().splitlines()]
    assert {line[1] for line in lines} == {f"{nth:05}" for nth in range(count)}, "none is missing"
    twice = {operation for operation, times in Counter(line[1] for line in lines).items() if times > 1}
    killed = {line[1] for line in lines if line[2] == "one"}
    assert twice <= killed, "only what the dead one had on its way may come again"
    app.close()


def test_messages_become_jobs_once(app: Tenure) -> None:
    @app.job("invoice")
    def invoice(ctx: Context, payload: dict[str, int]) -> None: ...

    add(app, "quote-17", destination="jobs", type="quote.accepted", data={"quote": 17}, tenant="north", subject="q/17")
    add(app, "quote-18", destination="jobs", type="quote.accepted", data={"quote": "many"})
    add(app, "quote-19", destination="jobs", type="nobody.knows", data={"quote": 19})
    app.enqueue("invoice", {"quote": 1}, key="jobs:quote-20")
    add(app, "quote-20", destination="jobs", type="quote.accepted", data={"quote": 20})
    add(app, "quote-21", destination="jobs", type="quote.accepted", data={"quote": 21})
    jobs = app.own_jobs(kinds={"quote.accepted": "invoice"}, actor="relay:1")

    async def story() -> None:
        async with app.relay(destinations=[jobs]):
            await until(lambda: set(app.service.outbox_stats().states) <= {"set_aside"})
        messages = [one.message for one in app.service.list_messages(state="delivered")]
        # Delivered once more they are the same jobs, and the receipt says so.
        answers = await jobs.deliver(messages)
        ids = {str(job.id) for job in app.service.list_jobs() if job.idempotency_key != "jobs:quote-20"}
        assert all(isinstance(one, Delivered) for one in answers)
        assert {one.receipt["job_id"] for one in answers} == ids

    play(app, story)
    found = {job.idempotency_key: job for job in app.service.list_jobs()}
    assert set(found) == {"jobs:quote-17", "jobs:quote-20", "jobs:quote-21"}
    made = found["jobs:quote-17"]
    assert (made.tenant, made.kind, made.subject) == ("north", "invoice", "q/17")
    identity = tenure.read_execution_identity(made)
    assert identity is not None
    (message,) = app.service.list_messages(state="delivered", tenant="north")
    assert (identity.actor, identity.trace) == ("relay:1", message.message.id.hex)
    reasons = {one.message.operation: one.reason or "" for one in app.service.list_messages(state="set_aside")}
    assert set(reasons) == {"quote-18", "quote-19", "quote-20"}
    assert [reasons[f"quote-{nth}"].partition(":")[0] for nth in (18, 19, 20)] == [
        "PAYLOAD_INVALID",
        "UNKNOWN_KIND",
        "IDEMPOTENCY_MISMATCH",
    ]


def test_a_drained_queue_takes_its_messages_later_and_holds_up_nobody(app: Tenure) -> None:
    @app.job("invoice", queue="bills")
    def invoice(ctx: Context, payload: dict[str, int]) -> None: ...

    @app.job("note", queue="notes")
    def note(ctx: Context, payload: dict[str, int]) -> None: ...

    for nth, kind in enumerate(["invoice", "note", "invoice"]):
        add(app, f"{nth}", destination="jobs", type=kind, data={"quote": nth})
    messages = sorted((one.message for one in app.service.list_messages()), key=lambda one: one.operation)
    jobs = app.own_jobs(actor="relay:1")

    async def story() -> None:
        app.service.drain_queue("bills", actor="op:1")
        late, made, later = await jobs.deliver(messages)
        assert isinstance(late, Deferred)
        assert late.reason.startswith("QUEUE_DRAINING")
        assert (isinstance(made, Delivered), later) == (True, late)
        app.service.resume_queue("bills", actor="op:1")
        assert [isinstance(one, Delivered) for one in await jobs.deliver(messages)] == [True] * 3

    play(app, story)


def test_an_outage_costs_what_waits_no_attempts(app: Tenure) -> None:
    add(app, "1")
    seen = Seen()
    seen.down = True

    async def story() -> None:
        async with app.relay(destinations=[seen]) as relay:
            await until(lambda: relay.health().problems)
            assert relay.health().problems == ("destination seen cannot be opened: ConnectionError",)
            (waits,) = app.service.list_messages()
            assert (waits.state, waits.attempt_count) == ("due", 0)
            seen.down = False
            await until(lambda: seen.got)
            await until(lambda: relay.health().ok)

    play(app, story)


def test_a_backlog_that_nobody_served_comes_back_as_fast_as_it_is_delivered(app: Tenure) -> None:
    class Other(Seen):
        name = "other"

    count = 2_500
    add(app, *(f"{nth}" for nth in range(count)))
    seen = Seen()

    async def story() -> None:
        other = app.relay(destinations=[Other()])
        async with other:
            assert app.service.outbox_stats().states == {"set_aside": count}, "by the first announcement"
            relay = app.relay(destinations=[seen])
            await relay.start()
            assert "set_aside" not in app.service.outbox_stats().states, "by the first announcement"
            await until(lambda: len(seen.got) == count)
            await relay.stop()

    play(app, story)


def test_a_silent_destination_is_not_waited_for(app: Tenure) -> None:
    class Silent(Seen):
        timeout = timedelta(milliseconds=50)

        async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
            await asyncio.Event().wait()
            return []

    add(app, "1", "2", max_attempts=1)

    async def story() -> None:
        async with app.relay(destinations=[Silent()], backoff=SOON):
            await until(lambda: app.service.outbox_stats().states == {"set_aside": 2})

    play(app, story)
    assert "no answer within" in (app.service.list_messages(state="set_aside")[0].reason or "")


def test_answers_that_are_none_count_as_nobody_knows(app: Tenure) -> None:
    class Wrong(Seen):
        async def deliver(self, messages: Sequence[Message]) -> Any:
            return [tenure.Refused("the error of the same name")] * len(messages)

    add(app, "1", max_attempts=1)

    async def story() -> None:
        async with app.relay(destinations=[Wrong()]):
            await until(lambda: app.service.outbox_stats().states == {"set_aside": 1})

    play(app, story)
    assert "tenure.outbox.Delivered" in (app.service.list_messages(state="set_aside")[0].reason or "")


def test_a_stop_waits_for_deliveries_on_their_way(app: Tenure) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    class Slow(Seen):
        async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
            entered.set()
            await go.wait()
            return [Delivered()] * len(messages)

    add(app, "1")

    async def story() -> None:
        relay = app.relay(destinations=[Slow()])
        await relay.start()
        await entered.wait()
        stopping = asyncio.ensure_future(relay.stop())
        await asyncio.sleep(0)
        go.set()
        assert await stopping
        assert not relay.health().ok

    play(app, story)
    assert [one.state.value for one in app.service.list_messages()] == ["delivered"]


@pytest.mark.parametrize(
    "options,code",
    [
        ({"destinations": []}, "NO_DESTINATIONS"),
        ({"destinations": [Seen(), Seen()]}, "DESTINATION_TAKEN"),
        ({"destinations": ["seen"]}, "BAD_DESTINATION"),
        ({"destinations": [Seen()], "lease": timedelta(seconds=30)}, "LEASE_TOO_SHORT"),
        ({"destinations": [Seen()], "lanes": 0}, "BAD_ARGUMENT"),
        ({"destinations": [Seen()], "retention": timedelta(0)}, "BAD_DURATION"),
    ],
)
def test_a_relay_that_cannot_work_is_refused(options: dict[str, Any], code: str) -> None:
    app = Tenure("sqlite:///:memory:", organization="studio", project="sales")
    with pytest.raises(Invalid) as caught:
        app.relay(**options)
    assert caught.value.code == code
    app.relay(destinations=[Seen()])
    app.close()


def test_an_app_that_has_said_its_destinations_refuses_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'outbox.db'}"
    app = Tenure(url, organization="studio", project="sales", destinations=[Seen()])
    app.migrate()
    with pytest.raises(Invalid) as caught:
        app.prepare_message(destination="fax", type="t", data={})
    assert caught.value.code == "UNKNOWN_DESTINATION"
    message = app.prepare_message(destination="seen", type="t", data={}, operation="1")
    assert message.tenant == "studio"
    app.store.run(add_messages([message]))
    with pytest.raises(Conflict):
        app.store.run(add_messages([app.prepare_message(destination="seen", type="other", data={}, operation="1")]))
    app.close()


def test_answers_of_a_destination_are_judged_one_by_one(app: Tenure) -> None:
    class Picky(Seen):
        async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
            kinds: dict[str, Delivery] = {"yes": Delivered(), "no": Refused("never"), "later": Deferred("busy")}
            return [kinds[one.type] for one in messages]

    for kind in ("yes", "no", "later"):
        add(app, kind, type=kind)

    async def story() -> None:
        async with app.relay(destinations=[Picky()]):
            await until(lambda: app.service.outbox_stats().states == {"later": 1, "set_aside": 1})

    play(app, story)


def test_a_message_leaves_with_a_publish_of_either_handler(app: Tenure) -> None:
    fields: dict[str, Any] = {"destination": "seen", "type": "t", "tenant": "studio"}

    @app.job("awaits")
    async def awaits(ctx: AsyncContext, payload: dict[str, int]) -> None:
        async with ctx.publish() as tx:
            added = await tenure.outbox.add(tx, data=payload, operation=ctx.job.idempotency_key, **fields)
            assert added.created

    @app.job("blocks")
    def blocks(ctx: Context, payload: dict[str, int]) -> None:
        with ctx.publish() as tx:
            event = tenure.inbox.IncomingEvent("studio", "came-1", "t", 1, None, {})
            assert tenure.inbox.receive(tx, "blocks", event, "d-1").new
            assert tenure.outbox.add(tx, data=payload, operation=ctx.job.idempotency_key, **fields).created

    @app.job("fails", max_attempts=1)
    def fails(ctx: Context, payload: dict[str, int]) -> None:
        with ctx.publish() as tx:
            tenure.outbox.add(tx, data=payload, operation=ctx.job.idempotency_key, **fields)
            raise tenure.Permanent("the block is left by an error")

    for kind in ("awaits", "blocks", "fails"):
        app.enqueue(kind, {"n": 1}, key=f"{kind}-1")
    seen = Seen()

    async def story() -> None:
        async with app.worker(), app.relay(destinations=[seen]):
            await until(lambda: {job.status.value for job in app.service.list_jobs()} <= {"completed", "failed"})
            await until(lambda: len(seen.got) == 2)

    play(app, story)
    assert sorted(seen.got) == ["awaits-1", "blocks-1"]
    assert len(app.service.list_messages()) == 2


def test_an_idle_relay_looks_as_seldom_as_it_was_told(app: Tenure) -> None:
    seen = Seen()

    async def story() -> None:
        async with app.relay(destinations=[seen], poll=timedelta(seconds=5)) as relay:
            # The pauses are not slept through: they double.
            await until(lambda: min(one.pause for one in relay._lines) > 1)
            assert relay.health().ok
            assert relay.health().loops["seen:1"].period == max(5, seen.timeout.total_seconds())
            # The control: new messages are found long before, where the database can tell.
            add(app, "1")
            await until(lambda: seen.got == ["1"])
        async with app.relay(destinations=[seen], poll=timedelta(milliseconds=5)) as quick:
            assert {one.pause for one in quick._lines} == {0.005}

    play(app, story)
