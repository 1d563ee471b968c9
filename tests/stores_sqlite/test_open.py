"""Opening: URLs, files that are no databases, and files that may not be written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure import Tenure
from tenure.errors import Invalid, TenureError
from tenure.stores import open_async_store, open_store
from tenure.stores.sqlite.connect import check_library, read_url
from tests.stores_sqlite.support import finish, start_child
from tests.stores_sqlite.toy import count_aside, put, toy_store


def code_of(error: pytest.ExceptionInfo[TenureError]) -> str:
    return error.value.code


@pytest.mark.parametrize("url", ["jobs.db", "mysql://host/db", "", "sqlite3:///jobs.db", "postgres+x://host/db"])
def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named(url: str) -> None:
    with pytest.raises(Invalid, match=r"sqlite:///.*postgresql://.*postgres://") as raised:
        open_store(url)
    assert code_of(raised) == "BAD_STORE_URL"
    with pytest.raises(Invalid) as raised:
        asyncio.run(open_async_store(url))
    assert code_of(raised) == "BAD_STORE_URL"


def test_the_url_is_not_repeated_because_it_may_hold_a_password() -> None:
    with pytest.raises(Invalid) as raised:
        open_store("mysql://me:secret@host/db")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://host/jobs.db", "sqlite:///j.db?mode=ro"]
)
def test_a_malformed_sqlite_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="sqlite:///FILE") as raised:
        open_store(url)
    assert code_of(raised) == "BAD_STORE_URL"


def test_three_slashes_are_relative_and_four_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = os.path.realpath(tmp_path) + "/jobs.db"
    assert read_url("sqlite:///jobs.db").path == absolute
    assert read_url(f"sqlite:///{absolute}").path == absolute
    assert read_url("sqlite:///jobs.db").url == f"sqlite:///{absolute}"
    assert read_url("sqlite:///:memory:").path is None
    store = toy_store("sqlite:///jobs.db")
    monkeypatch.chdir("/")
    store.migrate()
    store.close()
    assert (tmp_path / "jobs.db").exists()


def test_a_name_with_odd_characters_is_a_name(tmp_path: Path) -> None:
    with toy_store(f"sqlite:///{tmp_path}/my jobs %41 #1 ü.db") as store:
        store.migrate()
        assert store.run(put("a")) == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["my jobs %41 #1 ü.db"]


def test_the_openers_give_stores_that_are_context_managers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(url) as store:
        assert store.dialect == "sqlite"
        assert store.url == f"sqlite:///{os.path.realpath(tmp_path)}/jobs.db"
        assert not (tmp_path / "jobs.db").exists()
        store.migrate()

    async def main() -> None:
        async with await open_async_store(url) as store:
            assert store.dialect == "sqlite"
            assert await store.pending_migrations() == []

    asyncio.run(main())


def test_a_ledger_inside_the_database_it_watches_is_refused_and_one_beside_it_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for ledger, code in ((url, "LEDGER_NOT_OUTSIDE"), ("", "BAD_ARGUMENT"), ("mysql://h/d", "BAD_STORE_URL")):
        with pytest.raises(Invalid) as raised:
            tenure.open_store(url, authority_ledger=ledger)
        assert code_of(raised) == code
        with pytest.raises(Invalid) as raised:
            asyncio.run(tenure.open_async_store(url, authority_ledger=ledger))
        assert code_of(raised) == code
        with pytest.raises(Invalid) as raised:
            Tenure(url, organization="studio", project="sales", authority_ledger=ledger)
        assert code_of(raised) == code
    with tenure.open_store(url, authority_ledger=f"sqlite:///{tmp_path}/ledger.db") as store:
        assert store.migrate()
        with pytest.raises(Invalid) as raised:
            Tenure(store, organization="studio", project="sales", authority_ledger=tmp_path / "ledger")
        assert code_of(raised) == "BAD_ARGUMENT"
    app = Tenure(url, organization="studio", project="sales", authority_ledger=tmp_path / "ledger")
    assert app.store.pending_migrations() == []
    app.close()
    # Nothing is made by opening.
    assert sorted(path.name for path in tmp_path.iterdir() if "ledger" in path.name) == []


def test_a_database_role_is_not_a_matter_of_sqlite(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="viewer, producer, worker, operator and repairer"):
        open_store(f"sqlite:///{tmp_path}/jobs.db", role="app_role")


def test_a_file_that_is_no_database_is_refused_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database at all, " * 100)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with pytest.raises(Invalid) as raised:
        open_store(url)
    assert code_of(raised) == "NOT_A_DATABASE"
    with pytest.raises(Invalid) as raised:
        asyncio.run(open_async_store(url))
    assert code_of(raised) == "NOT_A_DATABASE"
    (tmp_path / "jobs.db").write_bytes(b"")
    open_store(url).close()


def test_a_missing_folder_is_named_as_the_reason(tmp_path: Path) -> None:
    with toy_store(f"sqlite:///{tmp_path}/nowhere/jobs.db") as store:
        with pytest.raises(Invalid, match="folder") as raised:
            store.migrate()
        assert code_of(raised) == "DATABASE_MISSING"
        (tmp_path / "nowhere").mkdir()
        assert store.migrate()


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with toy_store(url) as store:
        store.migrate()
        for number in range(200):
            store.run(put(f"k{number}", value="x" * 200))
    path = tmp_path / "jobs.db"
    healthy = path.read_bytes()
    path.write_bytes(healthy[:4096] + b"\xff" * (len(healthy) - 4096))
    with toy_store(url) as store:
        with pytest.raises(TenureError, match="damaged") as raised:
            store.run(count_aside())
        assert code_of(raised) == "DATABASE_CORRUPT"
        with pytest.raises(TenureError) as raised:
            store.run(put("a"))
        assert code_of(raised) == "DATABASE_CORRUPT"
    path.write_bytes(healthy)
    with toy_store(url) as store:
        assert store.run(count_aside()) == 200


def test_a_database_that_may_only_be_read_is_told() -> None:
    # Outside of pytest's folders, which other users may not enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        with toy_store(f"sqlite:///{path}") as store:
            store.migrate()
        Path(folder).chmod(0o755)
        path.chmod(0o444)
        child = start_child("as_nobody", f"sqlite:///{path}")
        assert finish(child) == "STORE_READ_ONLY"
        Path(folder).chmod(0o777)
        path.chmod(0o666)
        assert finish(start_child("as_nobody", f"sqlite:///{path}")) == "written"


def test_an_old_library_is_refused() -> None:
    for version in ((3, 34, 1), (3, 8, 0), (2, 99)):
        with pytest.raises(Invalid, match=r"3\.35") as raised:
            check_library(version)
        assert code_of(raised) == "DATABASE_TOO_OLD"
    for version in ((3, 35, 0), (3, 35), (3, 40, 1), (4, 0)):
        check_library(version)
    assert sqlite3.sqlite_version_info >= (3, 35), sys.version


def test_a_database_of_the_users_in_another_journal_mode_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("CREATE TABLE mine (v)")
        assert mine.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with toy_store(f"sqlite:///{path}") as store:
        store.migrate()
    with closing(sqlite3.connect(path)) as mine:
        assert mine.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_sqlite_needs_no_other_driver_and_a_missing_one_is_named(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["psycopg"] = None  # as if it were not installed
import tenure.errors, tenure.stores
tenure.stores.open_store("sqlite:///" + sys.argv[1]).close()
try:
    tenure.stores.open_store("postgresql://localhost/app")
except tenure.errors.Invalid as error:
    print(error.code, error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "jobs.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert said.startswith("MISSING_EXTRA")
    assert "tenure[postgres]" in said
