"""The options that every command has, and how a command finds its store and its app."""

from __future__ import annotations

import getpass
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tenure.app import Tenure
from tenure.errors import Invalid
from tenure.stores import open_store
from tenure.stores.contract import Store

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", envvar="TENURE_STORE", help="sqlite:///FILE or postgresql://HOST/DATABASE", show_envvar=True
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON with stable field names.")]
Actor = Annotated[str, typer.Option("--actor", envvar="TENURE_ACTOR", help="Who asks; kept in the trail.")]
AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, as in app:app.")]


def who() -> str:
    """Name the person at the keyboard."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return f"cli:{os.getuid()}"


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """
    Open the store of a command.

    Raises:
        Invalid: STORE_REQUIRED.
    """
    if not url:
        raise Invalid(
            "say which store: --store sqlite:///jobs.db, or set TENURE_STORE (see `tenure init`)", code="STORE_REQUIRED"
        )
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def load_app(name: str, url: str | None = None) -> Tenure:
    """
    Import an app by MODULE:APP, from the working directory too.

    Args:
        url: Use this store instead of the app's own.
    Raises:
        Invalid: APP_NOT_FOUND with what is missing.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Invalid(
            f"{name!r} is not MODULE:APP; for app.py with `app = Tenure(...)` write app:app", code="APP_NOT_FOUND"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        where = "there is no such file here" if missing == module_name.partition(".")[0] else "the app imports it"
        raise Invalid(f"module {missing!r} was not found: {where}", code="APP_NOT_FOUND") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Tenure):
        apps = [key for key, value in vars(module).items() if isinstance(value, Tenure)]
        hint = f"; it has {', '.join(f'{module_name}:{one}' for one in apps)}" if apps else ""
        raise Invalid(f"{module_name!r} has no Tenure app called {attribute!r}{hint}", code="APP_NOT_FOUND")
    if url:
        found.use_store(url)
    return found
