from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.postgres import Databases


@pytest.fixture
def fresh(postgres_databases: Databases, tmp_path: Path) -> Callable[[str], str]:
    """Give the URL of an empty database of either kind."""
    made = 0

    def make(database: str) -> str:
        nonlocal made
        made += 1
        return postgres_databases.create() if database == "postgresql" else f"sqlite:///{tmp_path / f'{made}.db'}"

    return make
