"""The time of a store: the host's, never backwards, not even over a restart."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure.errors import Invalid
from tenure.stores.sqlite.clock import HostClock
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import Script, Statement, procedure
from tests.stores_sqlite.support import Background, statements_of
from tests.stores_sqlite.toy import count, instant, instant_aside, put, put_many, toy_store

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Hands:
    """A host whose clocks are turned by hand."""

    def __init__(self) -> None:
        self.wall = 1_000_000 * SECOND
        self.steady = 0
        self.clock = HostClock(lambda: self.wall * 1000, lambda: self.steady * 1000)

    def advance(self, us: int) -> None:
        self.wall += us
        self.steady += us


class SetClock:
    def __init__(self, now: datetime) -> None:
        self.at = now

    def now(self) -> datetime:
        return self.at


def set_last_instant(path: Path, us: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT OR REPLACE INTO tenure_meta VALUES ('last_instant', ?)", (str(us),))
        connection.commit()


def last_instant(path: Path) -> int | None:
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT value FROM tenure_meta WHERE key = 'last_instant'").fetchone()
        return None if row is None else int(row[0])


def test_it_is_the_hosts_in_utc_microseconds(either: SqliteStore) -> None:
    before = time.time_ns() // 1000
    found = [either.run(instant()), either.run(instant_aside())]
    after = time.time_ns() // 1000
    assert before <= found[0] <= found[1] <= after


def test_it_is_read_anew_for_every_statement(either: SqliteStore) -> None:
    @procedure
    def twice() -> Script[tuple[int, int]]:
        ((first,),) = yield Statement("clock")
        yield Statement("spin", {"turns": 20_000})
        ((second,),) = yield Statement("clock")
        return first, second

    first, second = either.run(twice())
    assert first < second


def test_it_never_goes_backwards_among_threads() -> None:
    clock = HostClock()

    def work() -> bool:
        found = [clock.now() for _ in range(5000)]
        return found == sorted(found)

    assert [call.result() for call in [Background(work) for _ in range(4)]] == [True] * 4


def test_a_host_that_is_set_back_makes_it_run_slowly_until_it_has_caught_up() -> None:
    hands = Hands()
    start = hands.clock.now()
    hands.wall -= 10 * SECOND
    assert hands.clock.now() == start
    hands.advance(4 * SECOND)
    assert hands.clock.now() == start + 2 * SECOND
    hands.advance(16 * SECOND)
    assert hands.clock.now() == start + 10 * SECOND
    hands.advance(10 * SECOND)
    assert hands.clock.now() == hands.wall == start + 20 * SECOND


def test_a_jump_of_more_than_an_hour_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    hands.clock.now()
    with caplog.at_level(logging.WARNING, logger="tenure.store"):
        hands.wall -= HOUR - SECOND
        hands.clock.now()
        assert caplog.records == []
        hands.wall -= 10 * SECOND
        for _ in range(5):
            hands.advance(SECOND)
            hands.clock.now()
        assert [record.name for record in caplog.records] == ["tenure.store"]
        assert "3608 seconds behind" in caplog.text
        hands.advance(3 * HOUR)
        assert hands.clock.now() == hands.wall
        hands.wall -= 2 * HOUR
        hands.clock.now()
        assert len(caplog.records) == 2


def test_it_is_never_less_than_the_last_instant_in_the_file(
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with toy_store(url) as store:
        store.migrate()
        last = store.run(instant())
    ahead = last + 2 * HOUR
    set_last_instant(tmp_path / "toy.db", ahead)
    with toy_store(url) as store:
        assert store.run(instant_aside()) >= ahead
        assert store.run(instant()) >= ahead
        store.run(put("a"))
    kept = last_instant(tmp_path / "toy.db")
    assert kept is not None
    assert kept >= ahead
    assert len([record for record in caplog.records if record.name == "tenure.store"]) == 1


def test_another_process_raises_the_floor_of_one_that_runs(store: SqliteStore, tmp_path: Path) -> None:
    first = store.run(instant())
    set_last_instant(tmp_path / "toy.db", first + HOUR)
    assert store.run(instant()) >= first + HOUR


def test_an_instant_that_was_written_is_kept_with_it(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "toy.db"
    store.run(put("a"))
    with closing(sqlite3.connect(path)) as connection:
        (at,) = connection.execute("SELECT at FROM tenure_note").fetchone()
    assert last_instant(path) == at
    with store.transaction() as tx:
        tx.run(put("b"))
    with closing(sqlite3.connect(path)) as connection:
        (later,) = connection.execute("SELECT max(at) FROM tenure_note").fetchone()
    assert last_instant(path) == later > at
    with closing(sqlite3.connect(path, isolation_level=None)) as mine:
        mine.execute("BEGIN")
        store.join(mine).run(put("c"))
        mine.execute("COMMIT")
        (latest,) = mine.execute("SELECT max(at) FROM tenure_note").fetchone()
    assert last_instant(path) == latest > later


def test_it_is_kept_once_for_each_commit_and_not_for_idle_ones(store: SqliteStore) -> None:
    with statements_of(store) as seen:
        store.run(put_many(["a", "b", "c"]))
    assert len([one for one in seen if "last_instant" in one and one.startswith("INSERT")]) == 1
    with statements_of(store) as seen:
        store.run(instant())
        store.run(count())
    assert [one for one in seen if "last_instant" in one and one.startswith("INSERT")] == []


def test_a_clock_of_the_callers_replaces_it_entirely(url: str, tmp_path: Path) -> None:
    hands = SetClock(datetime(2001, 2, 3, 4, 5, 6, 7, tzinfo=UTC))
    with toy_store(url, clock=hands) as store:
        store.migrate()
        expected = 981_173_106_000_007
        assert (store.run(instant()), store.run(instant_aside())) == (expected, expected)
        hands.at -= timedelta(days=1)
        assert store.run(instant()) == expected - 24 * HOUR
        store.run(put("a"))
        hands.at = datetime(2001, 2, 3)  # noqa: DTZ001 - a naive one is what must be refused
        with pytest.raises(Invalid, match="naive"):
            store.run(instant())
    assert last_instant(tmp_path / "toy.db") is None
