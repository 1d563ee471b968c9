"""What an operator reads: the first thing first, one line for each failure, no text that nobody meant to paste."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

import tenure
from tenure.faces.cli.main import main
from tenure.faces.cli.options import masked
from tests.support.proxy import Proxy

SECRET, PASSWORD = "CANARY-of-a-handler", "S3cr3t-CANARY"
APP = f"""
import os
from datetime import timedelta
from tenure import AsyncContext, Permanent, Tenure

app = Tenure(os.environ.get("URL", "sqlite:///jobs.db"), organization="studio", project="sales", actor="user:42")


@app.job("greet")
async def greet(ctx: AsyncContext, payload: dict) -> str:
    return payload["name"]


@app.job("fail", max_attempts=2, backoff_base=timedelta(hours=1))
async def fail(ctx: AsyncContext, payload: dict) -> str:
    raise ValueError("{SECRET} " + "x" * 10_000)


@app.job("refuse")
async def refuse(ctx: AsyncContext, payload: dict) -> str:
    raise Permanent("{SECRET}")
"""
DIGEST = "v1:" + "6fbecc28922dc28eb9f107bfcea9efedac4ff3752c6ef802ca26927af8caad01"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app, and no store yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("TENURE_STORE", "TENURE_ACTOR", "URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


def command(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from tenure.faces.cli.main import main; main()", *words],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def worker(folder: Path, *words: str, **env: str) -> Iterator[Callable[[], str]]:
    """Run a worker and give a function that reads what it has said on stderr so far."""
    said = folder / "worker.err"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", "from tenure.faces.cli.main import main; main()", "worker", "app:app", *words],
            cwd=folder,
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=out,
        )
    try:
        yield lambda: said.read_text(encoding="utf-8")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def well(folder: Path) -> bool:
    """Whether the worker says so, and every loop of it has succeeded."""
    path = folder / "health.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ok": False}
    return bool(told["ok"]) and all(one["error"] is None for one in told["loops"].values())


def until(look: Callable[[], Any], what: str) -> Any:
    """Look again until there is something, and give it."""
    for _ in range(800):
        if found := look():
            return found
        signal.sigtimedwait([], 0.05)
    raise AssertionError(f"waited in vain for {what}")


# --- the first thing said ---------------------------------------------------------------------------------------------


def test_a_missing_schema_is_the_first_thing_a_worker_says(folder: Path) -> None:
    missing = command(folder, "worker", "app:app")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == (
        "tenure: there is no database file at the store URL yet; run `tenure migrate --store sqlite:///jobs.db` "
        "[SCHEMA_MISSING]\n"
    )
    elsewhere = command(folder, "worker", "app:app", "--json", TENURE_STORE="sqlite:///my jobs.db")
    assert (elsewhere.returncode, elsewhere.stderr) == (1, "")
    told = json.loads(elsewhere.stdout)
    assert told["error"] == "SCHEMA_MISSING"
    # The very command that it names does what is missing.
    words = re.search(r"tenure (migrate --store) '(.+)'`", told["message"])
    assert words is not None
    assert command(folder, *words[1].split(), words[2]).returncode == 0
    assert (folder / "my jobs.db").exists()
    with worker(folder, "--store", "sqlite:///my jobs.db") as said:
        line = until(said, "the worker to say that it runs")
        assert line.startswith("worker ")


def test_a_newer_schema_is_the_first_thing_a_worker_says(folder: Path) -> None:
    assert command(folder, "migrate", "--store", "sqlite:///jobs.db").returncode == 0
    other = sqlite3.connect(folder / "jobs.db")
    with other:
        other.execute(
            "UPDATE tenure_migration SET version = 99 WHERE version = (SELECT max(version) FROM tenure_migration)"
        )
    other.close()
    newer = command(folder, "worker", "app:app")
    assert newer.returncode == 1
    (line,) = newer.stderr.splitlines()
    assert line.startswith("tenure: the database has schema version 99")
    assert line.endswith("[SCHEMA_NEWER]")


def test_a_database_that_is_not_there_is_one_line(folder: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"postgresql://bob:{PASSWORD}@127.0.0.1:{nobody.getsockname()[1]}/jobs"
        gone = command(folder, "worker", "app:app", URL=url)
    assert gone.returncode == 1
    (line,) = gone.stderr.splitlines()
    assert line.endswith("[UNREACHABLE]")
    assert PASSWORD not in gone.stdout + gone.stderr


def test_a_schema_missing_in_postgresql_names_the_url_without_its_password(
    folder: Path, postgres_database: str
) -> None:
    parts = urlsplit(postgres_database)
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:{PASSWORD}@{parts.hostname}:{parts.port}"))
    for said in (command(folder, "worker", "app:app", URL=url), command(folder, "jobs", "list", "--store", url)):
        assert said.returncode == 1
        (line,) = said.stderr.splitlines()
        shown = urlunsplit(parts._replace(netloc=f"{parts.username}:***@{parts.hostname}:{parts.port}"))
        assert f"run `tenure migrate --store '{shown}'`" in line
        assert PASSWORD not in line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u:p@h:5432/d?sslmode=require", "postgresql://u:***@h:5432/d?sslmode=require"),
        ("postgresql://u:p@ss:w@h/d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?user=u&PassWord=p&x=1", "postgresql://h/d?user=u&PassWord=***&x=1"),
    ],
)
def test_a_password_is_masked_and_the_rest_is_as_it_was_given(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_a_provider_that_the_app_does_not_have_is_found_when_the_worker_starts(folder: Path) -> None:
    (folder / "app.py").write_text(
        APP
        + '\n\n@app.job("mail", providers=["mailer"])\nasync def mail(ctx: AsyncContext, payload: dict) -> None: ...\n',
        encoding="utf-8",
    )
    assert command(folder, "migrate", "--store", "sqlite:///jobs.db").returncode == 0
    refused = command(folder, "worker", "app:app")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "kind 'mail' declares provider 'mailer', which this app does not have" in line
    assert "Registered: none [UNKNOWN_PROVIDER]" in line
    # The control: the other kinds of the same app.
    with worker(folder, "--kind", "greet") as said:
        assert until(said, "the worker to say that it runs").startswith("worker ")


# --- failures, by ids -------------------------------------------------------------------------------------------------


def test_every_failed_attempt_is_one_line_without_texts(folder: Path) -> None:
    assert command(folder, "migrate", "--store", "sqlite:///jobs.db").returncode == 0
    for kind in ("fail", "refuse", "greet"):
        assert command(folder, "enqueue", "app:app", kind, '{"name": "Ada"}').returncode == 0
    store = tenure.open_store(f"sqlite:///{folder / 'jobs.db'}")
    try:
        service = tenure.DurableJobService(store)

        def ended() -> dict[str, tenure.Job] | None:
            jobs = {job.kind: job for job in service.list_jobs()}
            done = jobs["greet"].status == "completed" and jobs["refuse"].status == "failed"
            return jobs if done and jobs["fail"].error_code else None

        with worker(folder) as said:
            jobs = until(ended, "the jobs to end")
            lines = until(lambda: [x for x in said().splitlines()[1:] if len(said().splitlines()) >= 3], "the lines")
        start = "WARNING tenure.worker attempt failed:"
        again = f"{jobs['fail'].run_at:%Y-%m-%dT%H:%M:%SZ}"
        assert set(lines) == {
            f"{start} kind=fail job={jobs['fail'].id} attempt=1/2 code=HANDLER_ERROR next=retry at {again}",
            f"{start} kind=refuse job={jobs['refuse'].id} attempt=1/3 code=PERMANENT next=failed",
        }
        assert len(lines) == 2
        assert SECRET not in said()
        # The text itself is kept, bounded, with the job.
        message = jobs["fail"].error_message or ""
        assert message.startswith(f"ValueError: {SECRET}")
        assert len(message) <= 500
    finally:
        store.close()
    _lists_hide_what_show_shows(folder, str(jobs["fail"].id))


def _lists_hide_what_show_shows(folder: Path, job_id: str) -> None:
    store = {"TENURE_STORE": "sqlite:///jobs.db"}
    for words in (("jobs", "list"), ("jobs", "list", "--json"), ("jobs", "list", "--phase", "READY")):
        listed = command(folder, *words, **store)
        assert "HANDLER_ERROR" in listed.stdout
        assert SECRET not in listed.stdout
    assert SECRET in command(folder, "jobs", "show", job_id, **store).stdout
    shown = json.loads(command(folder, "jobs", "show", job_id, "--json", **store).stdout)
    assert SECRET in shown["error_message"]
    assert SECRET not in json.dumps(shown["events"])


def test_a_database_that_goes_away_is_said_once_and_so_is_its_return(folder: Path, postgres_database: str) -> None:
    assert command(folder, "migrate", "--store", postgres_database).returncode == 0
    words = ("--sweep-every", "1", "--health-file", "health.json")
    with Proxy(postgres_database) as proxy, worker(folder, *words, URL=proxy.url) as said:
        until(lambda: well(folder), "the worker to be well")
        proxy.refusing = True
        proxy.reset()
        until(lambda: "does not answer" in said(), "the outage to be noticed")
        signal.sigtimedwait([], 2.0)  # long enough for every loop, and the pool, to have tried again
        proxy.refusing = False
        until(lambda: "answers again" in said(), "the return to be noticed")
        until(lambda: well(folder), "the worker to be well again")
    protection, *told = said().splitlines()[1:]
    assert protection.startswith("WARNING tenure.worker no authority ledger is configured")
    assert [re.sub(r"code=\w+|[\d.]+ s$", "X", line) for line in told] == [
        "WARNING tenure.worker the database does not answer: X; it is asked again until it does",
        "WARNING tenure.worker the database answers again, after X",
    ]


# --- errors and tables ------------------------------------------------------------------------------------------------


def test_only_rows_of_a_file_are_numbered(folder: Path) -> None:
    assert command(folder, "migrate", "--store", "sqlite:///jobs.db").returncode == 0
    alone = command(folder, "enqueue", "app:app", "greet", "[1]")
    assert alone.stderr == "tenure: a payload is a JSON object [PAYLOAD_INVALID]\n"
    assert "row" not in command(folder, "enqueue", "app:app", "greet", '{"name": NaN}').stderr
    (folder / "rows.jsonl").write_text('{"name": "Ada"}\n\n[1]\n', encoding="utf-8")
    rows = command(folder, "enqueue", "app:app", "greet", "--from", "rows.jsonl")
    assert rows.stderr == "tenure: row 2: a payload is a JSON object [PAYLOAD_INVALID]\n"
    (folder / "rows.jsonl").write_text('{"name": "Ada"}\n{"name": NaN}\n', encoding="utf-8")
    assert command(folder, "enqueue", "app:app", "greet", "--from", "rows.jsonl").stderr.startswith("tenure: row 2: ")
    # The control, and nothing was written before.
    (folder / "rows.jsonl").write_text('{"name": "Ada"}\n{"name": "Eve"}\n', encoding="utf-8")
    assert command(folder, "enqueue", "app:app", "greet", "--from", "rows.jsonl").stdout.startswith(
        "2 created, 0 known"
    )


def test_a_digest_is_cut_for_a_terminal_and_for_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{folder / 'jobs.db'}"
    with tenure.open_store(url) as store:
        store.migrate()
        for key in (DIGEST, "mine-" + DIGEST[3:]):
            tenure.DurableJobService(store).create_job(
                organization="o", project="p", idempotency_key=key, kind="k", payload={}
            )

    def listed(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tenure", "jobs", "list", "--store", url, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    assert DIGEST in listed()
    assert DIGEST in listed("--json")
    monkeypatch.setenv("COLUMNS", "200")
    terminal = Terminal()
    with redirect_stdout(terminal):
        assert listed() == ""
    shown = terminal.getvalue()
    assert f"{DIGEST[:15]}\N{HORIZONTAL ELLIPSIS}" in shown
    assert DIGEST not in shown
    # A key of somebody's own is never cut.
    assert "mine-" + DIGEST[3:] in shown
    terminal = Terminal()
    with redirect_stdout(terminal):
        listed("--json")
    assert DIGEST in terminal.getvalue()


def test_a_refusal_has_no_note_about_our_insides(folder: Path) -> None:
    with tenure.open_store(f"sqlite:///{folder / 'jobs.db'}") as store:
        store.migrate()
        service = tenure.DurableJobService(store)
        given = {"organization": "o", "project": "p", "idempotency_key": "k", "kind": "k"}
        service.create_job(**given, payload={})
        with pytest.raises(tenure.errors.Conflict) as refused:
            service.create_job(**given, payload={"n": 1})
        assert not hasattr(refused.value, "__notes__")


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """The program sets the levels of loggers of this process."""
    before = {name: logging.getLogger(name).level for name in ("httpx", "psycopg.pool", "tenure")}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
