"""Which apps know of each other's kinds: those on the same store, whichever they were made with."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from tenure import Context, Invalid, Tenure


def app_on(url: str) -> Tenure:
    return Tenure(url, organization="studio", project="sales")


def with_one(app: Tenure) -> Tenure:
    @app.job("send")
    def one(ctx: Context, payload: dict[str, Any]) -> None: ...

    return app


def with_other(app: Tenure) -> Tenure:
    @app.job("send")
    def other(ctx: Context, payload: dict[str, Any]) -> None: ...

    return app


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/here.db"


@pytest.fixture
def there(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/there.db"


def test_one_kind_has_one_handler_on_one_store(here: str, there: str) -> None:
    first = with_one(app_on(here))
    with pytest.raises(Invalid) as refused:
        with_other(app_on(here))
    assert refused.value.code == "KIND_TAKEN"
    # Controls: the same handler twice, another store, and each store in memory is its own.
    for app in (with_one(app_on(here)), with_other(app_on(there))):
        assert app.registry.get("send") is not None
    assert with_one(app_on("sqlite:///:memory:")).url == with_other(app_on("sqlite:///:memory:")).url
    assert first.registry.get("send") is not None


def test_an_app_that_changes_its_store_takes_its_kinds_with_it(here: str, there: str) -> None:
    moved = with_one(app_on(here))
    moved.use_store(there)
    # Nobody is left on the old store, and somebody is on the new one.
    stayed = with_other(app_on(here))
    with pytest.raises(Invalid) as refused:
        with_other(app_on(there))
    assert refused.value.code == "KIND_TAKEN"
    assert (moved.url, stayed.url) == (there, here)


def test_an_app_cannot_come_to_a_store_with_another_handler(here: str, there: str) -> None:
    first, second = with_one(app_on(here)), with_other(app_on(there))
    with pytest.raises(Invalid) as refused:
        second.use_store(here)
    assert refused.value.code == "KIND_TAKEN"
    assert second.url == there
    # Control: the same handler may come, and a twin that stays keeps the store's name taken.
    twin = with_one(app_on(there.replace("there", "elsewhere")))
    twin.use_store(here)
    first.use_store(there.replace("there", "apart"))
    with pytest.raises(Invalid):
        with_other(app_on(here))


def test_an_app_that_is_gone_keeps_nothing(here: str) -> None:
    app = with_one(app_on(here))
    del app
    gc.collect()
    assert with_other(app_on(here)).registry.get("send") is not None


def test_a_store_that_is_open_is_not_changed(tmp_path: Path, there: str) -> None:
    app = app_on(f"sqlite:///{tmp_path}/open.db")
    assert app.store.url.endswith("/open.db")
    with pytest.raises(Invalid) as refused:
        app.use_store(there)
    assert refused.value.code == "STORE_OPEN"
    app.close()
    app.use_store(there)
    assert app.url == there
