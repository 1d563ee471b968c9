"""`tenure queues pause|resume|drain|transfer|history` and `tenure stats`: what operators type and programs read."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.faces.cli import queue_changes
from tenure.faces.cli.main import main
from tenure.procedures import upkeep
from tenure.rules.stats import MISSING, TABLE, Category, Missing

ROOT = Path(__file__).parents[2]


@dataclass
class Shell:
    """A shell whose store has a service of the test's own beside it."""

    call: Callable[..., tuple[int, str, str]]
    service: tenure.DurableJobService

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self.call(*words)

    def json(self, *words: str, status: int = 0) -> Any:
        code, out, err = self.call(*words, "--json")
        assert code == status, err
        return json.loads(out)

    def create(self, key: str = "k-1", **fields: Any) -> tenure.Job:
        given: dict[str, Any] = {"organization": "acme", "project": "p1", "kind": "send_quote", "payload": {"n": 1}}
        return self.service.create_job(idempotency_key=key, queue="mail", **{**given, **fields}).job


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("TENURE_STORE", url)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    with tenure.open_store(url) as store:
        store.migrate()
        yield Shell(call, tenure.DurableJobService(store, actor="op:1"))


def test_a_pause_is_seen_and_taken_back(shell: Shell) -> None:
    shell.create()
    assert shell("queues", "pause", "mail", "--reason", "fire") == (
        0, "queue mail is paused; `tenure queues resume mail` lets it go on\n", ""
    )  # fmt: skip
    (mail,) = shell.json("queues", "list")
    assert (mail["pause_reason"], mail["paused_at"] is None, mail["ready"]) == ("fire", False, 1)
    assert "paused" in shell("queues", "list")[1]
    assert shell.json("stats")["totals"]["held"] == 1
    assert shell.service.claim_job("A") is None
    assert shell("queues", "resume", "mail")[1] == "queue mail is claimed from and takes new jobs\n"
    assert shell.service.claim_job("A") is not None
    history = shell.json("queues", "history", "mail")
    assert [one["what"] for one in history] == ["resumed", "paused"]
    assert history[0]["actor"].startswith("cli:")
    assert "fire" in shell("queues", "history", "mail")[1]
    assert shell("queues", "history", "other")[1] == "nobody has done anything with queue other\n"
    assert shell("queues", "pause", "mail")[0] == 2  # why has to be said


def test_a_drain_looks_once_and_says_what_is_left(shell: Shell) -> None:
    shell.create()
    status, out, _ = shell("queues", "drain", "mail")
    assert (status, out) == (1, "queue mail still has 1 job: 1 ready; it takes no new ones\n")
    lease = shell.service.claim_jobs("A", limit=1, start=True)[0].lease
    shell.service.complete_job(lease)
    assert shell("queues", "drain", "mail") == (0, "queue mail is drained\n", "")
    assert shell.json("queues", "drain", "mail")["drained"] is True


