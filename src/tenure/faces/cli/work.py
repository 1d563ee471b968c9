"""Commands that do work: worker, enqueue, sweep."""

from __future__ import annotations

import asyncio
import csv
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from tenure.app import Tenure
from tenure.errors import Invalid
from tenure.faces.cli.options import AppName, AsJson, StoreUrl, load_app, who
from tenure.faces.cli.show import console, table, write_json
from tenure.loops.sweeper import Sweeper
from tenure.rules.digest import payload_digest
from tenure.rules.payload import parse
from tenure.rules.reconcile import Verdict

_BATCH = 500


def worker(
    app: AppName,
    store: StoreUrl = None,
    concurrency: Annotated[int, typer.Option(help="Handlers at once.", min=1)] = 10,
    queue: Annotated[list[str] | None, typer.Option(help="Only this queue; may be given again, in order.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; may be given again.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's work.")] = None,
    organization: Annotated[str | None, typer.Option(help="Only this organization's work.")] = None,
    heartbeat: Annotated[float | None, typer.Option(help="Seconds between two renewals of a lease.")] = None,
    sweep_every: Annotated[float, typer.Option(help="Seconds between sweeps; 0 leaves them to somebody else.")] = 10.0,
    grace: Annotated[float, typer.Option(help="Seconds a drain may take before handlers are stopped.")] = 30.0,
    health_file: Annotated[Path | None, typer.Option(help="Written about once a second.")] = None,
    journal_dir: Annotated[Path | None, typer.Option(help="Where receipts go that the database did not take.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what happens, by ids and codes.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run an app's handlers until SIGTERM or Ctrl-C; again to stop handlers, a third time to leave at once."""
    if verbose:
        logging.getLogger("tenure").setLevel(logging.INFO)
    loaded = load_app(app, store)
    run = loaded.worker(
        concurrency=concurrency,
        queues=queue or None,
        kinds=kind or None,
        tenant=tenant,
        organization=organization,
        heartbeat=None if heartbeat is None else timedelta(seconds=heartbeat),
        sweep_every=timedelta(seconds=sweep_every) if sweep_every > 0 else None,
        grace=timedelta(seconds=grace),
        health_file=health_file,
        journal_dir=journal_dir,
    )
    if not as_json:
        console(stderr=True).print(f"worker {run.worker_id} on {loaded.url}; Ctrl-C drains", markup=False)
    status = asyncio.run(_run(loaded, run))
    if as_json:
        write_json({"worker_id": run.worker_id, "clean": status == 0})
    return status


async def _run(loaded: Tenure, run: Any) -> int:
    try:
        status: int = await run.main()
    finally:
        await loaded.aclose()
    return status


def enqueue(
    app: AppName,
    kind: Annotated[str, typer.Argument(help="A kind of the app.")],
    payload: Annotated[str | None, typer.Argument(help="A JSON object.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A .csv with a header, or JSON lines; one job for each row.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key of the one job.")] = None,
    key_field: Annotated[str | None, typer.Option(help="The column whose value is the key; else a digest.")] = None,
    actor: Annotated[
        str, typer.Option(envvar="TENURE_ACTOR", help="Who the work is done for; the app's own actor when left out.")
    ] = "",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Create jobs: one from a JSON object, or one for each row of a file. Doing it twice creates nothing new."""
    loaded = load_app(app, store)
    try:
        if (payload is None) == (source is None):
            raise Invalid("give either one JSON object or --from FILE", code="BAD_ARGUMENT")
        rows = [parse(payload)] if payload is not None else list(_rows(source or Path()))
        created, known, ids = _create(loaded, kind, rows, key, key_field, actor or loaded.actor or who(), quiet=as_json)
    finally:
        loaded.close()
    if as_json:
        write_json({"created": created, "known": known, "ids": ids})
    else:
        sys.stdout.write(f"{created} created, {known} known already\n")
    return 0


def _create(
    loaded: Tenure,
    kind: str,
    rows: list[Any],
    key: str | None,
    key_field: str | None,
    actor: str | None,
    *,
    quiet: bool,
) -> tuple[int, int, list[str]]:
    # Everything is checked before anything is written: a bad row 900 must not leave 899 jobs behind.
    jobs = []
    for number, row in enumerate(rows, 1):
        try:
            jobs.append(loaded.prepare(kind, row, key=_key(kind, row, key, key_field), actor=actor))
        except Invalid as error:
            raise Invalid(f"row {number}: {error}", code=error.code) from error
    created, ids = 0, []
    with Progress(console=console(stderr=True), disable=quiet or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("enqueue", total=len(jobs))
        for start in range(0, len(jobs), _BATCH):
            made = loaded.enqueue_many(jobs[start : start + _BATCH])
            created += sum(one.created for one in made)
            ids += [str(one.job.id) for one in made]
            progress.advance(bar, len(made))
    return created, len(jobs) - created, ids


def _key(kind: str, row: Any, key: str | None, key_field: str | None) -> str:
    if key is not None:
        return key
    if not isinstance(row, dict):
        raise Invalid("a payload is a JSON object", code="PAYLOAD_INVALID")
    if key_field is not None:
        if row.get(key_field) in {None, ""}:
            raise Invalid(f"it has no {key_field!r} to make its key of", code="KEY_FIELD_MISSING")
        return f"{kind}-{row[key_field]}"
    return payload_digest(kind, row)


def _rows(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            if path.suffix.lower() == ".csv":
                for number, row in enumerate(csv.DictReader(lines, strict=True), 1):
                    if None in row or None in row.values():
                        raise Invalid(f"row {number} has more or fewer cells than the header", code="BAD_FILE")
                    yield row
                return
            for line in lines:
                if line.strip():
                    yield parse(line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path} cannot be read: {error}", code="BAD_FILE") from error


def sweep(
    app: AppName,
    store: StoreUrl = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's jobs.")] = None,
    patient: Annotated[bool, typer.Option(help="Ask silent providers again later instead of escalating now.")] = False,
    as_json: AsJson = False,
) -> int:
    """Ask providers about everything that is uncertain, once; it never sends."""
    loaded = load_app(app, store)
    verdicts = asyncio.run(_sweep(loaded, tenant, patient=patient))
    if as_json:
        write_json(
            [
                {"job_id": one.job_id, "action": one.action, "status": one.status, "reason": one.reason}
                for one in verdicts
            ]
        )
    elif verdicts:
        table(
            "sweep", ("job", "action", "status", "reason"), [(v.job_id, v.action, v.status, v.reason) for v in verdicts]
        )
    else:
        sys.stdout.write("nothing is uncertain\n")
    return 0


async def _sweep(loaded: Tenure, tenant: str | None, *, patient: bool) -> list[Verdict]:
    try:
        sweeper = Sweeper(await loaded.astore(), loaded.providers.by_name, tenant=tenant or loaded.tenant)
        return await sweeper.sweep(patient=patient)
    finally:
        await loaded.aclose()
