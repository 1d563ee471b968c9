"""Each story is played on a SQLite file and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.forks import Forks
from tests.crash.scene import DIALECTS, Scenes, opened_scenes
from tests.stories.stage import Stage


@pytest.fixture(scope="session")
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    def new_database() -> str:
        url: str = request.getfixturevalue("postgres_databases").create()
        return url

    with opened_scenes(tmp_path_factory.mktemp("stories"), new_database) as made:
        yield made


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture(params=DIALECTS)
def stage(request: pytest.FixtureRequest, scenes: Scenes, forks: Forks, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(scenes.get(request.param), forks, tmp_path)
    try:
        yield made
    finally:
        made.close()