def test_a_drain_waits_until_the_last_job_is_done(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.create()
    lease = shell.service.claim_jobs("A", limit=1, start=True)[0].lease
    looked = threading.Event()
    monkeypatch.setattr(queue_changes, "LOOK_EVERY", 0.01)
    inner = queue_changes.DurableJobService.show_queues

    def look(*args: Any) -> Any:
        looked.set()
        return inner(*args)

    monkeypatch.setattr(queue_changes.DurableJobService, "show_queues", look)

    def work() -> None:
        looked.wait()
        shell.service.complete_job(lease)

    worker = threading.Thread(target=work)
    worker.start()
    status, out, err = shell("queues", "drain", "mail", "--timeout", "30")
    worker.join()
    assert (status, out) == (0, "queue mail is drained\n")
    assert err in {"", "queue mail still has 1 job: 1 leased\n"}


def test_a_drain_ends_when_its_time_is_over(shell: Shell) -> None:
    shell.create()
    status, out, err = shell("queues", "drain", "mail", "--timeout", "0.05")
    assert (status, out) == (1, "queue mail still has 1 job: 1 ready; it takes no new ones\n")
    assert err == "queue mail still has 1 job: 1 ready\n"
    assert shell.json("queues", "drain", "mail", "--timeout", "0.05", status=1)["ready"] == 1


def test_a_drain_says_that_a_paused_queue_never_gets_empty(shell: Shell) -> None:
    shell.create()
    shell.service.pause_queue("mail", reason="fire")
    status, out, err = shell("queues", "drain", "mail", "--timeout", "0.05")
    assert (status, "it is paused: `tenure queues resume mail`, then drain it again" in out) == (1, True)
    assert "it is paused" in err
    shell.service.resume_queue("mail")
    assert "paused" not in shell("queues", "drain", "mail")[1]


def test_a_pause_of_a_queue_that_nobody_knows_asks_whether_it_is_meant(shell: Shell) -> None:
    assert "is this its name?" in shell("queues", "pause", "nosuch", "--reason", "r")[1]
    assert "is this its name?" not in shell("queues", "pause", "nosuch", "--reason", "r")[1]
    shell.create()
    assert "is this its name?" not in shell("queues", "pause", "mail", "--reason", "r")[1]


def test_a_list_says_which_jobs_a_pause_holds(shell: Shell) -> None:
    shell.create()
    shell.service.create_job(
        organization="acme", project="p1", idempotency_key="k-2", kind="send_quote", payload={}, queue="print"
    )
    shell.service.pause_queue("mail", reason="fire")
    assert shell("jobs", "list", "--phase", "HELD")[1].count("its queue is paused") == 1
    assert [one["queue"] for one in shell.json("jobs", "list", "--queue", "print")] == ["print"]
    assert "paused" not in shell("jobs", "list", "--queue", "print")[1]


def test_a_transfer_says_that_a_pause_goes_along_and_that_from_is_missing(shell: Shell) -> None:
    shell.create()
    shell.service.pause_queue("mail", reason="fire")
    _, out, _ = shell("queues", "transfer", "mail", "--to", "billing", "--with-work")
    assert out == (
        "queue mail belongs to billing from now on, with 1 job; it is still paused: `tenure queues resume mail`\n"
    )
    assert "is expected= (--from) missing?" in shell("queues", "transfer", "mail", "--to", "shipping")[2]
    err = shell("queues", "transfer", "mail", "--from", "print", "--to", "shipping")[2]
    assert ("missing" in err, "quicker" in err) == (False, True)


def test_a_transfer_says_whose_it_is(shell: Shell) -> None:
    assert shell("queues", "transfer", "mail", "--to", "billing")[1] == (
        "queue mail belongs to billing from now on, with 0 jobs\n"
    )
    status, out, err = shell("queues", "transfer", "mail", "--to", "shipping")
    assert (status, out) == (1, "")
    assert err.endswith("[OWNER_CHANGED]\n")
    shell.create()
    status, _, err = shell("queues", "transfer", "mail", "--from", "billing", "--to", "shipping")
    assert (status, err.endswith("[QUEUE_NOT_DRAINED]\n")) == (1, True)
    moved = shell.json("queues", "transfer", "mail", "--from", "billing", "--to", "shipping", "--with-work")
    assert (moved["owner"], moved["ready"]) == ("shipping", 1)
    assert (
        "belongs to nobody" in shell("queues", "transfer", "mail", "--from", "shipping", "--to", "", "--with-work")[1]
    )


def test_a_transfer_waits_for_leases_and_takes_its_pause_back(shell: Shell) -> None:
    shell.create()
    lease = shell.service.claim_jobs("A", limit=1, start=True)[0].lease
    asked = ("queues", "transfer", "mail", "--to", "billing", "--with-work")
    for wait in ((), ("--wait", "0.05")):
        status, _, err = shell(*asked, *wait)
        assert (status, err.endswith("[LEASES_LIVE]\n")) == (1, True)
        (mail,) = shell.service.show_queues("mail")
        assert (mail.owner, mail.paused_at) == (None, None)
    shell.service.drain_queue("mail")
    assert shell(*asked, "--wait", "0.05")[0] == 1
    (mail,) = shell.service.show_queues("mail")
    assert (mail.paused_at, mail.draining_at is None) == (None, False)
    shell.service.release_job(lease, reason="r")
    assert shell.json(*asked, "--wait", "5")["owner"] == "billing"
    (mail,) = shell.service.show_queues("mail")
    assert (mail.paused_at, mail.draining_at) == (None, None)


def test_a_pause_that_was_there_stays_after_a_transfer(shell: Shell) -> None:
    shell.service.pause_queue("mail", reason="fire")
    assert shell.json("queues", "transfer", "mail", "--to", "billing", "--wait", "5")["pause_reason"] == "fire"


def test_counts_are_shown_to_people_and_programs(shell: Shell) -> None:
    assert shell("stats") == (0, "everything is done\n", "")
    shell.create(payload={"secret": "marker"})
    shell.create("k-2", tenant="north", organization="north")
    shell.service.store.run(upkeep.announce("A", ["send_quote"], timedelta(minutes=1)))
    said = shell.json("stats", "--tenant", "acme")
    (line,) = said["lines"]
    assert line.pop("oldest_age_seconds") >= 0
    assert line.pop("oldest_at").endswith("+00:00")
    assert line == {
        "tenant": "acme", "kind": "send_quote", "queue": "mail", "category": "queued",
        "reason": "workers_busy", "missing": "capacity", "count": 1,
    }  # fmt: skip
    assert set(said) == {"at", "totals", "lines", "oldest_expired_lease_seconds", "outbox", "suspects", "frozen"}
    assert said["totals"] == {one.value: int(one is Category.QUEUED) for one in Category}
    assert said["oldest_expired_lease_seconds"] == {"acme": 0.0}
    shown = shell("stats")[1]
    assert shown.startswith("2 jobs are not done")
    assert shown.count("workers_busy") == 2
    assert "marker" not in shown


def test_the_page_names_every_category_reason_and_field(shell: Shell) -> None:
    page = (ROOT / "docs" / "reference" / "stats.md").read_text(encoding="utf-8")
    shell.create()
    said = shell.json("stats")
    (queue,) = shell.json("queues", "list")
    words = [*Category, *Missing, *said, *said["lines"][0], *queue]
    assert [word for word in words if f"`{word}`" not in page] == []
    for reason, missing in MISSING.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{reason}` |")]
        _, _, told, where, _, _ = row.split("|")
        assert told.strip() == missing
        assert set(where.strip().split(", ")) == {category for category, one, _ in TABLE if one is reason}
    how_to = (ROOT / "docs" / "how-to" / "see-what-is-going-on.md").read_text(encoding="utf-8")
    assert [reason for reason in MISSING if f"`{reason}`" not in how_to] == []
