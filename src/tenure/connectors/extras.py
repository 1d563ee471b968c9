"""Client libraries that are extras: imported where they are used, and named by their extra where they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tenure.errors import Invalid


def library(module: str, *, user: str, extra: str) -> ModuleType:
    """
    Import a client library.

    Args:
        user: What needs it, for the text.
        extra: The extra of this package that installs it.
    Raises:
        Invalid: MISSING_EXTRA, with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise Invalid(f"{user} needs {name}: pip install 'tenure[{extra}]'", code="MISSING_EXTRA") from None
