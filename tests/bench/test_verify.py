"""A run that lost a job, ran one twice or left one unfinished is no measurement."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bench.long import check_distinct
from bench.protocol import NOOP, STEP, Adapter, verify
from bench.store import Eye
from bench.verify import Unverified, check_ran, check_stored

ADAPTER = Adapter(
    "none",
    lambda _: None,
    lambda _url, _mode: pytest.fail("nothing is enqueued here"),
    lambda *_: None,
    left="SELECT count(*) FROM {}job WHERE NOT done",
    done={"jobs": "SELECT count(*), count(DISTINCT n) FROM {}job WHERE done"},
    steps={"steps": "SELECT count(*), count(DISTINCT n) FROM {}step"},
    prefixes=("never.", "my_"),
)


def test_every_job_once_is_verified() -> None:
    check_ran(3, [2, 0, 1])


@pytest.mark.parametrize(
    "ran,words",
    [
        ([0, 2], "1 never ran (1)"),
        ([0, 1, 1, 2], "1 ran twice (1)"),
        ([0, 1, 2, 3], "1 were never enqueued (3)"),
        ([0, 0, 2], "1 never ran (1), 1 ran twice (0)"),
        ([], "3 never ran (0, 1, 2)"),
    ],
)
def test_a_lost_a_doubled_and_a_strange_job_are_refused(ran: list[int], words: str) -> None:
    with pytest.raises(Unverified) as refused:
        check_ran(3, ran)
    assert str(refused.value) == f"of 3 jobs {words}"


def test_a_long_list_is_cut() -> None:
    with pytest.raises(Unverified) as refused:
        check_ran(100, range(50))
    assert "50 never ran (50, 51, 52, 53, 54, ...)" in str(refused.value)


@pytest.mark.parametrize("found", [(2, 2), (3, 2), (4, 3), (0, 0)])
def test_the_database_must_have_one_row_of_each_job(found: tuple[int, int]) -> None:
    check_stored(3, "outcomes", (3, 3))
    with pytest.raises(Unverified, match=rf"outcomes: {found[0]} rows of {found[1]} jobs"):
        check_stored(3, "outcomes", found)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[sqlite3.Connection, Eye]:
    path = tmp_path / "seen.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("CREATE TABLE my_job (n, done); CREATE TABLE my_step (n);")
    connection.executemany("INSERT INTO my_job VALUES (?, true)", [(n,) for n in range(5)])
    return connection, Eye(f"sqlite:///{path}", ADAPTER.prefixes)


def test_handlers_and_database_must_both_agree(stored: tuple[sqlite3.Connection, Eye]) -> None:
    connection, eye = stored
    reports = [{"ran": [0, 1, 2]}, {"ran": [4, 3]}]
    verify(ADAPTER, eye, 5, NOOP, reports)
    with pytest.raises(Unverified, match="1 ran twice"):
        verify(ADAPTER, eye, 5, NOOP, [*reports, {"ran": [3]}])
    connection.execute("UPDATE my_job SET done = false WHERE n = 3")
    with pytest.raises(Unverified, match="jobs: 4 rows of 4 jobs"):
        verify(ADAPTER, eye, 5, NOOP, reports)
    eye.close()
    connection.close()


def test_steps_are_held_to_the_same(stored: tuple[sqlite3.Connection, Eye]) -> None:
    connection, eye = stored
    reports = [{"ran": list(range(5))}]
    with pytest.raises(Unverified, match="steps: 0 rows"):
        verify(ADAPTER, eye, 5, STEP, reports)
    connection.executemany("INSERT INTO my_step VALUES (?)", [(n,) for n in range(5)])
    verify(ADAPTER, eye, 5, STEP, reports)
    connection.execute("INSERT INTO my_step VALUES (4)")
    with pytest.raises(Unverified, match="steps: 6 rows of 5 jobs"):
        verify(ADAPTER, eye, 5, STEP, reports)
    eye.close()
    connection.close()


def test_a_part_of_a_backlog_is_verified_too() -> None:
    check_distinct([7, 9, 8], 3)
    with pytest.raises(Unverified, match="1 ran twice"):
        check_distinct([7, 9, 9], 3)
    with pytest.raises(Unverified, match="3 jobs ran and 2 are finished"):
        check_distinct([7, 9, 8], 2)
