"""The tests have the same names in every process, or no two of them could share the work."""

from __future__ import annotations

import pytest


def test_no_name_is_that_of_one_process(request: pytest.FixtureRequest) -> None:
    # The order is looked after by the runner: processes that collected other tests than the first one refuse to begin,
    # and each of them has a hash seed of its own.
    names = [item.nodeid for item in request.session.items]
    assert len(names) == len(set(names)) > 0
    assert [name for name in names if " at 0x" in name] == []
