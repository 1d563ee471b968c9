"""The demonstration does what it says, says no when a promise is taken away, and leaves nobody behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenure.connectors.simulator import duplicates, effects_in, read_ledger
from tenure.errors import Invalid
from tenure.faces.demo.books import named_url
from tenure.faces.demo.quotes import PACKAGED, QUOTES_MAX, read_quotes
from tenure.faces.demo.story import refuse_busy
from tenure.service import DurableJobService
from tenure.stores import open_store

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from tenure.faces.cli.main import main; main()", "demo"]
FIELDS = {
    "store": str,
    "jobs": int,
    "completed": int,
    "killed_after_acceptance": int,
    "reconciled": int,
    "provider_effects": int,
    "duplicate_effects": int,
    "lost_jobs": int,
    "stale_writes_refused": int,
    "current_writes_accepted": int,
    "seconds": float,
    "broken": list,
}
QUOTE = {"id": "Q-1", "to": "office@example.org", "item": "Desk", "total": "10.00"}


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=90, check=False)


def report_of(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read the object on the last line, which is the only one on standard output."""
    lines = ended.stdout.splitlines()
    assert len(lines) == 1, ended.stderr[-2000:]
    report: dict[str, Any] = json.loads(lines[-1])
    assert {name: type(value) for name, value in report.items()} == FIELDS
    return report


