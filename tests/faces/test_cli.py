"""The command line as people and programs meet it: exit codes, one clear error, stable JSON, plain tables in pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tenure
from tenure.faces.cli.main import main
from tenure.journal import Journal
from tenure.stores.migrate import load

APP = """
from tenure import AsyncContext, Tenure

app = Tenure("sqlite:///jobs.db", organization="studio", project="sales", actor="user:42")


@app.job("greet")
async def greet(ctx: AsyncContext, payload: dict) -> str:
    return payload["name"]


@app.job("fail", max_attempts=1)
async def fail(ctx: AsyncContext, payload: dict) -> str:
    raise ValueError("no such name")
"""


@dataclass(frozen=True)
class Said:
    """What a command gave back."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in a folder of its own, without a terminal: its whole main, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: str, env: dict[str, str] | None = None) -> Said:
        for name in ("TENURE_STORE", "TENURE_ACTOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tenure", *words])
        monkeypatch.delitem(sys.modules, "app", raising=False)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def app(tmp_path: Path, run: Run) -> Path:
    """Put an app and its migrated store into the folder."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    assert run("migrate", "--store", "sqlite:///jobs.db").returncode == 0
    return tmp_path


@contextmanager
def service(folder: Path) -> Iterator[tenure.DurableJobService]:
    """Open the folder's store."""
    store = tenure.open_store(f"sqlite:///{folder / 'jobs.db'}")
    try:
        yield tenure.DurableJobService(store)
    finally:
        store.close()


def said(result: Said) -> Any:
    """Read the JSON of a command."""
    return json.loads(result.stdout)


def failed_job(folder: Path) -> str:
    """Leave one failed job in the store."""
    with service(folder) as verbs:
        made = verbs.create_job(organization="studio", project="sales", idempotency_key="f", kind="fail", payload={})
        claim = verbs.claim_job("w", start=True)
        assert claim is not None
        verbs.fail_job(claim.lease, code="NO", message="no", retryable=False)
        return str(made.job.id)


def count(folder: Path) -> int:
    """Count the jobs of the store."""
    with service(folder) as verbs:
        return len(verbs.list_jobs())


def test_a_store_is_made_and_looked_at(run: Run, tmp_path: Path) -> None:
    names = [one.name for one in load("tenure.stores.sqlite")]
    assert names[0] == "0001_first"
    missing = run("migrate", "--check", "--store", "sqlite:///jobs.db")
    assert (missing.returncode, missing.stdout) == (1, "".join(f"missing {name}\n" for name in names))
    assert said(run("migrate", "--store", "sqlite:///jobs.db", "--json")) == {"applied": names}
    again = run("migrate", "--check", "--store", "sqlite:///jobs.db")
    assert (again.returncode, again.stdout) == (0, "up to date\n")
    assert run("migrate", "--store", "sqlite:///jobs.db").stdout == "up to date\n"
    schema = run("migrate", "--sql", "--store", "sqlite:///jobs.db").stdout
    assert "CREATE TABLE tenure_job " in schema
    doctor = said(run("doctor", "--store", "sqlite:///jobs.db", "--json"))
    assert doctor["ok"] is True
    assert {one["what"] for one in doctor["findings"]} >= {"tenure", "python", "store", "schema", "needs attention"}
    assert (tmp_path / "jobs.db").exists()


def test_doctor_is_red_without_a_schema(run: Run) -> None:
    result = run("doctor", "--store", "sqlite:///jobs.db", "--json")
    assert result.returncode == 1
    assert said(result)["ok"] is False


def test_init_writes_an_app_that_runs_and_never_overwrites(run: Run, tmp_path: Path) -> None:
    assert run("init").returncode == 0
    subprocess.run([sys.executable, "app.py"], cwd=tmp_path, check=True, timeout=60)
    assert [one["status"] for one in said(run("jobs", "list", "--store", "sqlite:///jobs.db", "--json"))] == ["queued"]
    text = (tmp_path / "app.py").read_text(encoding="utf-8")
    second = run("init")
    assert second.returncode == 1
    assert "exists already" in second.stderr
    assert (tmp_path / "app.py").read_text(encoding="utf-8") == text


