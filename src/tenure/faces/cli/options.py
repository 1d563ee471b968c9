"""The options that every command has, and how a command finds its store and its app."""

from __future__ import annotations

import getpass
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tenure.app import Tenure
from tenure.errors import Invalid
from tenure.opening import open_store
from tenure.service import DurableJobService
from tenure.stores.contract import Store

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", envvar="TENURE_STORE", help="sqlite:///FILE or postgresql://HOST/DATABASE", show_envvar=True
    ),
]
LedgerPlace = Annotated[
    str | None,
    typer.Option(
        "--authority-ledger",
        envvar="TENURE_AUTHORITY_LEDGER",
        help="A path, or the URL of another database; left out: beside a SQLite file.",
        show_envvar=True,
    ),
]
OnlyTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
Actor = Annotated[str | None, typer.Option(envvar="TENURE_ACTOR", help="Who asks, for the record; you when left out.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the record.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON with stable field names.")]
AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, as in app:app.")]


def who() -> str:
    """Name the person at the keyboard."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return f"cli:{os.getuid()}"


@contextmanager
def opened(url: str | None, ledger: str | None = None, *, tenant: str | None = None) -> Iterator[Store]:
    """
    Open the store of a command.

    Args:
        ledger: TENURE_AUTHORITY_LEDGER where a command has no option for it.
        tenant: Bind the store to it where row security lets its holder see one tenant only.
    Raises:
        Invalid: STORE_REQUIRED.
        Refused: ROLE_DENIED for what the role in TENURE_ROLE may not do.
    """
    if not url:
        raise Invalid(
            "say which store: --store sqlite:///jobs.db, or set TENURE_STORE (see `tenure init`)", code="STORE_REQUIRED"
        )
    with naming(masked(url)):
        ledger = ledger or os.environ.get("TENURE_AUTHORITY_LEDGER") or None
        store = _open(url, ledger, tenant)
        try:
            yield store
        finally:
            store.close()


def _open(url: str, ledger: str | None, tenant: str | None) -> Store:
    role = os.environ.get("TENURE_ROLE")
    try:
        return open_store(url, role=role, authority_ledger=ledger)
    except Invalid as error:
        if error.code != "TENANT_REQUIRED" or tenant is None:
            raise
    return open_store(url, role=role, tenant=tenant, authority_ledger=ledger)


@contextmanager
def serving(
    url: str | None, ledger: str | None = None, *, tenant: str | None = None, actor: str | None = None
) -> Iterator[DurableJobService]:
    """
    Open the store of a command that needs nothing of it but verbs.

    Args:
        tenant: The only one that it sees.
        actor: Who asks; the person at the keyboard when left out.
    """
    with opened(url, ledger, tenant=tenant) as store:
        yield DurableJobService(store, tenant=tenant, actor=actor or who())


@contextmanager
def naming(url: str) -> Iterator[None]:
    """Let an error about a missing schema name the very command that makes it."""
    try:
        yield
    except Invalid as error:
        if error.code != "SCHEMA_MISSING":
            raise
        text = str(error).replace("--store URL", f"--store {shlex.quote(url)}")
        raise Invalid(text, code=error.code) from error


def masked(url: str) -> str:
    """Give a store URL as its owner wrote it, with `***` for the password."""
    return re.sub(r"(?i)([?&]password=)[^&]*", r"\1***", re.sub(r"^(\w+://[^/@:]*):.*@", r"\1:***@", url))


@contextmanager
def loaded(name: str, url: str | None = None, ledger: str | None = None) -> Iterator[Tenure]:
    """Import an app like `load_app`, for as long as a command uses it."""
    app = load_app(name, url, ledger)
    # The app keeps its URL to itself because of the password in it.
    with naming(masked(url or app._stores.url)):  # noqa: SLF001
        yield app


def load_app(name: str, url: str | None = None, ledger: str | None = None) -> Tenure:
    """
    Import an app by MODULE:APP, from the working directory too.

    Args:
        url: Use this store instead of the app's own.
        ledger: Use this ledger instead of the app's own; TENURE_AUTHORITY_LEDGER where a command has no option for it.
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
    ledger = ledger or os.environ.get("TENURE_AUTHORITY_LEDGER") or None
    if url or ledger:
        found.use_store(url, authority_ledger=ledger)
    return found