def written(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


# --- the promises hold ------------------------------------------------------------------------------------------------


def without_numbers(text: str) -> str:
    """Leave out what differs from run to run, and the widths of columns."""
    text = re.sub(r"\b\d\d:\d\d:\d\d\.\d{3}\b|^ *\d+\.\d s\b|\bpid \d+\b", "", text, flags=re.MULTILINE)
    return " ".join(text.split())


def test_a_person_sees_what_the_readme_shows() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text demo\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    lines = [without_numbers(line) for line in shown[1].splitlines() if line != "..."]
    ended = demo()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    rest = without_numbers(ended.stdout)
    for line in [
        *lines[:9],
        "worker B stopped (SIGSTOP) with the receipt of Q-1012 in hand, before it publishes",
        "worker C B's lease is over; Q-1012 is completed under generation 2",
        "worker B refused: not a trace of it in the table",
        *lines[9:],
        "Every promise held",
    ]:
        assert line in rest, f"{line!r} is missing or too early:\n{ended.stdout}"
        rest = rest.partition(line)[2]
    assert len(lines) == 20
    assert "BROKEN" not in ended.stdout


def test_own_quotes_kept_in_a_folder(tmp_path: Path) -> None:
    mine = [{**QUOTE, "id": number, "note": "mine"} for number in (7, 8, 9)]
    quotes, kept = written(tmp_path / "mine.jsonl", ["", *mine]), tmp_path / "kept"
    ended = demo("--quotes", str(quotes), "--keep", str(kept), "--json")
    report = report_of(ended)
    assert ended.returncode == 0, report["broken"]
    assert report["store"] == "sqlite"
    assert report["jobs"] == report["completed"] == report["provider_effects"] == len(mine)
    assert report["duplicate_effects"] == report["lost_jobs"] == 0
    assert report["killed_after_acceptance"] == report["reconciled"] == report["stale_writes_refused"] == 1
    assert report["current_writes_accepted"] == len(mine)
    assert 0 < report["seconds"] < 60
    # The same once more, without the program's own eyes.
    with sqlite3.connect(kept / "demo.db") as database:
        rows = dict(database.execute("SELECT id, receipt IS NOT NULL FROM quotes").fetchall())
        published = dict(database.execute("SELECT quote_id, count(*) FROM publications GROUP BY 1").fetchall())
    database.close()
    assert rows == {"7": 1, "8": 1, "9": 1}
    assert published == {"7": 1, "8": 1, "9": 1}
    effects = effects_in(read_ledger(kept / "effects.jsonl"))
    assert [len(acts) for acts in effects.values()] == [1, 1, 1]
    assert duplicates(kept / "effects.jsonl") == {}
    assert sorted(path.name for path in kept.glob("*.log")) == ["worker-a.log", "worker-b.log", "worker-c.log"]


def test_on_postgresql_beside_a_run_that_broke(postgres_database: str) -> None:
    import psycopg

    ended = demo("--store", postgres_database, "--break", "no-fence", "--json")
    report = report_of(ended)
    assert ended.returncode == 1
    assert report["stale_writes_refused"] == 0
    assert "a worker that lost its lease writes nothing: the table publications has a write to" in report["broken"][0]
    ended = demo("--store", postgres_database, "--json")
    report = report_of(ended)
    assert ended.returncode == 0, report["broken"]
    assert report["store"] == "postgresql"
    assert report["completed"] == report["provider_effects"] == report["jobs"] == 12
    assert report["duplicate_effects"] == report["lost_jobs"] == 0
    assert report["reconciled"] >= report["killed_after_acceptance"] >= 1
    assert report["stale_writes_refused"] >= 1
    assert report["current_writes_accepted"] >= 1
    with psycopg.connect(postgres_database) as connection:
        left = connection.execute("SELECT count(*) FROM tenure_demo.quotes").fetchone()
        jobs = connection.execute("SELECT count(DISTINCT tenant), count(*) FROM tenure.job").fetchone()
    assert left == (0,)
    assert jobs == (2, 24)


# --- and are missed when they are taken away --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken, counts, reason",
    [
        (
            "no-fence",
            {"stale_writes_refused": 0, "duplicate_effects": 0},
            "a worker that lost its lease writes nothing: the table publications has a write to Q-1012 by generation 1",
        ),
        (
            "no-lookup",
            {"reconciled": 0, "killed_after_acceptance": 1, "completed": 11, "lost_jobs": 0},
            "what is uncertain is settled by evidence: nobody could say what became of Q-1004",
        ),
        (
            "no-boundary",
            {"duplicate_effects": 2, "provider_effects": 14},
            "one operation, one act: the customer of Q-1004 got 2 mails; the provider's ledger has fx-4 under",
        ),
    ],
)
def test_a_broken_variant_is_noticed(broken: str, counts: dict[str, int], reason: str) -> None:
    ended = demo("--break", broken, "--json")
    report = report_of(ended)
    assert ended.returncode == 1
    assert {name: report[name] for name in counts} == counts
    assert [said for said in report["broken"] if said.startswith(reason)] != []
    assert f"BROKEN  {reason}" in ended.stderr


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines, code, text",
    [
        ([QUOTE, "{"], "BAD_QUOTE", "line 2 is no JSON"),
        ([QUOTE, {**QUOTE, "id": "Q-2", "total": "dear"}], "BAD_QUOTE", "line 2: total (decimal_parsing)"),
        ([QUOTE, "", {**QUOTE, "id": "Q-2", "to": "nobody"}], "BAD_QUOTE", "line 3: to (string_pattern_mismatch)"),
        ([{"id": "Q-2"}], "BAD_QUOTE", "line 1: to (missing), item (missing), total (missing)"),
        ([[QUOTE]], "BAD_QUOTE", "line 1: the line (model_type)"),
        ([QUOTE, {**QUOTE, "id": "Q-2"}, QUOTE], "BAD_QUOTE", "line 3: its id is that of line 1"),
        (["", " "], "NO_QUOTES", "holds no quotes"),
        ([{**QUOTE, "id": str(n)} for n in range(QUOTES_MAX + 1)], "TOO_MANY_QUOTES", "201 quotes"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, lines: list[object], code: str, text: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_quotes(written(tmp_path / "bad.jsonl", lines))
    assert refused.value.code == code
    assert text in str(refused.value)
    assert "nobody" not in str(refused.value)
    assert "dear" not in str(refused.value)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    read = read_quotes(
        written(tmp_path / "good.jsonl", ["\ufeff" + json.dumps(QUOTE), {**QUOTE, "id": 2, "total": 3.5}])
    )
    assert [(quote.id, str(quote.total)) for quote in read] == [("Q-1", "10.00"), ("2", "3.5")]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}\n')
    for path in (tmp_path / "missing.jsonl", tmp_path, tmp_path / "latin.jsonl"):
        with pytest.raises(Invalid, match="cannot be read") as refused:
            read_quotes(path)
        assert refused.value.code == "BAD_FILE"


def test_a_bad_file_writes_nothing(tmp_path: Path) -> None:
    quotes = written(tmp_path / "mine.jsonl", [QUOTE, {**QUOTE, "id": "Q-2", "total": -1}])
    ended = demo("--quotes", str(quotes), "--keep", str(tmp_path / "kept"), "--json")
    assert ended.returncode == 1
    said = json.loads(ended.stdout)
    assert said["error"] == "BAD_QUOTE"
    assert "mine.jsonl, line 2: total (greater_than_equal)" in said["message"]
    assert not (tmp_path / "kept").exists()


def test_the_packaged_quotes_are_the_example() -> None:
    example = ROOT / "examples" / PACKAGED
    assert read_quotes(None) == read_quotes(example)
    assert len(read_quotes(None)) == 12


# --- where it runs ----------------------------------------------------------------------------------------------------


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    ended = demo("--keep", str(tmp_path))
    assert ended.returncode == 1
    assert "FOLDER_NOT_EMPTY" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_store_in_memory_is_refused() -> None:
    ended = demo("--store", "sqlite:///:memory:")
    assert ended.returncode == 1
    assert "cannot be shared" in ended.stderr


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with open_store(url) as store:
        store.migrate()
        service = DurableJobService(store, actor="me")
        made = service.create_job(organization="o", project="p", idempotency_key="k", kind="greet", payload={})
        service.create_job(organization="demo-1", project="p", idempotency_key="k", kind="greet", payload={})
        ended = demo("--store", url)
        assert ended.returncode == 1
        assert "STORE_IN_USE" in ended.stderr
        with pytest.raises(Invalid, match="jobs of others"):
            refuse_busy(store)
        service.cancel_job(made.job.id, reason="done with it")
        refuse_busy(store)
        assert len(service.list_jobs(limit=10)) == 2


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE quotes (number INTEGER)")
    database.close()
    ended = demo("--store", f"sqlite:///{path}")
    assert ended.returncode == 1
    assert "TABLE_TAKEN" in ended.stderr


def test_the_url_of_a_process_names_it() -> None:
    assert named_url("sqlite:///jobs.db", "A") == "sqlite:///jobs.db"
    assert named_url("postgresql://h/d", "A b") == "postgresql://h/d?application_name=A%20b"
    named = named_url("postgresql://h/d?application_name=mine&sslmode=require", "A")
    assert named == "postgresql://h/d?sslmode=require&application_name=A"


# --- interrupted ------------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Say whether a process still runs; one that is dead and not yet waited for does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[0] not in {"Z", "X"}


@pytest.mark.parametrize(
    "number, moment, status",
    [
        (signal.SIGTERM, "worker A    pid", 128 + signal.SIGTERM),
        (signal.SIGINT, "worker B    pid", 128 + signal.SIGINT),
        (signal.SIGKILL, "stopped (SIGSTOP)", -signal.SIGKILL),
    ],
)
def test_nobody_is_left_behind(number: int, moment: str, status: int, tmp_path: Path) -> None:
    pids: list[int] = []
    with subprocess.Popen(
        [*COMMAND, "--keep", str(tmp_path / "kept")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            words = line.replace(",", "").split()
            if "pid" in words:
                pids.append(int(words[words.index("pid") + 1]))
            if moment in line:
                break
        running = [pid for pid in pids if alive(pid)]
        parent.send_signal(number)
        parent.stdout.read()
        assert parent.wait(30) == status
    assert len(running) >= 2
    until = time.monotonic() + 20
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.02)
