"""
The command line: one program, thin readings of the verbs.

Every command takes `--store URL` (or TENURE_STORE) and `--json`, exits with 0 when it is done, 1 when it was refused or
failed, 2 when the command line could not be read. An error is one line on stderr, or one JSON object on stdout with
`--json`.
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from tenure.errors import TenureError
from tenure.faces.cli import (
    approvals,
    demo,
    jobs,
    journal,
    lab,
    outbox,
    queue_changes,
    queues,
    recover,
    stats,
    storage,
    suspects,
    tenants,
    work,
)
from tenure.faces.cli.show import write_json


def _exit(status: object, **_: object) -> None:
    """Let what a command returned be the program's status."""
    raise typer.Exit(status if isinstance(status, int) else 0)


app = typer.Typer(
    name="tenure",
    help="Durable jobs for agents and for any code whose work reaches the outside world.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    result_callback=_exit,
)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tenure {version('tenure')}\n")
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


app.command("demo")(demo.demo)
app.add_typer(lab.app, name="lab")
app.command("init")(storage.init)
app.command("migrate")(storage.migrate)
app.command("doctor")(storage.doctor)
app.command("worker")(work.worker)
app.command("enqueue")(work.enqueue)
app.command("sweep")(work.sweep)
app.command("stats")(stats.stats)
app.command("recover")(recover.recover)
app.command("relay")(outbox.relay)
app.add_typer(jobs.app, name="jobs")
for command in (
    queue_changes.pause,
    queue_changes.resume,
    queue_changes.drain,
    queue_changes.transfer,
    queue_changes.history,
):
    queues.app.command(command.__name__)(command)
app.add_typer(queues.app, name="queues")
app.add_typer(approvals.app, name="approvals")
app.add_typer(suspects.app, name="suspects")
tenants.app.command("recover")(recover.recover)
app.add_typer(tenants.app, name="tenants")
app.add_typer(outbox.app, name="outbox")
app.add_typer(journal.app, name="journal")


def main() -> NoReturn:
    """Run the program; an error of ours is one line that says what to do."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    # A client's own log lines hold addresses that may hold keys.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # A pool repeats itself for as long as a database is away; an error or a line of the worker's says it once.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    try:
        app(prog_name="tenure")
    except TenureError as error:
        _explain(error.code, str(error), as_json="--json" in sys.argv)
        sys.exit(1)
    sys.exit(0)


def _explain(code: str, text: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"error": code, "message": text})
    else:
        sys.stderr.write(f"tenure: {text} [{code}]\n")
