"""`tenure demo`: the acceptance test of the whole product, told as a story."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tenure.errors import Invalid
from tenure.faces.cli.options import AsJson
from tenure.faces.cli.show import write_json


class Break(StrEnum):
    """A promise to take away."""

    NO_FENCE = "no-fence"
    NO_LOOKUP = "no-lookup"
    NO_BOUNDARY = "no-boundary"


def demo(
    quotes: Annotated[Path | None, typer.Option(help="Your own quotes, JSON lines; a packaged file else.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Run on this database instead of a new file; one where nobody works.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="A new folder in which all files are kept.")] = None,
    broken: Annotated[
        Break | None,
        typer.Option("--break", help="no-fence, no-lookup or no-boundary: take it away; the exit status must be 1."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Kill a worker after the provider accepted, pause another past its lease, and count what the customers got."""
    # Here, because the other commands need none of it.
    from tenure.faces.demo.crew import DemoFailed  # noqa: PLC0415
    from tenure.faces.demo.quotes import read_quotes  # noqa: PLC0415
    from tenure.faces.demo.story import run_demo  # noqa: PLC0415
    from tenure.faces.demo.tell import Teller  # noqa: PLC0415

    if find_spec("httpx") is None:
        raise Invalid(
            "the demonstration asks its provider over HTTP, which needs httpx: pip install 'tenure[http]'",
            code="MISSING_EXTRA",
        )
    read = read_quotes(quotes)
    teller = Teller(sys.stderr if as_json else sys.stdout)
    with ending_on_signals():
        try:
            report = run_demo(read, teller, store=store, keep=keep, broken=None if broken is None else broken.value)
        except DemoFailed as failure:
            if as_json:
                write_json({"error": "DEMO_FAILED", "message": str(failure)})
            else:
                sys.stderr.write(f"tenure: the demonstration could not be carried out: {failure}\n")
            return 1
    if keep is not None:
        teller.note(f"\nEverything is kept in {keep}: the store, the provider's ledger, the workers' logs.")
        if store is None:
            teller.note(f"  tenure jobs list --store sqlite:///{keep.resolve() / 'demo.db'}")
    if as_json:
        write_json(report.as_json())
    return 0 if report.held else 1


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process by an exception, so that every child is ended first."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
