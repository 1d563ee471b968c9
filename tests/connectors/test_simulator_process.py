"""The simulator as a process of its own: it outlives workers, survives its own death, and never stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.connectors.simulator import (
    Promises,
    ProviderSimulator,
    Simulator,
    SimulatorProcess,
    read_ledger,
)
from tenure.errors import Invalid
from tenure.rules.outcome import (
    FailedBeforeDispatch,
    Outcome,
    Rejected,
    Succeeded,
)

KEY = "send_quote:0198:send"


def send(simulator: Simulator) -> Outcome:
    return asyncio.run(simulator.provider().send({"quote": 17}, KEY))


def actions(simulator: Simulator) -> list[str]:
    return [entry.action for entry in simulator.entries()]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "effects.jsonl"


def test_it_runs_apart_and_keeps_the_same_promises(ledger: Path) -> None:
    promises = Promises(idempotency_keys=False, key_scope="global", retention=timedelta(seconds=5), lookup=False)
    with SimulatorProcess(ledger, promises=promises) as simulator:
        assert simulator.pid != os.getpid()
        simulator.fault("refuse", status=402)
        assert send(simulator) == Rejected("HTTP 402")
        assert isinstance(send(simulator), Succeeded)
        assert isinstance(send(simulator), Succeeded)
        assert list(simulator.duplicates()) == [KEY]
        elsewhere = Simulator(simulator.url, ledger, promises)
        assert elsewhere.state()["accepted"] == 2
        assert isinstance(send(elsewhere), Succeeded)
    with pytest.raises(Invalid, match="not running"):
        _ = simulator.pid


def test_killed_after_it_answered_it_still_knows(ledger: Path) -> None:
    with SimulatorProcess(ledger) as simulator:
        first = send(simulator)
        simulator.kill()
        assert isinstance(send(simulator), FailedBeforeDispatch)
        simulator.start()
        assert send(simulator) == first
        assert simulator.duplicates() == {}


WORKER = """
import asyncio, sys
from tenure.connectors.simulator import Simulator
print(asyncio.run(Simulator(sys.argv[1], sys.argv[2]).provider().send({"quote": 17}, sys.argv[3])), flush=True)
"""


def test_it_outlives_a_worker_that_is_killed_after_the_acceptance(ledger: Path) -> None:
    """The worst moment: the provider has acted, the worker does not know yet and dies."""
    command = [sys.executable, "-c", WORKER]
    with SimulatorProcess(ledger) as simulator:
        simulator.fault("hold_reply")
        with subprocess.Popen([*command, simulator.url, str(ledger), KEY], stdout=subprocess.PIPE) as worker:
            simulator.wait_until(held=1)
            worker.kill()
            assert worker.wait(20) == -signal.SIGKILL
            assert worker.stdout is not None
            assert worker.stdout.read() == b""
        assert simulator.release() == 1
        second = subprocess.run(
            [*command, simulator.url, str(ledger), KEY], check=True, capture_output=True, timeout=60
        )
        assert b"Succeeded" in second.stdout
        assert actions(simulator) == ["accepted", "replayed"]


def test_by_hand_it_writes_its_port_and_ends_with_a_signal(ledger: Path, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [
        sys.executable,
        "-m",
        "tenure.connectors.simulator",
        "--ledger",
        str(ledger),
        "--port-file",
        str(port_file),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"ready {port_file.read_text()}\n"
        simulator = Simulator(f"http://127.0.0.1:{port_file.read_text()}", ledger)
        assert isinstance(send(simulator), Succeeded)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert len(read_ledger(ledger)) == 1


def test_it_ends_with_the_process_that_started_it(ledger: Path) -> None:
    program = (
        "import os, sys; from tenure.connectors.simulator import SimulatorProcess;"
        "print(SimulatorProcess(sys.argv[1]).start().url, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ledger)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("http://127.0.0.1:")
    # Its output was a pipe of ours too, so the run above ended only when it had; and its ledger is free again.
    with ProviderSimulator(ledger) as simulator:
        assert isinstance(send(simulator), Succeeded)


def test_a_simulator_that_cannot_start_says_so(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ProviderSimulator(ledger), pytest.raises(Invalid, match="did not start"):
        SimulatorProcess(ledger).start()
    assert "another simulator writes" in capfd.readouterr().err
