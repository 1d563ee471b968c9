"""Commands that do work: worker, enqueue, sweep."""

from __future__ import annotations

import asyncio
import csv
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from tenure.app import Tenure
from tenure.errors import Invalid
from tenure.faces.cli.options import AppName, AsJson, LedgerPlace, OnlyTenant, StoreUrl, loaded, who
from tenure.faces.cli.show import console, table, write_json
from tenure.loops.sweeper import Sweeper
from tenure.procedures.inspect import list_jobs
from tenure.rules.digest import payload_digest
from tenure.rules.payload import parse
from tenure.rules.reconcile import Verdict

if TYPE_CHECKING:
    from tenure.loops.worker import Worker

_BATCH = 500


def worker(
    app: AppName,
    store: StoreUrl = None,
    concurrency: Annotated[int, typer.Option(help="Handlers at once.", min=1)] = 10,
    queue: Annotated[list[str] | None, typer.Option(help="Only this queue; may be given again, in order.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; may be given again.")] = None,
    tenant: OnlyTenant = None,
    organization: Annotated[str | None, typer.Option(help="Only this organization's work.")] = None,
    owner: Annotated[
        str | None, typer.Option(help="The service this worker belongs to, for queues that have an owner.")
    ] = None,
    heartbeat: Annotated[float | None, typer.Option(help="Seconds between two renewals of a lease.")] = None,
    sweep_every: Annotated[float, typer.Option(help="Seconds between sweeps; 0 leaves them to somebody else.")] = 10.0,
    grace: Annotated[float, typer.Option(help="Seconds a drain may take before handlers are stopped.")] = 30.0,
    health_file: Annotated[Path | None, typer.Option(help="Written about once a second.")] = None,
    journal_dir: Annotated[Path | None, typer.Option(help="Where receipts go that the database did not take.")] = None,
    ledger: LedgerPlace = None,
    uvloop: Annotated[bool, typer.Option("--uvloop", help="Run on uvloop; needs tenure[uvloop].")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what happens, by ids and codes.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run an app's handlers until SIGTERM or Ctrl-C; again to stop handlers, a third time to leave at once."""
    if verbose:
        logging.getLogger("tenure").setLevel(logging.INFO)
        logging.getLogger("psycopg.pool").setLevel(logging.WARNING)
    with loaded(app, store, ledger) as found:
        run = found.worker(
            concurrency=concurrency,
            queues=queue or None,
            kinds=kind or None,
            tenant=tenant,
            organization=organization,
            owner=owner,
            heartbeat=None if heartbeat is None else timedelta(seconds=heartbeat),
            sweep_every=timedelta(seconds=sweep_every) if sweep_every > 0 else None,
            grace=timedelta(seconds=grace),
            health_file=health_file,
            journal_dir=journal_dir,
        )
        with asyncio.Runner(loop_factory=_uvloop() if uvloop else None) as runner:
            status = runner.run(_run(found, run, quiet=as_json))
    if as_json:
        write_json({"worker_id": run.worker_id, "clean": status == 0})
    return status


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - an extra, for those who ask for it
    except ImportError as error:
        raise Invalid(f"--uvloop needs uvloop ({error}): pip install 'tenure[uvloop]'", code="MISSING_EXTRA") from None
    return new_event_loop


async def _run(app: Tenure, run: Worker, *, quiet: bool) -> int:
    try:
        # A database that is not there, or has another schema, is the first thing said, and the only one.
        await (await app.astore()).run(list_jobs(limit=1))
        if not quiet:
            console(stderr=True).print(f"worker {run.worker_id} on {app.url}; Ctrl-C drains", markup=False)
        return await run.main()
    finally:
        await app.aclose()


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
    with loaded(app, store) as found:
        try:
            if (payload is None) == (source is None):
                raise Invalid("give either one JSON object or --from FILE", code="BAD_ARGUMENT")
            rows = [("", parse(payload))] if payload is not None else list(_rows(source or Path()))
            by = actor or found.actor or who()
            created, known, ids = _create(found, kind, rows, key, key_field, by, quiet=as_json)
        finally:
            found.close()
    if as_json:
        write_json({"created": created, "known": known, "ids": ids})
    else:
        sys.stdout.write(f"{created} created, {known} known already\n")
    return 0


def _create(
    app: Tenure,
    kind: str,
    rows: list[tuple[str, Any]],
    key: str | None,
    key_field: str | None,
    actor: str | None,
    *,
    quiet: bool,
) -> tuple[int, int, list[str]]:
    # Everything is checked before anything is written: a bad row 900 must not leave 899 jobs behind.
    jobs = []
    for place, row in rows:
        try:
            jobs.append(app.prepare(kind, row, key=_key(kind, row, key, key_field), actor=actor))
        except Invalid as error:
            raise Invalid(f"{place}{error}", code=error.code) from error
    created, ids = 0, []
    with Progress(console=console(stderr=True), disable=quiet or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("enqueue", total=len(jobs))
        for start in range(0, len(jobs), _BATCH):
            made = app.enqueue_many(jobs[start : start + _BATCH])
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


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Give each row with the place that an error about it begins with."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            if path.suffix.lower() == ".csv":
                for number, row in enumerate(csv.DictReader(lines, strict=True), 1):
                    if None in row or None in row.values():
                        raise Invalid(f"row {number} has more or fewer cells than the header", code="BAD_FILE")
                    yield f"row {number}: ", row
                return
            number = 0
            for line in lines:
                if line.strip():
                    number += 1
                    yield f"row {number}: ", _parsed(line, number)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path} cannot be read: {error}", code="BAD_FILE") from error


def _parsed(line: str, number: int) -> Any:
    try:
        return parse(line)
    except Invalid as error:
        raise Invalid(f"row {number}: {error}", code=error.code) from error


def sweep(
    app: AppName,
    store: StoreUrl = None,
    tenant: OnlyTenant = None,
    patient: Annotated[bool, typer.Option(help="Ask silent providers again later instead of escalating now.")] = False,
    as_json: AsJson = False,
) -> int:
    """Ask providers about everything that is uncertain, once; it never sends."""
    with loaded(app, store) as found:
        verdicts = asyncio.run(_sweep(found, tenant, patient=patient))
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


async def _sweep(app: Tenure, tenant: str | None, *, patient: bool) -> list[Verdict]:
    try:
        sweeper = Sweeper(await app.astore(), app.providers.by_name, tenant=app.owner_of(tenant))
        return await sweeper.sweep(patient=patient)
    finally:
        await app.aclose()
