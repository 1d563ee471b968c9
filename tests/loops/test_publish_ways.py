"""`ctx.publish(connection)`: the fence around writes in the caller's own transaction, on every kind of connection."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import Job, Stop
from tenure import handler as handlers
from tenure.connectors.http import HttpProvider
from tenure.connectors.smtp import SmtpProvider
from tenure.errors import Invalid, TenureError
from tenure.verbs import get_job
from tenure.verbs.scope import Scope
from tests.loops.conftest import expect_none, prepare
from tests.loops.stage import Either, Theatre, ended, until
from tests.loops.test_publish import take_away
from tests.support.joins import WAYS, Django, Sqlite3, Way, django_connection
from tests.support.postgres import Databases

# Nobody listens there, and nobody is to be asked.
NOWHERE = 9
_numbers = itertools.count(1)


class Place:
    """A running worker on one database, whose own table `own` is read beside it."""

    def __init__(self, theatre: Theatre, url: str) -> None:
        self.theatre = theatre
        self.url = url
        # The app's own, so that handlers may use them.
        self.providers = [
            theatre.register(HttpProvider("nowhere", f"http://127.0.0.1:{NOWHERE}/")),
            theatre.register(SmtpProvider("post", "127.0.0.1", NOWHERE, sender="a@example.org")),
        ]

    def values(self, number: int) -> list[int]:
        with self.theatre.app.store.transaction() as tx:
            rows = tx.execute("SELECT value FROM own ORDER BY value").fetchall()
        return [value - number * 100 for (value,) in rows if value // 100 == number]


@pytest.fixture(scope="module")
def places(postgres_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    before = set(threading.enumerate())
    with ExitStack() as stack:
        file: Path = tmp_path_factory.mktemp("publish") / "jobs.db"
        urls = {
            "sqlite": f"sqlite:///{file}",
            "postgresql": stack.enter_context(postgres_databases.lend("loops", prepare)),
        }
        prepare(urls["sqlite"])
        made = {}
        for dialect, url in urls.items():
            theatre = Theatre(url, journal_dir=tmp_path_factory.mktemp("journal"))
            with theatre.app.store.transaction() as tx:
                tx.execute("CREATE TABLE own (value integer)")
            made[dialect] = Place(stack.enter_context(theatre), url)
        yield made
    expect_none(before)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """The workers go on from test to test; `places` looks when they have ended."""


class Play:
    """One way and one test's own numbers in `own`."""

    def __init__(self, way: Any, place: Place) -> None:
        self.way = way
        self.place = place
        self.theatre = place.theatre
        self.style = "awaiting" if way.awaits else "plain"
        self.number = next(_numbers)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self.way.awaits:
            async with self.way.transaction() as connection:
                yield connection
        else:
            with self.way.transaction() as connection:
                yield connection

    @asynccontextmanager
    async def publish(self, ctx: Either, connection: Any) -> AsyncIterator[Any]:
        if self.way.awaits:
            async with ctx.ctx.publish(connection) as tx:
                yield tx
        else:
            with ctx.ctx.publish(connection) as tx:
                yield tx

    async def write(self, connection: Any, value: int) -> None:
        await waited(self.way.write(connection, self.number * 100 + value))

    async def expire(self, ctx: Either, tx: Any) -> None:
        """Let the lease run out, for the eyes of this transaction alone."""
        if self.way.dialect == "sqlite":
            sql = f"UPDATE tenure_lease SET expires_at = 0 WHERE job_id = '{ctx.job.id}'"
        else:
            sql = f"UPDATE tenure.lease SET expires_at = 0 WHERE job_id = '{ctx.job.id}'"
        await waited(tx.execute(sql))

    @property
    def values(self) -> list[int]:
        return self.place.values(self.number)


async def waited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.fixture(params=sorted(WAYS))
def play(request: pytest.FixtureRequest, places: dict[str, Place]) -> Play:
    kind: type[Way] = WAYS[request.param]
    place = places[kind.dialect]
    return Play(kind(place.url), place)


