"""The brokers of the tests: on loopback only, never as root, and gone with whoever started them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import brokers
from tests.support.brokers.__main__ import KINDS

ROOT = Path(__file__).resolve().parents[2]
# 127.0.0.1 and ::1, as the kernel shows them.
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def inodes(pid: int) -> set[str]:
    """Give the sockets that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(descriptor.readlink()))
        except OSError:  # closed in between
            continue
    return {one[8:-1] for one in found if one.startswith("socket:[")}


def listening(pid: int) -> set[str]:
    """Give the addresses on which a process accepts connections, in hexadecimal as the kernel shows them."""
    own = inodes(pid)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in own:
                found.add(parts[1].partition(":")[0])
    return found


def unprivileged(pid: int) -> bool:
    return Path(f"/proc/{pid}").stat().st_uid != 0


def children(pid: int) -> list[int]:
    """Give the processes below one, deepest last."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_broker_is_on_loopback_never_root_and_does_not_outlive_a_killed_owner(kind: str) -> None:
    brokers.or_skip(KINDS[kind].find)
    command = [sys.executable, "-m", "tests.support.brokers", kind]
    owner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        assert url
        processes = children(owner.pid)
        assert "0100007F" in set().union(*(listening(pid) for pid in processes))
        assert set().union(*(listening(pid) for pid in processes)) <= LOOPBACK
        assert all(unprivileged(pid) for pid in processes)
        # Nobody is left to remove it.
        folders = {Path(f"/proc/{pid}/cwd").readlink() for pid in processes}
        ended = [os.pidfd_open(pid) for pid in processes]
        owner.send_signal(signal.SIGKILL)
        waiting = set(ended)
        while waiting:
            now, _, _ = select.select(list(waiting), [], [], 30)
            assert now, "a process of the broker is still running"
            waiting -= set(now)
        for one in ended:
            os.close(one)
    for folder in folders:
        if folder.name.startswith("tenure-"):
            shutil.rmtree(folder)
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5),
    ):
        pass


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_a_broker_that_is_closed_leaves_nothing(kind: str) -> None:
    with brokers.or_skip(KINDS[kind]) as server:
        pid = server.pid
        assert server.running
        assert server.folder.exists()
    assert not server.folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_server_is_one_clear_skip_and_under_ci_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody(brokers.NatsServer):
        package = "no-such-server"

    monkeypatch.delenv("TENURE_CI", raising=False)
    with pytest.raises(BaseException, match="apt-get install no-such-server") as skipped:
        brokers.or_skip(Nobody)
    assert type(skipped.value).__name__ == "Skipped"
    monkeypatch.setenv("TENURE_CI", "1")
    with pytest.raises(BaseException, match="must be there") as failed:
        brokers.or_skip(Nobody)
    assert type(failed.value).__name__ == "Failed"


def test_a_server_that_does_not_start_is_no_reason_to_skip() -> None:
    class Broken(brokers.RedisServer):
        def command(self) -> list[str]:
            return [*super().command(), "--no-such-setting", "1"]

    brokers.or_skip(brokers.RedisServer.find)
    with pytest.raises(brokers.NoServer, match="did not start") as refused:
        brokers.or_skip(Broken)
    assert not isinstance(refused.value, brokers.NotInstalled)


def test_processes_of_one_run_share_a_rabbitmq(tmp_path_factory: pytest.TempPathFactory, rabbit_url: str) -> None:
    base = tmp_path_factory.getbasetemp()
    meeting = next(one for one in (base / "rabbitmq", base.parent / "rabbitmq") if one.exists())
    program = (
        "import sys; from pathlib import Path; from tests.support.brokers import attach\n"
        "with attach(Path(sys.argv[1])) as url: print(url)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(meeting)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == rabbit_url
