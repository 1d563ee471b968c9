"""The experiments hold on both databases, notice every broken variant, and leave nothing behind."""

from __future__ import annotations

import functools
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import handler, lab
from tenure.errors import Invalid
from tenure.faces.cli.main import main
from tenure.faces.demo.breaks import BREAKS
from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.run import EXPERIMENTS, find_experiment, run_experiment
from tenure.faces.experiments.shape import Check, Experiment, Report
from tenure.procedures import publish
from tenure.rules import lease as leases
from tenure.rules.status import Status
from tenure.service import DurableJobService
from tenure.stores import open_store
from tests.support.tree import ROOT

WHOLE = [one.name for one in EXPERIMENTS]
VARIANTS = {
    "accept-and-enqueue enqueue-before": "a row and its job are accepted together or not at all: ",
    "accept-and-enqueue enqueue-after": "a row and its job are accepted together or not at all: ",
    "redelivered marked-before": "an event is applied once, however often it comes: ",
    "redelivered marked-after": "an event is applied once, however often it comes: ",
    "changed-digest event-not-compared": "another content under a known operation is neither applied nor taken for",
    "changed-digest payload-not-compared": "another payload under a known key is not taken for the job that is there: ",
    "changed-digest request-not-compared": "an effect sends the request that its intent was written for, and no other",
    "cancelled-after-intent cancel-closes": "cancelled work whose outcome nobody knows stays visible: ",
    "cancelled-after-intent cancel-retries": "what was cancelled is not sent again: acts for Q-1 in the provider's",
    "reply-lost retried-unasked": "what may have happened is not done again: acts for Q-1 in the provider's ledger: 2 ",
    "reply-lost no-intent": "what may have happened is not done again: acts for Q-1 in the provider's ledger: 2 ",
    "stale-worker no-fence": "a worker whose job was taken over writes nothing: rows of Q-2: A (generation 1), B ",
    "stale-worker fence-outside": "a worker whose job was taken over writes nothing: rows of Q-2: A (generation 1), B ",
    "stale-worker fence-before-only": "a worker whose lease ends while it writes has written nothing: rows of Q-3: A ",
    "old-backup ledger-not-compared": "a database that is not the current one is frozen: nothing of it is sent or ",
    "old-backup epochs-kept": "a permission from before the restore is over: not refused, rows: 1",
    "old-backup suspects-not-marked": "what was sent after the backup is not sent again: acts for Q-1: 2, for Q-2: 2",
    "old-backup suspects-not-asked": "what was sent after the backup is not sent again: acts for Q-1: 1, for Q-2: 2",
}
# Where a variant breaks what a database does, and not only what is done with it.
ON_POSTGRES = ["redelivered marked-after", "stale-worker fence-before-only", "old-backup ledger-not-compared"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the experiments a folder of their own for what is temporary, and look into it afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == [], "something was left behind"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program, in this process."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", "lab", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tenure%'")]


@functools.cache
def on_sqlite(name: str) -> dict[str, Any]:
    """Run an experiment once in this process."""
    return run_experiment(find_experiment(name)).as_json()


# --- promises and controls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_every_promise_holds_on_sqlite(name: str) -> None:
    report = run_experiment(find_experiment(name))
    assert report.held, [*report.broken, *report.failed_controls]
    assert report.store == "sqlite"
    # The same again: ids and instants differ, and none of them is told.
    assert report.as_json() == on_sqlite(name)


@pytest.mark.parametrize("name", WHOLE)
def test_every_promise_holds_on_postgresql(name: str, postgres_database: str) -> None:
    report = run_experiment(find_experiment(name), store=postgres_database)
    assert report.held, [*report.broken, *report.failed_controls]
    assert report.store == "postgresql"
    assert schemas(postgres_database) == []
    # One story on both databases.
    assert report.as_json() == {**on_sqlite(name), "store": "postgresql"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_noticed(variant: str) -> None:
    experiment, _, name = variant.partition(" ")
    report = run_experiment(find_experiment(experiment), name)
    assert not report.held
    assert [one for one in report.broken if one.startswith(VARIANTS[variant])] != [], report.broken
    assert report.failed_controls == [], "what is allowed passes in the broken run too"


@pytest.mark.parametrize("variant", ON_POSTGRES)
def test_a_broken_variant_is_noticed_on_postgresql(variant: str, postgres_database: str) -> None:
    experiment, _, name = variant.partition(" ")
    report = run_experiment(find_experiment(experiment), name, store=postgres_database)
    assert [one for one in report.broken if one.startswith(VARIANTS[variant])] != [], report.broken
    assert schemas(postgres_database) == []


def test_nothing_stays_broken() -> None:
    before = (leases.check_fence, publish.close_publish, handler.close_publish)
    with replaced((leases.check_fence, len), (publish.close_publish, len)):
        assert (leases.check_fence, publish.close_publish, handler.close_publish) == (len, len, len)
    assert (leases.check_fence, publish.close_publish, handler.close_publish) == before
    assert not run_experiment(find_experiment("stale-worker"), "no-fence").held
    assert run_experiment(find_experiment("stale-worker")).held


def test_every_variant_is_run_above() -> None:
    assert list(VARIANTS) == [f"{one.name} {name}" for one in EXPERIMENTS for name in one.breaks]
    assert all(one.breaks for one in EXPERIMENTS)


def test_a_run_without_a_control_or_with_a_failed_one_has_not_held() -> None:
    good, bad = Check("it is so", held=True, found="1"), Check("it is so", held=False, found="0")

    def report(promises: tuple[Check, ...], controls: tuple[Check, ...]) -> Report:
        return Report("any", None, "sqlite", (), promises, controls)

    assert report((good,), (good,)).held
    assert not report((good,), ()).held
    assert not report((), (good,)).held
    assert not report((good, bad), (good,)).held
    assert not report((good,), (bad, good)).held


def test_a_run_that_ends_early_is_a_failed_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableJobService, "claim_job", lambda *_, **__: None)
    report = run_experiment(find_experiment("reply-lost"))
    assert not report.held
    assert report.failed_controls == ["the experiment comes to its end: AssertionError: Q-1 waits"]


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_program_runs_all_and_prints_a_summary(run: Run) -> None:
    status, out, err = run("experiments")
    assert (status, err) == (0, "")
    assert "7 experiments on sqlite" in out
    assert [name for name in WHOLE if name in out] == WHOLE
    assert "every promise held and every control passed" in out


def test_the_program_lists_and_explores_as_before(run: Run) -> None:
    status, out, _ = run()
    assert (status, "variants" in out, "fence-before-only" in out) == (0, True, True)
    assert run("none", "--limit", "100", "--json")[0] == 0
    assert run("explore", "--json") == run("--json")
    assert "experiments" in run("--help")[1]


def test_the_program_shows_one(run: Run) -> None:
    status, out, _ = run("experiment", "reply-lost")
    assert status == 0
    assert "worker A dies before it hears of it" in out
    assert "held    what may have happened is not done again: acts for Q-1 in the provider's ledger: 1 (fx-1)" in out
    assert "passed  a call whose reply arrives is made once and done" in out
    status, out, _ = run("experiment", "reply-lost", "--json")
    assert status == 0
    said = json.loads(out)
    assert list(said) == ["experiment", "variant", "store", "held", "steps", "promises", "controls"]
    assert {tuple(one) for one in said["steps"]} == {("actor", "action", "found")}
    assert {tuple(one) for one in (*said["promises"], *said["controls"])} == {("claim", "held", "found")}
    assert (said["experiment"], said["variant"], said["held"]) == ("reply-lost", None, True)


def test_the_program_says_which_promise_broke(run: Run) -> None:
    status, out, _ = run("experiment", "stale-worker", "--break")
    assert status == 1
    for variant, reason in VARIANTS.items():
        if variant.startswith("stale-worker"):
            assert f"{variant.replace(' ', ', ')}: " in out
            assert f"BROKEN  {reason}" in out
    assert "NOT NOTICED" not in out
    status, out, _ = run("experiment", "stale-worker", "--variant", "fence-outside", "--json")
    assert status == 1
    said: dict[str, Any] = json.loads(out)
    assert (said["held"], [one["variant"] for one in said["variants"]]) == (False, ["fence-outside"])


def test_a_variant_that_nobody_notices_is_told_and_gives_another_status(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "broken", property(lambda _: []))
    status, out, _ = run("experiment", "redelivered", "--break")
    assert status == 0
    assert out.count("NOT NOTICED") == 2


@pytest.mark.parametrize(
    "words,code",
    [
        (["experiment", "nothing"], "UNKNOWN_EXPERIMENT"),
        (["experiment", "reply-lost", "--variant", "nothing"], "UNKNOWN_VARIANT"),
        (["experiment", "reply-lost", "--store", "sqlite:///:memory:"], "BAD_STORE_URL"),
        (["experiment", "reply-lost", "--store", "mysql://here/jobs"], "BAD_STORE_URL"),
    ],
)
def test_bad_words_are_refused(run: Run, words: list[str], code: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (1, "")
    assert f"[{code}]" in err


# --- other people's databases -----------------------------------------------------------------------------------------


def used(url: str) -> None:
    """Put one job into a store."""
    with closing(open_store(url)) as store:
        store.migrate()
        DurableJobService(store).create_job(
            organization="acme", project="sales", idempotency_key="mine", kind="any", payload={}
        )


def left(url: str) -> list[tuple[str, Status]]:
    with closing(open_store(url)) as store:
        return [(job.idempotency_key, job.status) for job in DurableJobService(store).list_jobs()]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_store_with_jobs_is_refused_and_untouched(
    run: Run, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = database == "sqlite"
    url = f"sqlite:///{tmp_path}/jobs.db" if sqlite else str(request.getfixturevalue("postgres_database"))
    used(url)
    status, _, err = run("experiments", "--store", url)
    assert status == 1
    assert "this store has jobs" in err
    assert "[STORE_IN_USE]" in err
    assert left(url) == [("mine", Status.QUEUED)]


def test_a_file_with_tables_of_others_is_refused_and_a_new_one_is_gone_afterwards(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    status, _, err = run("experiment", "redelivered", "--store", f"sqlite:///{path}")
    assert (status, "this database has tables already" in err) == (1, True)
    assert path.exists()
    assert run("experiment", "redelivered", "--store", f"sqlite:///{tmp_path}/new.db")[0] == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.db", "temporary"]


def test_a_database_with_the_packages_tables_is_refused(run: Run, postgres_database: str) -> None:
    with closing(open_store(postgres_database)) as store:
        store.migrate()
    status, _, err = run("experiment", "redelivered", "--store", postgres_database)
    assert (status, "this database has tables already" in err) == (1, True)
    assert schemas(postgres_database) == ["tenure"]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_jobs_that_others_create_meanwhile_are_not_removed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = database == "sqlite"
    url = f"sqlite:///{tmp_path}/jobs.db" if sqlite else str(request.getfixturevalue("postgres_database"))
    meddled = Experiment("meddled", "somebody else comes", {}, lambda *_: used(url))
    with pytest.raises(Invalid) as refused:
        run_experiment(meddled, store=url)
    assert refused.value.code == "STORE_IN_USE"
    assert left(url) == [("mine", Status.QUEUED)]
    if sqlite:
        (tmp_path / "jobs.db").unlink()


# --- all broken variants of the project -------------------------------------------------------------------------------

# Which test runs the variants of which place; `make test` runs all of these.
PLACES = {
    "tests/simulation/test_model.py::test_a_broken_rule_is_refuted_by_a_short_trace": [
        one.name for one in lab.variants()
    ],
    "tests/faces/test_experiments.py::test_a_broken_variant_is_noticed": list(VARIANTS),
    "tests/faces/test_demo.py::test_a_broken_variant_is_noticed": list(BREAKS),
}


def test_there_are_thirty_broken_variants_and_each_is_run_by_a_test() -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *PLACES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    ).stdout
    for test, names in PLACES.items():
        run_by = re.findall(rf"^{re.escape(test)}\[(.+)\]$", collected, re.MULTILINE)
        # The demonstration's tests have further parameters behind the name.
        missing = [name for name in names if not any(one == name or one.startswith(f"{name}-") for one in run_by)]
        assert missing == [], f"{test} does not run these"
    everywhere = [f"{test} {name}" for test, names in PLACES.items() for name in names]
    assert len(everywhere) == len(set(everywhere))
    assert len(everywhere) >= 30
