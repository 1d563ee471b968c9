"""What a worker costs that has nothing to do, measured from outside; and how soon it wakes up."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure import AsyncContext
from tests.loops.stage import Child, Running, ended, job, make_app, until

SECONDS = 5.0
SHARE_MAX, BYTES_MAX = 0.01, 80 << 20


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all its threads, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_idle_worker_costs_next_to_nothing(both_urls: SimpleNamespace, tmp_path: Path) -> None:
    """Under one hundredth of a core and 80 MB, with health file, journal and sweeps, on both databases."""
    with ExitStack() as stack:
        workers = {}
        for dialect, url in vars(both_urls).items():
            folder = tmp_path / dialect
            folder.mkdir()
            options: dict[str, Any] = {
                "health_file": str(folder / "health.json"),
                "journal_dir": str(folder / "journal"),
            }
            workers[dialect] = stack.enter_context(Child(url, folder, **options))
            # Two looks of the slowest poll later nothing of the start is left.
            first = (folder / "health.json").read_text()
            until(lambda folder=folder, first=first: (folder / "health.json").read_text() != first, "another word")
        share = dict.fromkeys(workers, 1.0)
        # A machine that is busy with others makes caches cold and costs more; the best of three counts.
        for _ in range(3):
            before = {dialect: processor_seconds(worker.pid) for dialect, worker in workers.items()}
            began = time.monotonic()
            time.sleep(SECONDS)  # a measurement: time has to pass
            took = time.monotonic() - began
            for dialect, worker in workers.items():
                share[dialect] = min(share[dialect], (processor_seconds(worker.pid) - before[dialect]) / took)
            if max(share.values()) < SHARE_MAX:
                break
        size = {dialect: resident_bytes(worker.pid) for dialect, worker in workers.items()}
        print({dialect: f"{100 * share[dialect]:.2f} % of a core, {size[dialect] / 1e6:.0f} MB" for dialect in workers})
        assert max(share.values()) < SHARE_MAX, share
        assert max(size.values()) < BYTES_MAX, size
        for worker in workers.values():
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0


async def quick(ctx: AsyncContext, payload: dict[str, Any]) -> int:
    return 1


@pytest.mark.parametrize("listen", ["on", "off"])
def test_new_work_is_found_at_once_where_the_database_can_tell_and_by_polling_where_not(
    postgresql_url: str, listen: str
) -> None:
    app = make_app(f"{postgresql_url}?tenure_listen={listen}")
    app.job("quick")(quick)
    poll = timedelta(seconds=3 if listen == "on" else 1)
    with Running(app, poll=poll) as running:
        # So long idle that it looks rarely.
        until(lambda: running.worker._claims.pause >= poll.total_seconds(), "the pauses to be long")
        waits = []
        for nth in range(2):
            began = time.monotonic()
            one = app.enqueue("quick", {}, key=f"k{nth}").job
            ended(app, one, "completed", within=20)
            waits.append(time.monotonic() - began)
            until(lambda: running.worker._claims.pause >= poll.total_seconds() / 4, "the pauses to grow again")
    if listen == "on":
        # By polling alone the shorter of the two would be seconds.
        assert min(waits) < 1
    else:
        assert max(waits) < 1 + 4


def test_a_program_with_its_own_worker_wakes_it_on_sqlite_too(sqlite_url: str) -> None:
    app = make_app(sqlite_url)
    app.job("quick")(quick)
    with Running(app, poll=timedelta(seconds=3)) as running:
        until(lambda: running.worker._claims.pause >= 3, "the pauses to be long")
        began = time.monotonic()
        one = app.enqueue("quick", {}, key="k").job
        ended(app, one, "completed", within=20)
        assert time.monotonic() - began < 1.4
        assert job(app, one).attempt_count == 1
