"""Large results as immutable objects: a fenced manifest names the one that counts, and a sweep removes the others."""

import asyncio
import hashlib
import os
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tenure import AsyncContext, Tenure
from tenure.testing import ManualClock

OBJECTS = Path("objects")
# Longer than from the writing of an object to the end of its publish: the handler's timeout, one lease, one publish.
TIMEOUT, LEASE = timedelta(minutes=5), timedelta(seconds=60)
SAFE_AGE = TIMEOUT + LEASE + LEASE / 3

clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))  # so that nobody has to wait for a lease to end
app = Tenure("sqlite:///reports.db", organization="studio", project="reports", actor="user:42", clock=clock)
first_has_written, first_may_go_on = asyncio.Event(), asyncio.Event()


def put(name: str, data: bytes) -> None:
    """Write an object once: whole or not at all, and never over another one."""
    path = OBJECTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


@app.job("report", timeout=TIMEOUT, lease_duration=LEASE)
async def report(ctx: AsyncContext, asked: dict) -> str:
    """Write the object first, then name it under the fence."""
    data = f"report {asked['number']}, written by attempt {ctx.job.attempt_count}".encode()
    name = f"{ctx.job.id}/{ctx.lease.attempt_id}"  # no other attempt writes there
    put(name, data)
    if ctx.job.attempt_count == 1:  # this worker is paused here for longer than its lease
        first_has_written.set()
        await first_may_go_on.wait()
    async with ctx.publish() as tx:
        await tx.execute(
            "INSERT INTO manifest (job_id, object, sha256) VALUES (?, ?, ?) "
            "ON CONFLICT (job_id) DO UPDATE SET object = excluded.object, sha256 = excluded.sha256",
            [str(ctx.job.id), name, hashlib.sha256(data).hexdigest()],
        )
    return name


def sweep(at: float) -> list[str]:
    """Remove objects that no manifest names, once nobody can name them any more."""
    # First what is there, then what is named: what is named in between is kept.
    old = [path for path in OBJECTS.glob("*/*") if at - path.stat().st_mtime > SAFE_AGE.total_seconds()]
    connection = sqlite3.connect("reports.db")
    named = {row[0] for row in connection.execute("SELECT object FROM manifest")}
    connection.close()
    orphans = [path for path in old if path.relative_to(OBJECTS).as_posix() not in named]
    for path in orphans:
        path.unlink()
    return [path.relative_to(OBJECTS).as_posix() for path in orphans]


def load(job_id: str) -> str:
    """Read the result of a job, by its manifest alone."""
    connection = sqlite3.connect("reports.db")
    name, digest = connection.execute("SELECT object, sha256 FROM manifest WHERE job_id = ?", [job_id]).fetchone()
    connection.close()
    data = (OBJECTS / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest, "the object is not the one that was published"
    return data.decode()


def count() -> int:
    """Count the objects."""
    return len(list(OBJECTS.glob("*/*")))


async def main() -> None:
    """Let a worker be paused, another attempt take over, and the paused one come back."""
    app.migrate()
    connection = sqlite3.connect("reports.db")
    connection.execute("CREATE TABLE manifest (job_id TEXT PRIMARY KEY, object TEXT NOT NULL, sha256 TEXT NOT NULL)")
    connection.close()
    job = app.enqueue(report, {"number": 7}, key="report-7").job
    service = await app.aservice()
    async with app.worker(concurrency=2, poll=timedelta(milliseconds=50)) as worker:
        await first_has_written.wait()
        clock.advance(LEASE)  # the lease is over: another attempt may begin
        while (await service.get_job(job.id)).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print("manifest:", load(str(job.id)))
        first_may_go_on.set()  # the first attempt wakes up, and its publish is refused
        while worker.health().running:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await app.aclose()
    print("manifest still:", load(str(job.id)))
    print("objects:", count())
    print("swept at once:", len(sweep(time.time())))
    print("swept later:", len(sweep(time.time() + 2 * SAFE_AGE.total_seconds())))
    print("left:", load(str(job.id)))


if __name__ == "__main__":
    asyncio.run(main())
