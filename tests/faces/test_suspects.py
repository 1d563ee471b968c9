"""`tenure suspects`: what an operator sees of a restored copy, and does about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import tenure
from tenure.faces.cli.main import main
from tests.support.copies import mark_copy

Run = Callable[..., tuple[int, str, str]]
APP = """
from tenure import Accepted, Absent, IdempotencyKey, Provider, Succeeded, Tenure
from datetime import timedelta

class Mailer(Provider):
    name = "mailer"
    idempotency = IdempotencyKey(timedelta(hours=24))
    lookup_complete = True

    async def send(self, request, operation_key):
        return Succeeded({"n": 1})

    async def lookup(self, operation_key):
        return Accepted({"n": 1}) if operation_key.startswith("mailed:") else Absent()

mailer = Mailer()
app = Tenure("sqlite:///jobs.db", organization="acme", project="p1", actor="user:1", providers=[mailer])

@app.job("mailed", providers=[mailer])
async def mailed(ctx, payload):
    return await ctx.effect("send", mailer, payload)

@app.job("printed")
async def printed(ctx, payload):
    return None
"""


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Two suspect jobs, one of a kind that declares its provider."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_STORE", "sqlite:///jobs.db")
    monkeypatch.delitem(sys.modules, "restored_app", raising=False)
    (tmp_path / "restored_app.py").write_text(APP)
    with tenure.open_store("sqlite:///jobs.db") as store:
        store.migrate()
    sys.path.insert(0, str(tmp_path))
    try:
        import restored_app  # type: ignore[import-not-found]

        made = [restored_app.app.enqueue(kind, {}, key=kind).job.id for kind in ("mailed", "printed")]
        restored_app.app.store.run(mark_copy("user:7", "restored"))
        restored_app.app.close()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("restored_app", None)
    return made


@pytest.fixture
def run(ids: list[UUID], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on that store, without a terminal."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", "suspects", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_what_needs_evidence_is_listed(run: Run, ids: list[UUID]) -> None:
    status, out, _ = run("list")
    assert status == 0
    assert "tenant acme: 2 queued" in out
    assert all(str(one) in out for one in ids)
    said = json.loads(run("list", "--json")[1])
    assert said["suspect"] == {"acme": {"queued": 2}}
    assert [(one["job_id"], one["provider"]) for one in said["needs_evidence"]] == [
        (str(ids[0]), "mailer"),
        (str(ids[1]), None),
    ]
    assert run("list", "--tenant", "zeta")[1] == "nothing needs evidence\n"
    assert json.loads(run("list", "--after", str(ids[0]), "--json")[1])["needs_evidence"][0]["job_id"] == str(ids[1])


def test_providers_are_asked_about_effects_that_are_named(run: Run, ids: list[UUID]) -> None:
    status, out, _ = run("reconcile", "restored_app:app", "--effect", "mailed:send=mailer", "--json")
    assert status == 0
    said = {one["job_id"]: one for one in json.loads(out)}
    assert (said[str(ids[0])]["action"], said[str(ids[0])]["operation_key"]) == ("found", f"mailed:{ids[0]}:send")
    assert said[str(ids[1])]["action"] == "left"
    status, out, _ = run("reconcile", "restored_app:app")
    assert status == 0
    assert "its worker asks before it sends" in " ".join(out.split())


@pytest.mark.parametrize("given", ["mailed", "mailed:send", "send=mailer", "mailed:send=pigeon"])
def test_an_effect_that_cannot_be_read_is_one_clear_error(run: Run, given: str) -> None:
    status, _, said = run("reconcile", "restored_app:app", "--effect", given)
    assert status == 1
    assert "--effect send_quote:send=mailer" in said
    assert "mailer" in said


def test_a_person_clears_a_job_and_only_a_suspect_one(run: Run, ids: list[UUID]) -> None:
    status, out, _ = run("clear", str(ids[1]), "--reason", "it only prints")
    assert (status, out) == (0, f"job {ids[1]} is not suspect any more\n")
    status, _, said = run("clear", str(ids[1]), "--reason", "again")
    assert status == 1
    assert "it is not suspect" in said
    assert json.loads(run("clear", str(ids[0]), "--reason", "checked", "--json")[1])["suspect"] is False
    status, out, _ = run("list")
    assert (status, out) == (0, "nothing needs evidence\n")
    assert run("reconcile", "restored_app:app")[1] == "nothing is suspect\n"


# --- tenure recover ---------------------------------------------------------------------------------------------------


@pytest.fixture
def frozen(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same store, frozen as a restored one is; and any command on it."""
    with tenure.open_store("sqlite:///jobs.db") as store, store.transaction() as tx:
        tx.execute("DELETE FROM tenure_suspect")
        tx.execute("INSERT INTO tenure_meta (key, value) VALUES ('frozen', 'by hand')")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


