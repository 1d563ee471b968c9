"""An app that has a tenant works for no other, and nothing that was said is quietly replaced."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import Context, GovernanceInput, Tenure, read_execution_identity
from tenure.errors import Invalid

NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOVERNANCE = GovernanceInput(
    action_intent="send",
    capability="mail",
    policy="p",
    budget={"calls": 1},
    approval_reference="a-1",
    issued_at=NOW,
    expires_at=NOW + timedelta(hours=1),
)


@pytest.fixture
def bound(tmp_path: Path) -> Tenure:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db", organization="studio", project="web", tenant="acme", actor="user:1")

    @app.job("k")
    def run(ctx: Context, payload: dict[str, Any]) -> None: ...

    app.migrate()
    return app


Call = Callable[[Tenure, Any], Any]
CALLS: dict[str, Call] = {
    "enqueue": lambda app, tenant: app.enqueue("k", {}, key=f"k:{tenant}", tenant=tenant).job.tenant,
    "message": lambda app, tenant: (
        app.prepare_message(destination="out", type="t", data={}, operation="o", tenant=tenant).tenant
    ),
    "digest": lambda app, tenant: (app.action_digest("k", {}, governance=GOVERNANCE, tenant=tenant), "acme")[1],
    "worker": lambda app, tenant: app.worker(tenant=tenant)._tenant,
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_for_another_tenant_is_refused(bound: Tenure, name: str) -> None:
    call = CALLS[name]
    for given, code in (("zeta", "TENANT_MISMATCH"), ("", "ENVELOPE_VALUE"), (0, "ENVELOPE_VALUE")):
        with pytest.raises(Invalid) as caught:
            call(bound, given)
        assert caught.value.code == code, given
    assert bound.service.list_jobs(limit=10) == []
    # The control: its own, named or not.
    assert call(bound, "acme") == call(bound, None) == "acme"
    bound.close()


def test_an_app_without_a_tenant_takes_any(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db", organization="studio", project="web", actor="user:1")
    app.job("k")(lambda ctx, payload: None)
    app.migrate()
    assert CALLS["enqueue"](app, "zeta") == "zeta"
    assert CALLS["enqueue"](app, None) == "studio"
    app.close()


@pytest.mark.parametrize("wrong", ["", 0, b"", False])
def test_an_empty_actor_or_trace_is_not_replaced_by_the_apps(bound: Tenure, wrong: Any) -> None:
    for name in ("actor", "trace"):
        with pytest.raises(Invalid):
            bound.enqueue("k", {}, key=name, **{name: wrong})
    assert bound.service.list_jobs(limit=10) == []
    envelope = read_execution_identity(bound.enqueue("k", {}, key="mine", actor="user:2", trace="t-1").job)
    assert (envelope.actor, envelope.trace) == ("user:2", "t-1")
    assert read_execution_identity(bound.enqueue("k", {}, key="apps").job).actor == "user:1"
    bound.close()
