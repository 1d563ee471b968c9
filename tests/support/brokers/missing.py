"""What a test does when a server is not on this machine: one clear skip, and a failure where CI should have it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.brokers.daemon import NotInstalled

VARIABLE = "TENURE_CI"

T = TypeVar("T")


def or_skip(start: Callable[[], T]) -> T:
    """Give what `start` gives; only a program that is not installed is a reason to skip."""
    try:
        return start()
    except NotInstalled as missing:
        if os.environ.get(VARIABLE):
            pytest.fail(f"{missing} ({VARIABLE} is set, so it must be there)", pytrace=False)
        pytest.skip(str(missing))