def test_the_current_holder_publishes_in_its_own_transaction(play: Play) -> None:
    made = []

    async def leave(ctx: Either, error: Exception) -> None:
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 8)
            raise error

    async def undo(ctx: Either) -> None:
        async with play.transaction() as connection:
            async with play.publish(ctx, connection):
                await play.write(connection, 9)
            # The end of the block is not the commit: that is the caller's.
            raise KeyError

    async def scene(ctx: Either) -> int:
        app = play.theatre.app
        async with play.transaction() as connection:
            await play.write(connection, 1)
            async with play.publish(ctx, connection) as tx:
                await play.write(connection, 2)
                assert (await waited(tx.run(get_job(Scope(), ctx.job.id)))).id == ctx.job.id
                # Not due, so that this worker does not take it.
                fields = {"key": f"follow-{play.number}", "scheduled_at": datetime(2100, 1, 1, tzinfo=UTC)}
                made.append(await waited(app.join(connection).enqueue("plain", {}, **fields)))
            await play.write(connection, 3)
        with pytest.raises(ZeroDivisionError):
            await leave(ctx, ZeroDivisionError())
        with pytest.raises(KeyError):
            await undo(ctx)
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 4)
        generation: int = ctx.lease.generation
        return generation

    done = play.theatre.play(play.style, scene)
    assert (done.status, done.result, play.values) == ("completed", 1, [1, 2, 3, 4]), done.error_message
    assert play.theatre.app.service.get_job(made[0].job.id).status == "queued"


def test_inside_it_everything_else_is_refused_at_once(play: Play) -> None:
    refused: dict[str, str] = {}

    async def scene(ctx: Either) -> None:
        service = play.theatre.app.service
        http, smtp = play.place.providers

        async def nested() -> None:
            async with play.publish(ctx, None):
                raise AssertionError("a publish inside a publish")

        async def other() -> None:
            joined = play.theatre.app.join(object_of(play, connection))
            await waited(joined.enqueue("plain", {}, key="never"))

        tries: dict[str, Any] = {
            "effect": lambda: ctx.effect("send", http, {}),
            "publish": nested,
            "verb": lambda: ctx.outside(lambda: service.cancel_job(ctx.job.id, reason="no")),
            "other connection": other,
            "http": lambda: http.send({}, "plain:1:send"),
            "smtp": lambda: smtp.send({"to": "b@example.org", "subject": "s", "body": "t"}, "plain:1:send"),
        }
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 1)
            for name, attempt in tries.items():
                try:
                    await waited(attempt())
                except TenureError as error:
                    refused[name] = f"{type(error).__name__} {error.code}"
            await play.write(connection, 2)
        if play.way.awaits:
            # Allowed again: nobody listens there, and that is what they say.
            outcome = await http.send({}, "plain:1:send")
            assert type(outcome).__name__ == "FailedBeforeDispatch"

    done = play.theatre.play(play.style, scene)
    assert (done.status, play.values) == ("completed", [1, 2]), done.error_message
    assert refused == dict.fromkeys(
        ("effect", "publish", "verb", "other connection", "http", "smtp"), "IllegalMove INSIDE_PUBLISH"
    )


def object_of(play: Play, connection: Any) -> Any:
    """Give another connection of the same manner; it is not looked at before the refusal."""

    class Other:
        async def execute(self) -> None:
            raise AssertionError("used")

    return Other() if play.way.awaits else object()


def test_a_stale_worker_leaves_no_trace(play: Play) -> None:
    codes = []

    async def scene(ctx: Either) -> None:
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 1)
        await ctx.outside(lambda: take_away(play.theatre.app, ctx.lease, ctx.job.kind))
        try:
            async with play.transaction() as connection:
                await play.write(connection, 2)
                async with play.publish(ctx, connection):
                    await play.write(connection, 3)
        except Stop as stop:
            codes.append(stop.code)
            raise

    # Before any other of its kind, so that it is this one that is taken away.
    one = play.theatre.start(play.style, scene, priority=9)
    until(lambda: codes, "the refusal")
    assert codes == ["LEASE_LOST"]
    # The current holder is another worker now, and publishes in its turn.
    current: Job = ended(play.theatre.app, one, "claimed")
    assert play.values == [1]
    play.theatre.app.service.revoke_job(current.id, reason="tidy", actor="user:1")


