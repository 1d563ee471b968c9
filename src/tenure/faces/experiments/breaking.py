"""
Break the package on purpose, for the length of one run.

An experiment that cannot fail is worth nothing. Where the lab has a wrong rule already, it is used here too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def replaced(*pairs: tuple[Any, Any]) -> Iterator[None]:
    """Put something in the place of each function, in every module of the package that has it."""
    undo: list[tuple[ModuleType, str, Any]] = []
    try:
        for old, new in pairs:
            for module in _modules():
                for name, value in list(vars(module).items()):
                    if value is old:
                        undo.append((module, name, old))
                        setattr(module, name, new)
        yield
    finally:
        for module, name, old in reversed(undo):
            setattr(module, name, old)


def _modules() -> list[ModuleType]:
    # Not those of the experiments: they make the replacement out of the original.
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and name.startswith("tenure.") and not name.startswith("tenure.faces.experiments")
    ]