def test_one_job_is_enqueued_once(app: Path, run: Run) -> None:
    first = said(run("enqueue", "app:app", "greet", '{"name": "Ada"}', "--key", "ada", "--json"))
    second = said(run("enqueue", "app:app", "greet", '{"name": "Ada"}', "--key", "ada", "--json"))
    assert (first["created"], second["created"], second["known"]) == (1, 0, 1)
    assert first["ids"] == second["ids"]
    other = run("enqueue", "app:app", "greet", '{"name": "Bob"}', "--key", "ada", "--json")
    assert other.returncode == 1
    assert said(other)["error"] == "IDEMPOTENCY_MISMATCH"
    assert "Ada" not in other.stdout
    assert count(app) == 1


def test_a_file_is_enqueued_whole_or_not_at_all(app: Path, run: Run) -> None:
    (app / "names.csv").write_text("id,name\n1,Ada\n2,Grace\n", encoding="utf-8")
    assert (
        said(run("enqueue", "app:app", "greet", "--from", "names.csv", "--key-field", "id", "--json"))["created"] == 2
    )
    assert said(run("enqueue", "app:app", "greet", "--from", "names.csv", "--key-field", "id", "--json"))["known"] == 2
    (app / "lines.jsonl").write_text('{"name": "Eve"}\n\n{"name": NaN}\n', encoding="utf-8")
    bad = run("enqueue", "app:app", "greet", "--from", "lines.jsonl", "--json")
    assert bad.returncode == 1
    assert said(bad)["error"] == "NON_FINITE_NUMBER"
    (app / "short.csv").write_text("id,name\n1,Ada\n2\n", encoding="utf-8")
    short = run("enqueue", "app:app", "greet", "--from", "short.csv")
    assert short.returncode == 1
    assert "row 2 has more or fewer cells than the header" in short.stderr
    assert count(app) == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("enqueue", "app:app", "nope", "{}"), "'nope' is no kind of this app"),
        (("enqueue", "app:app", "greet"), "give either one JSON object or --from FILE"),
        (("enqueue", "app:other", "greet", "{}"), "it has app:app"),
        (("enqueue", "nope:app", "greet", "{}"), "module 'nope' was not found"),
        (("enqueue", "app", "greet", "{}"), "is not MODULE:APP"),
        (("jobs", "list"), "--store sqlite:///jobs.db, or set TENURE_STORE"),
        (("jobs", "list", "--store", "mysql://x"), "sqlite:///FILE"),
        (("jobs", "list", "--store", "sqlite:///jobs.db", "--status", "gone"), "'gone' is no status"),
        (("jobs", "show", str(uuid4()), "--store", "sqlite:///jobs.db"), "no job"),
        (("jobs", "list", "--store", "sqlite:///other.db"), "run `tenure migrate --store sqlite:///other.db`"),
    ],
)
def test_a_wrong_call_is_one_line_that_says_what_to_do(app: Path, run: Run, words: tuple[str, ...], text: str) -> None:
    result = run(*words)
    assert result.returncode == 1
    assert text in result.stderr
    assert result.stderr.startswith("tenure: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    as_json = run(*words, "--json")
    assert as_json.returncode == 1
    assert set(said(as_json)) == {"error", "message"}
    assert app.exists()


def test_wrong_usage_exits_with_two(run: Run) -> None:
    assert run("jobs", "show").returncode == 2
    assert run("nothing").returncode == 2
    assert run("--help").returncode == 0


def test_operators_move_jobs(app: Path, run: Run) -> None:
    store = {"TENURE_STORE": "sqlite:///jobs.db", "TENURE_ACTOR": "ops:ann"}
    job_id = failed_job(app)
    shown = said(run("jobs", "show", job_id, "--json", env=store))
    assert (shown["status"], shown["phase"], shown["error_code"]) == ("failed", "NEEDS_ATTENTION", "NO")
    assert "payload" not in shown
    assert "payload" in said(run("jobs", "show", job_id, "--payload", "--json", env=store))
    assert said(run("jobs", "retry", job_id, "--json", env=store))["status"] == "queued"
    again = run("jobs", "retry", job_id, "--json", env=store)
    assert (again.returncode, said(again)["error"]) == (1, "ILLEGAL_MOVE")
    assert said(run("jobs", "cancel", job_id, "--reason", "not needed", "--json", env=store))["status"] == "cancelled"
    trail = said(run("jobs", "show", job_id, "--json", env=store))["events"]
    assert [(one["name"], one["actor"]) for one in trail][-2:] == [("retried", "ops:ann"), ("cancelled", "ops:ann")]
    listed = said(run("jobs", "list", "--phase", "DONE", "--json", env=store))
    assert [one["id"] for one in listed] == [job_id]


def test_a_person_states_what_happened(app: Path, run: Run) -> None:
    with service(app) as verbs:
        verbs.create_job(organization="studio", project="sales", idempotency_key="m", kind="greet", payload={})
        claim = verbs.claim_job("w", start=True)
        assert claim is not None
        verbs.mark_provider_dispatched(claim.lease, operation_key="greet:1")
        verbs.mark_indeterminate(claim.lease, code="LOST", message="lost")
    job_id, store = str(claim.job.id), {"TENURE_STORE": "sqlite:///jobs.db"}
    neither = run("jobs", "reconcile", job_id, "--reason", "seen", "--json", env=store)
    assert (neither.returncode, said(neither)["error"]) == (1, "BAD_ARGUMENT")
    words = ("jobs", "reconcile", job_id, "--accepted", "--receipt", '{"id": 7}', "--reason", "seen", "--json")
    assert said(run(*words, env=store))["status"] == "completed"
    assert said(run("jobs", "show", job_id, "--payload", "--json", env=store))["result"] == {"id": 7}


def test_a_pipe_gets_no_colours(app: Path, run: Run) -> None:
    failed_job(app)
    table = run("jobs", "list", "--store", "sqlite:///jobs.db", env={"FORCE_COLOR": "", "TERM": "xterm-256color"})
    assert table.returncode == 0
    assert "failed" in table.stdout
    assert "\x1b" not in table.stdout


def test_stored_text_cannot_move_the_cursor_or_become_markup(app: Path, run: Run) -> None:
    with service(app) as verbs:
        verbs.create_job(organization="studio", project="sales", idempotency_key="x", kind="greet", payload={})
        claim = verbs.claim_job("w", start=True)
        assert claim is not None
        verbs.fail_job(claim.lease, code="[red]X[/red]", message="a\x1b[2Jb [bold]c", retryable=False)
    shown = run("jobs", "show", str(claim.job.id), "--store", "sqlite:///jobs.db")
    assert "[red]X[/red]" in shown.stdout
    assert "[bold]c" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize("loop", [[], ["--uvloop"]], ids=["asyncio", "uvloop"])
def test_a_worker_runs_and_drains_at_a_signal(app: Path, run: Run, loop: list[str]) -> None:
    assert run("enqueue", "app:app", "greet", '{"name": "Ada"}', "--key", "ada").returncode == 0
    command = [sys.executable, "-c", "from tenure.faces.cli.main import main; main()", "worker", "app:app", "--json"]
    worker = subprocess.Popen(
        [*command, *loop, "--health-file", "health.json"],
        cwd=app,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with service(app) as verbs:
            wait_until(lambda: verbs.list_jobs()[0].status == "completed")
            assert verbs.list_jobs()[0].result == "Ada"
        wait_until(lambda: json.loads((app / "health.json").read_text(encoding="utf-8"))["ok"])
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=30)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    assert json.loads(out)["clean"] is True


def test_a_loop_that_is_not_installed_is_one_clear_refusal(app: Path, run: Run) -> None:
    (app / "uvloop.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    refused = run("worker", "app:app", "--uvloop", env={"PYTHONPATH": str(app)})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--uvloop needs uvloop (not here): pip install 'tenure[uvloop]'" in refused.stderr.replace("\n", " ")


def test_the_demonstration_says_what_it_needs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.faces.cli.demo.find_spec", lambda _: None)
    refused = run("demo")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "over HTTP, which needs httpx: pip install 'tenure[http]' [MISSING_EXTRA]" in refused.stderr


def test_the_version_is_said(run: Run) -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"tenure {version('tenure')}\n", "")


def test_a_sweep_asks_and_escalates(app: Path, run: Run) -> None:
    assert run("sweep", "app:app").stdout == "nothing is uncertain\n"
    execution = tenure.ExecutionInput(tenant="studio", actor="u", trace="t")
    with service(app) as verbs:
        verbs.create_job(
            organization="studio", project="sales", idempotency_key="s", kind="greet", payload={}, execution=execution
        )
        claim = verbs.claim_job("w", start=True)
        assert claim is not None
        verbs.begin_effect(claim.lease, name="send", request={}, provider="gone")
        verbs.mark_indeterminate(claim.lease, code="LOST", message="lost")
    verdicts = said(run("sweep", "app:app", "--json"))
    assert [(one["action"], one["status"]) for one in verdicts] == [("escalate", "indeterminate")]
    assert "send" in verdicts[0]["reason"]


def test_journals_are_verified_and_repaired(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    with Journal.open(path) as journal:
        journal.append(b'{"type": "note"}')
        journal.append(b'{"type": "note"}')
    whole = path.read_bytes()
    assert run("journal", "verify", "one.journal").returncode == 0
    path.write_bytes(whole[:-3])
    torn = run("journal", "verify", "one.journal", "--json")
    assert (torn.returncode, said(torn)["tail"], said(torn)["records"]) == (1, "torn", 1)
    assert said(run("journal", "repair", "one.journal", "--json"))["repaired"] is True
    assert run("journal", "verify", "one.journal").returncode == 0
    lines = run("journal", "dump", "one.journal", "--json").stdout.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1]
    missing = run("journal", "verify", "none.journal", "--json")
    assert (missing.returncode, said(missing)["error"]) == (1, "JOURNAL_NOT_FOUND")


def test_the_lab_lists_its_variants_and_shows_why_a_rule_is_there(run: Run) -> None:
    listed = said(run("lab", "--json"))
    assert len(listed) >= 14
    assert {"no-fence", "no-lookup", "no-boundary"} <= {one["name"] for one in listed}
    broken = run("lab", "no-fence")
    assert broken.returncode == 1
    assert "BROKEN  I3" in broken.stdout
    whole = run("lab", "none", "--limit", "500", "--json")
    assert whole.returncode == 0
    assert said(whole)["violation"] is None
    unknown = run("lab", "nothing")
    assert unknown.returncode == 1
    assert "there is no variant" in unknown.stderr


def wait_until(done: Callable[[], bool]) -> None:
    """Look again until it is true; the test's own limit ends a wait that never ends."""
    for _ in range(600):
        if done():
            return
        signal.sigtimedwait([], 0.05)
    raise AssertionError("it did not happen in time")


def test_a_command_does_what_its_role_may(run: Run) -> None:
    run("migrate", "--store", "sqlite:///jobs.db")
    # Database roles are PostgreSQL's; a store with a role works here without them.
    for more in ([], ["--sql"]):
        refused = run("migrate", "--roles", *more, "--store", "sqlite:///jobs.db")
        assert refused.returncode == 1
        assert "[BAD_ARGUMENT]" in refused.stderr
    pause = ("queues", "pause", "mail", "--reason", "r", "--store", "sqlite:///jobs.db")
    as_viewer = run(*pause, env={"TENURE_ROLE": "viewer"})
    assert (as_viewer.returncode, "operator may" in as_viewer.stderr) == (1, True)
    assert "[ROLE_DENIED]" in as_viewer.stderr
    assert run("queues", "list", "--store", "sqlite:///jobs.db", env={"TENURE_ROLE": "viewer"}).returncode == 0
    assert run(*pause, env={"TENURE_ROLE": "operator"}).returncode == 0
    unsaid = run(*pause, env={"TENURE_ROLE": ""})
    assert (unsaid.returncode, "TENURE_ROLE" in unsaid.stderr, "[BAD_ARGUMENT]" in unsaid.stderr) == (1, True, True)
    assert run("migrate", "--store", "sqlite:///jobs.db", env={"TENURE_ROLE": "operator"}).returncode == 1
