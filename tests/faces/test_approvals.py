"""`tenure approvals`, and what `tenure jobs show` says of a governed job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import DurableJobService, GovernanceInput
from tenure.faces.cli.main import main

Run = Callable[..., tuple[int, str, str]]

NOW = datetime.now(UTC)
ACTION: dict[str, Any] = {
    "organization": "studio",
    "project": "sales",
    "kind": "send_quote",
    "payload": {"quote": "CANARY-1"},
    "governance": GovernanceInput(
        action_intent={"send": "CANARY-2"},
        capability="mail.send",
        policy={"name": "CANARY-3"},
        budget={"eur": 1},
        approval_reference="ap-1",
        issued_at=NOW - timedelta(minutes=1),
        expires_at=NOW + timedelta(hours=1),
    ),
}
DIGEST = tenure.action_digest(**ACTION)
GRANT = ("grant", "ap-1", "--tenant", "studio", "--digest", DIGEST, "--reason", "looked at it", "--actor", "user:1")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("TENURE_STORE", url)
    with tenure.open_store(url) as store:
        store.migrate()
        yield DurableJobService(store)


@pytest.fixture
def run(service: DurableJobService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a store of its own, without a terminal."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_an_approval_is_granted_shown_listed_and_revoked(run: Run) -> None:
    status, out, err = run("approvals", *GRANT, "--minutes", "60", "--policy", '{"name": "CANARY-3"}', "--json")
    made = json.loads(out)
    assert (status, err) == (0, "")
    assert (made["state"], made["granted_by"], made["policy"], made["action_digest"]) == (
        "granted", "user:1", {"name": "CANARY-3"}, DIGEST,
    )  # fmt: skip
    assert json.loads(run("approvals", "show", "ap-1", "--tenant", "studio", "--json")[1]) == made
    assert json.loads(run("approvals", "list", "--tenant", "studio", "--json")[1]) == [made]
    assert "looked at it" in run("approvals", "show", "ap-1", "--tenant", "studio")[1]
    lines = [" ".join(line.split()) for line in run("approvals", "list", "--tenant", "studio")[1].splitlines()]
    assert lines[:2] == ["1 approval", "reference state granted by expires"]
    revoke = ("approvals", "revoke", "ap-1", "--tenant", "studio", "--reason", "not any more")
    assert run(*revoke, "--actor", "user:2")[:2] == (0, "approval ap-1 is revoked\n")
    told = json.loads(run(*revoke, "--actor", "user:3", "--json")[1])
    assert (told["revoked_by"], told["revoke_reason"]) == ("user:2", "not any more")
    assert run("approvals", "list", "--tenant", "studio", "--state", "granted", "--json")[1] == "[]\n"


def test_a_person_is_named_where_nobody_says_who(run: Run) -> None:
    words = [one for one in GRANT if one not in {"--actor", "user:1"}]
    until = (NOW + timedelta(hours=2)).isoformat()
    made = json.loads(run("approvals", *words, "--until", until, "--json")[1])
    assert made["granted_by"].startswith("cli:")
    assert datetime.fromisoformat(made["expires_at"]) == NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    "words,code",
    [
        ((*GRANT,), "BAD_ARGUMENT"),
        ((*GRANT, "--minutes", "5", "--until", "2030-01-01T00:00:00Z"), "BAD_ARGUMENT"),
        ((*GRANT, "--until", "tomorrow"), "BAD_INSTANT"),
        ((*GRANT, "--until", "2030-01-01T00:00:00"), "BAD_INSTANT"),
        ((*GRANT, "--until", "2020-01-01T00:00:00Z"), "APPROVAL_EXPIRED"),
        ((*GRANT[:4], "--digest", "x", *GRANT[6:], "--minutes", "5"), "BAD_DIGEST"),
        (("show", "ap-9", "--tenant", "studio"), "NOT_FOUND"),
        (("revoke", "ap-9", "--tenant", "studio", "--reason", "r"), "NOT_FOUND"),
        (("list", "--tenant", "studio", "--state", "allowed"), "BAD_ARGUMENT"),
    ],
)
def test_what_is_refused_is_one_line(run: Run, words: tuple[str, ...], code: str) -> None:
    status, out, err = run("approvals", *words)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"[{code}]" in err
    assert json.loads(run("approvals", *words, "--json")[1])["error"] == code
    assert run("approvals", "list", "--tenant", "studio", "--json")[1] == "[]\n"
    assert run("approvals", *GRANT, "--minutes", "5")[0] == 0


def test_a_governed_job_says_how_its_approval_stands(run: Run, service: DurableJobService) -> None:
    who = tenure.ExecutionInput(actor="user:42", trace="t-1")
    job = service.create_job(idempotency_key="k-1", execution=who, **ACTION).job
    plain = service.create_job(**{**ACTION, "governance": None}, idempotency_key="k-2").job

    def governance() -> dict[str, Any]:
        told: dict[str, Any] = json.loads(run("jobs", "show", str(job.id), "--json")[1])["governance"]
        return told

    assert (governance()["approval_reference"], governance()["approval_state"]) == ("ap-1", "missing")
    assert governance()["action_digest"] == DIGEST
    run("approvals", *GRANT, "--minutes", "60")
    assert (governance()["approval_state"], governance()["approved_digest"]) == ("granted", DIGEST)
    claim = service.claim_job("w")
    assert claim is not None
    service.begin_effect(claim.lease, name="send", request={}, provider="mailer")
    assert (governance()["approval_state"], governance()["consumed_by"]) == ("consumed", str(job.id))
    for words in (("jobs", "show", str(job.id)), ("jobs", "show", str(job.id), "--json")):
        out = run(*words)[1]
        assert "CANARY" not in out
        assert "admission_checked" in out
    # Control: what nothing governs says nothing about it.
    assert "governance" not in json.loads(run("jobs", "show", str(plain.id), "--json")[1])


def test_a_retry_says_that_its_approval_does_not_stand(run: Run, service: DurableJobService) -> None:
    who = tenure.ExecutionInput(actor="user:42", trace="t-1")
    job = service.create_job(idempotency_key="k-1", execution=who, **ACTION).job
    run("approvals", *GRANT, "--minutes", "60")

    def retried() -> str:
        claim = service.claim_job("w", start=True)
        assert claim is not None
        service.fail_job(claim.lease, code="NO", message="no", retryable=False)
        return run("jobs", "retry", str(job.id))[1]

    assert retried() == f"job {job.id} is queued, phase READY\n"
    run("approvals", "revoke", "ap-1", "--tenant", "studio", "--reason", "r")
    told = retried()
    assert told.startswith(f"job {job.id} is queued, phase READY\n")
    assert "its approval ap-1 is revoked: its next effect is refused (APPROVAL_REFUSED)" in told


def test_a_second_grant_says_what_differs(run: Run) -> None:
    assert run("approvals", *GRANT, "--until", (NOW + timedelta(hours=1)).isoformat())[0] == 0
    again = run("approvals", *GRANT, "--until", (NOW + timedelta(hours=2)).isoformat())[2]
    assert f"exists and expires at {(NOW + timedelta(hours=1)).isoformat()}, which no later grant changes" in again
    assert "grant under another reference" in again
    until = (NOW + timedelta(hours=1)).isoformat()
    other = run("approvals", *GRANT, "--until", until, "--capability", "mail.read")[2]
    assert "was given for something else (differs: capability)" in other
    assert run("approvals", *GRANT, "--until", until)[0] == 0