WHY = ("--reason", "restored the backup of monday")


def test_a_recovery_says_what_needs_evidence_and_what_to_do_next(frozen: Run) -> None:
    status, out, _ = frozen("recover")
    assert status == 1
    assert "nothing was changed" in out
    assert "needs evidence" not in out
    status, out, _ = frozen("tenants", "recover", "--yes", *WHY)
    assert status == 0
    assert "done; 2 jobs are suspect" in out
    assert "  1 x mailer: an effect of this provider may be lost with the backup\n" in out
    assert "  1 x no provider is known: an effect may be lost with the backup" in out
    assert out.endswith(
        "next:\n"
        "  tenure suspects list\n"
        "  tenure suspects reconcile MODULE:APP\n"
        "  tenure tenants readmit acme --all --reason TEXT\n"
    )


def test_a_recovery_with_an_app_asks_its_providers(frozen: Run, ids: list[UUID]) -> None:
    status, out, _ = frozen("recover", "restored_app:app", "--yes", *WHY, "--effect", "mailed:send=mailer")
    assert status == 0
    assert "asked the providers: 1 found, 1 left\n" in out
    assert "1 x mailer" not in out, "it is known now"
    assert "  1 left: no effect of its kind is known to ask about: name one (--effect KIND:NAME=PROVIDER)" in out
    assert "--effect mailed:" not in out
    assert "  tenure suspects reconcile restored_app:app --effect printed:NAME=mailer  # NAME as in ctx.effect" in out
    with tenure.open_store("sqlite:///jobs.db") as store:
        job = tenure.DurableJobService(store).get_job(ids[0])
    assert [(one.name, one.state, one.receipt) for one in job.effects] == [("send", "succeeded", {"n": 1})]


def test_a_recovery_whose_asking_was_stopped_goes_on_with_the_second_run(frozen: Run) -> None:
    assert frozen("recover", "--yes", *WHY)[0] == 0
    status, out, _ = frozen("recover", "restored_app:app", "--effect", "mailed:send=mailer", "--json")
    assert status == 0
    said = json.loads(out)
    assert (said["frozen"], said["done"]) == (False, False)
    assert [one["action"] for one in said["answers"]] == ["found", "left"]
    assert [(one["kind"], one["provider"]) for one in said["needs_evidence"]] == [("printed", None)]


def test_the_list_of_a_recovery_is_whole(frozen: Run) -> None:
    said = json.loads(frozen("recover", "--yes", *WHY, "--json")[1])
    assert (said["done"], said["suspects"], said["revocations"], said["answers"]) == (True, 2, 0, [])
    assert [one["kind"] for one in said["needs_evidence"]] == ["mailed", "printed"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("recover", "--yes"), "BAD_ARGUMENT"),
        (("recover", "--yes", *WHY, "--effect", "mailed:send=mailer"), "BAD_ARGUMENT"),
        (("recover", "nowhere:app", "--yes", *WHY), "APP_NOT_FOUND"),
        (("recover", "restored_app:app", "--yes", *WHY, "--effect", "mailed"), "BAD_ARGUMENT"),
    ],
)
def test_a_recovery_that_is_asked_for_wrongly_changes_nothing(frozen: Run, words: tuple[str, ...], code: str) -> None:
    assert json.loads(frozen(*words, "--json")[1])["error"] == code
    assert frozen("recover")[0] == 1, "it is frozen still"


def test_a_recovery_that_could_ask_nobody_says_so_and_how_to(frozen: Run) -> None:
    status, out, _ = frozen("recover", "restored_app:app", "--yes", *WHY)
    assert status == 0
    assert "no provider was asked: 2 left\n" in out
    assert "asked the providers" not in out
    assert "its kind declares no providers (providers= of app.job)" in out
    asked = "  tenure suspects reconcile restored_app:app --effect"
    assert [line.partition("  #")[0] for line in out.splitlines() if line.startswith(asked)] == [
        f"{asked} mailed:NAME=mailer",
        f"{asked} printed:NAME=mailer",
    ]
