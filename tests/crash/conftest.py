"""Each test here runs on a SQLite file and on a real PostgreSQL; a process shares one emptied database of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.scene import DIALECTS, Scene, Scenes, opened_scenes


@pytest.fixture(scope="session")
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    def new_database() -> str:
        url: str = request.getfixturevalue("postgres_databases").create()
        return url

    with opened_scenes(tmp_path_factory.mktemp("crash"), new_database) as made:
        yield made


@pytest.fixture(params=DIALECTS)
def scene(request: pytest.FixtureRequest, scenes: Scenes) -> Scene:
    return scenes.get(request.param)
