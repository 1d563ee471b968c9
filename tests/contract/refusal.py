"""A refusal that writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenure.errors import TenureError
from tests.contract.bench import Bench


@contextmanager
def refused(
    bench: Bench, error: type[TenureError], *, code: str | None = None, reason: str | None = None
) -> Iterator[pytest.ExceptionInfo[TenureError]]:
    """Expect exactly this error from the block, and not one changed row in any table."""
    before = bench.dump()
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    if code is not None:
        assert caught.value.code == code
    if reason is not None:
        assert getattr(caught.value, "reason", None) == reason
    assert bench.dump() == before