def test_a_lease_that_ends_inside_is_refused_at_the_end(play: Play) -> None:
    codes = []

    async def scene(ctx: Either) -> None:
        if not codes:
            try:
                async with play.transaction() as connection, play.publish(ctx, connection) as tx:
                    await play.write(connection, 1)
                    await play.expire(ctx, tx)
            except Stop as stop:
                codes.append(stop.code)
                raise
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 2)

    one = play.theatre.start(play.style, scene)
    until(lambda: codes, "the refusal")
    assert codes == ["LEASE_LOST"]
    assert play.values == []
    play.theatre.app.service.revoke_job(one.id, reason="tidy", actor="user:1")


def test_a_publish_that_is_late_is_refused_at_the_end(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(ctx: Either) -> None:
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, ctx.job.attempt_count)
            if ctx.job.attempt_count == 2:
                await play.write(connection, 7)

    monkeypatch.setattr(handlers, "PUBLISH_SHARE", 10**9)
    one = play.theatre.start(play.style, scene)
    late = play.theatre.after(one)
    assert (late.status, late.error_code, play.values) == ("queued", "TRANSACTION_TIMEOUT", [])
    monkeypatch.undo()
    assert ended(play.theatre.app, one).status == "completed"
    assert play.values == [2, 7]


def test_on_sqlite_it_may_not_keep_the_others_waiting_for_long(
    places: dict[str, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(WAYS["sqlite3"](places["sqlite"].url), places["sqlite"])
    store = play.theatre.app.store
    assert store.block_max == timedelta(seconds=5)
    monkeypatch.setattr(type(store), "block_max", timedelta(microseconds=1))

    async def scene(ctx: Either) -> None:
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, ctx.job.attempt_count)

    one = play.theatre.start(play.style, scene)
    assert play.theatre.after(one).error_code == "TRANSACTION_TIMEOUT"
    monkeypatch.undo()
    assert ended(play.theatre.app, one).status == "completed"
    assert play.values == [2]


def test_what_commits_each_statement_is_refused(play: Play) -> None:
    async def scene(ctx: Either) -> str:
        try:
            if play.way.awaits:
                async with play.way.autocommit() as connection, play.publish(ctx, connection):
                    return "entered"
            with play.way.autocommit() as connection, ctx.ctx.publish(connection):
                return "entered"
        except Invalid as error:
            return error.code

    done = play.theatre.play(play.style, scene)
    assert (done.status, done.result) == ("completed", "AUTOCOMMIT"), done.error_message


def test_a_blocking_connection_is_refused_in_an_async_handler(play: Play) -> None:
    """It would stop the worker's loop; but for sqlite3, which has no other manner and whose calls are short."""
    if play.way.awaits:
        return

    async def enter(ctx: Either, connection: Any) -> None:
        async with ctx.ctx.publish(connection):
            await play.write(connection, 1)

    async def scene(ctx: Either) -> str:
        if isinstance(play.way, Django):  # it refuses to work on a loop at all
            with pytest.raises(Invalid) as caught:
                await enter(ctx, django_connection(play.way.url, "shop"))
            return caught.value.code
        with play.way.transaction() as connection:
            try:
                await enter(ctx, connection)
            except Invalid as error:
                return error.code
        return "allowed"

    done = play.theatre.play("awaiting", scene)
    expected = "allowed" if type(play.way) is Sqlite3 else "CANNOT_JOIN"
    assert (done.status, done.result) == ("completed", expected), done.error_message
    assert play.values == ([1] if expected == "allowed" else [])


def test_a_wait_of_ones_own_is_not_refused_and_ends_late(places: dict[str, Place]) -> None:
    """What the library cannot see it does not refuse; the deadline is what is left."""
    play = Play(WAYS["psycopg"](places["postgresql"].url), places["postgresql"])

    async def scene(ctx: Either) -> None:
        async with play.transaction() as connection, play.publish(ctx, connection):
            await play.write(connection, 1)
            time.sleep(0.7)  # noqa: ASYNC251 - longer than a third of the lease, and truly blocking

    one = play.theatre.start("plain", scene, "short")
    late = play.theatre.after(one)
    assert (late.error_code, play.values) == ("TRANSACTION_TIMEOUT", [])
    play.theatre.app.service.cancel_job(one.id, reason="tidy")
