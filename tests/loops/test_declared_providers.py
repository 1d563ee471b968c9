"""A kind that declares a provider which its app does not have is refused before a worker claims anything."""

from __future__ import annotations

import pytest

from tenure import Outcome, Provider, Succeeded, Tenure
from tenure.errors import Invalid


class Mailer(Provider):
    name = "mailer"

    async def send(self, request: object, operation_key: str) -> Outcome:
        return Succeeded()


def an_app(*providers: Provider) -> Tenure:
    app = Tenure("sqlite:///:memory:", organization="o", project="p", providers=providers)

    @app.job("send", providers=["mailer"])
    async def send(ctx: object, payload: dict[str, object]) -> None: ...

    @app.job("count")
    async def count(ctx: object, payload: dict[str, object]) -> None: ...

    return app


class Other(Mailer):
    name = "other"


@pytest.mark.parametrize(
    ("providers", "registered"),
    [((), "none"), ((Other(),), "other"), ((type("More", (Mailer,), {"name": "a"})(), Other()), "a, other")],
)
def test_a_worker_is_refused_whose_kind_names_an_unknown_provider(
    providers: tuple[Provider, ...], registered: str
) -> None:
    app = an_app(*providers)
    for kinds in (None, ["send"], ["count", "send"]):
        with pytest.raises(Invalid) as refused:
            app.worker(kinds=kinds)
        assert refused.value.code == "UNKNOWN_PROVIDER"
        assert str(refused.value) == (
            "kind 'send' declares provider 'mailer', which this app does not have; pass it to "
            f"Tenure(..., providers=[...]). Registered: {registered}"
        )


def test_a_worker_is_made_where_every_provider_is_there_or_its_kind_is_left_out() -> None:
    assert an_app(Mailer()).worker().worker_id
    assert an_app(Mailer(), Other()).worker(kinds=["send"]).worker_id
    assert an_app().worker(kinds=["count"]).worker_id
