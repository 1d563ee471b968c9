"""The examples run by themselves in an empty folder and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
PRINTED = {
    "own_transaction.py": [
        "order 2 and its job are gone together: the order was withdrawn",
        "order-1 completed order 1 is packed",
    ],
    "results_in_object_storage.py": [
        "manifest: report 7, written by attempt 2",
        "manifest still: report 7, written by attempt 2",
        "objects: 2",
        "swept at once: 0",
        "swept later: 1",
        "left: report 7, written by attempt 2",
    ],
    "lost_reply.py": [
        "the job is completed after 2 attempts",
        "indeterminate indeterminate",
        "reconciled queued",
        "completed completed",
        "what the customer sees: ['fx-1']",
    ],
}
# Consumers run until they are stopped; `tests/connectors/test_example_consumers.py` runs them.
CONSUMERS = {"consume_from_nats.py", "receive_webhook.py"}


def test_every_example_is_here_and_in_the_list() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == PRINTED.keys() | CONSUMERS
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.iterdir() if path.is_file() and f"({path.name})" not in listed] == [
        "README.md"
    ]


@pytest.mark.parametrize("name", sorted(CONSUMERS))
def test_a_consumer_says_how_it_is_used(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 1
    assert f"usage: python {name} sqlite:///" in ended.stderr


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 0, ended.stderr
    rest = ended.stdout
    for line in PRINTED[name]:
        assert line in rest, f"{line!r} is missing or too early:\n{ended.stdout}"
        rest = rest.partition(line)[2]
