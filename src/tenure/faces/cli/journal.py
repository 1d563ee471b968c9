"""`tenure journal`: verify, repair and dump the files that keep receipts outside the database."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tenure import journal as journals
from tenure.faces.cli.options import AsJson
from tenure.faces.cli.show import table, write_json

app = typer.Typer(help="Look at and mend journal files.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A journal file.")]


@app.command()
def verify(file: File, as_json: AsJson = False) -> int:
    """Say how far a journal can be believed; exit 1 when its tail is damaged."""
    found = journals.verify(file)
    fields = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(found).items()}
    if as_json:
        write_json({**fields, "ok": found.ok})
    else:
        table(str(file), ("field", "value"), fields.items())
        if not found.ok:
            sys.stdout.write(f"run `tenure journal repair {file}` to put the damaged tail aside\n")
    return 0 if found.ok else 1


@app.command()
def repair(file: File, as_json: AsJson = False) -> int:
    """Copy a damaged tail to quarantine and truncate to the verified records; safe to repeat."""
    done = journals.repair(file)
    fields = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(done).items()}
    if as_json:
        write_json(fields)
    else:
        table(str(file), ("field", "value"), fields.items())
    return 0


@app.command()
def dump(file: File, as_json: AsJson = False) -> int:
    """Write every record; receipts are shown, so mind who reads."""
    if as_json:
        for entry in journals.dump(file):
            write_json(entry)
        return 0
    rows = [
        (one["offset"], one.get("sequence"), one.get("verified", one.get("tail")), one.get("json") or one.get("reason"))
        for one in journals.dump(file)
    ]
    table(str(file), ("offset", "sequence", "verified", "body"), rows)
    return 0
