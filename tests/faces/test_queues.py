"""`tenure queues`: what an operator says about queues, and reads of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure.faces.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a store of its own, without a terminal."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tenure.open_store(url) as store:
        store.migrate()
    monkeypatch.setenv("TENURE_STORE", url)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tenure", "queues", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_what_is_set_is_listed(run: Run) -> None:
    assert run("list") == (0, "every queue is plain and empty\n", "")
    assert run("list", "--json")[1] == "[]\n"
    assert run("set", "mail", "--fair", "--weight", "acme=3", "--weight", "a=b=2") == (
        0, "queue mail is fair from now on\n", ""
    )  # fmt: skip
    empty = {"ready": 0, "deferred": 0, "resting": 0, "leased": 0, "uncertain": 0, "drained": True}
    free = {"owner": None, "paused_at": None, "paused_by": None, "pause_reason": None, "draining_at": None}
    said = {"name": "mail", "fair": True, "weights": {"a=b": 2, "acme": 3}, **empty, **free}
    assert json.loads(run("list", "--json")[1]) == [said]
    lines = [" ".join(line.split()) for line in run("list")[1].splitlines()]
    assert lines == ["1 queue", "queue served weights", "mail fair a=b=2, acme=3"]
    assert json.loads(run("set", "mail", "--plain", "--json")[1]) == {"name": "mail", "fair": False, "weights": {}}
    assert run("set", "print", "--plain")[1] == "queue print is plain from now on\n"
    assert [one["name"] for one in json.loads(run("list", "--json")[1])] == ["mail", "print"]


@pytest.mark.parametrize(
    "words,text",
    [
        (("mail", "--fair", "--weight", "acme"), "--weight takes a tenant and a whole number"),
        (("mail", "--fair", "--weight", "acme=x"), "each tenant once: --weight acme=3, not 'acme=x'"),
        (("mail", "--fair", "--weight", "acme=-1"), "not 'acme=-1'"),
        (("mail", "--fair", "--weight", "acme=1", "--weight", "acme=2"), "each tenant once"),
        (("mail", "--fair", "--weight", "acme=101"), "must be a whole number from 1 to 100, not 101"),
        (("mail", "--plain", "--weight", "acme=2"), "weights are for fair queues"),
        ((" ", "--fair"), "queue must be non-empty text"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_set(run: Run, words: tuple[str, ...], text: str) -> None:
    status, out, err = run("set", *words)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert text in err
    assert err.endswith("[BAD_ARGUMENT]\n")
    assert run("list")[1] == "every queue is plain and empty\n"
    assert run("set", "mail", "--fair", "--weight", "acme=2")[0] == 0


def test_fair_or_plain_has_to_be_said(run: Run) -> None:
    assert run("set", "mail")[0] == 2
    assert run("set", "mail", "--plain")[0] == 0


def test_how_a_queue_is_served_has_to_be_said(run: Run) -> None:
    status, out, err = run("set", "mail")
    assert (status, out) == (2, "")
    assert "say --fair, so that tenants take turns, or --plain" in " ".join(err.split())
    assert run("list")[1] == "every queue is plain and empty\n"
