"""
The driver's connection behind `django.db.connection`, inside `transaction.atomic()`.

Django is in autocommit outside of `atomic`. Nothing of it has to be imported: what it hands out tells all itself.
"""

from __future__ import annotations

from typing import Any

from tenure.errors import Invalid
from tenure.stores.joining import AsyncFinder, Finder


def finder(given: Any, dialect: str) -> Finder:
    """See `joining.finder`."""
    if not hasattr(given, "in_atomic_block"):
        raise Invalid(
            f"a {type(given).__module__}.{type(given).__name__} is no connection of Django's; join "
            "django.db.connection or django.db.connections[alias], inside transaction.atomic()",
            code="CANNOT_JOIN",
        )

    def find() -> Any:
        if given.vendor != dialect:
            raise Invalid(
                f"Django's database {given.alias!r} is on {given.vendor} and the store is on {dialect}; join the "
                "connection of the store's database, django.db.connections[alias]",
                code="CANNOT_JOIN",
            )
        if not given.in_atomic_block and given.get_autocommit():
            raise Invalid(
                "Django commits each statement here, so this would be committed by itself; put `with "
                "transaction.atomic():` around your change and this",
                code="AUTOCOMMIT",
            )
        if given.needs_rollback:
            raise Invalid(
                "an error inside this atomic block has broken its transaction; let the error leave the block, which "
                "rolls back, and begin again",
                code="TRANSACTION_FAILED",
            )
        return given.connection

    return find


def async_finder(given: Any, dialect: str) -> AsyncFinder:
    """See `joining.async_finder`: there is none, Django's connections block."""
    raise Invalid(
        f"Django's connections block and belong to one thread, so an awaiting store on {dialect} cannot join "
        f"{type(given).__name__}; write a plain def handler, or call app.join in the function given to sync_to_async",
        code="CANNOT_JOIN",
    )
