"""The page of the Python interface names everything that is public, and says of each verb what it is."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

import tenure
from tenure import testing, verbs
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
VERBS = [name for name in vars(tenure.DurableJobService) if not name.startswith("_")]


def section(heading: str) -> str:
    """Give what stands under a heading, up to the next one."""
    return re.split(r"^#", PAGE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def described(name: str) -> bool:
    """Say whether a name has a heading of its own, or a row of a table."""
    return re.search(rf"^#+ {name}$|^\| `{name}[`(]", PAGE, re.MULTILINE) is not None or f"`tenure.{name}`" in PAGE


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in tenure.__all__ if not described(name)] == []
    assert [name for name in testing.__all__ if not described(name)] == []
    assert not described("Registry")


def test_every_verb_has_its_signature_and_says_what_it_writes() -> None:
    named = [name for name in VERBS if name != "renew_lease"]
    assert len(named) == 61
    for name in named:
        text = section(f"#### {name}")
        assert f"service.{name}(" in text
        assert len(re.findall(r"^Writes: ", text, re.MULTILINE)) == 1, name
        for argument in list(inspect.signature(getattr(verbs, name)).parameters)[1:]:
            assert re.search(rf"^\| [^|]*`{argument}`[^|]* \|", text, re.MULTILINE), (name, argument)
    assert "service.renew_lease" in PAGE


READERS: list[tuple[str, dict[str, Any]]] = [
    ("list_effects", {"job_id": uuid4()}),
    ("get_job", {"job_id": uuid4()}),
    ("find_by_idempotency_key", {"project": "p", "idempotency_key": "k", "organization": "o"}),
    ("list_jobs", {}),
    ("list_job_events", {"job_id": uuid4()}),
    ("list_queues", {}),
    ("show_queues", {}),
    ("list_queue_changes", {"name": "mail"}),
    ("stats", {}),
    ("get_approval", {"reference": "ap-1", "tenant": "acme"}),
    ("list_approvals", {"tenant": "acme"}),
    ("list_tenants", {}),
    ("show_tenant", {"tenant": "t"}),
    ("list_messages", {}),
    ("get_message", {"message_id": uuid4()}),
    ("outbox_stats", {}),
    ("find_reconciliation_candidates", {"project": "p", "organization": "o"}),
    ("list_suspects", {}),
    ("count_suspects", {}),
    ("list_effects_needing_evidence", {}),
]


class Watching(tenure.DurableJobService):
    """Notes of each procedure that is run whether it only reads."""

    def __init__(self) -> None:
        super().__init__(tenure.open_store("sqlite:///:memory:"), actor="user:42")
        self.store.migrate()
        self.reads: list[bool] = []
        inner = self.store

        class Noting:
            def run(_, procedure: Any) -> Any:  # noqa: N805 - `self` is the service
                self.reads.append(procedure.reads)
                return inner.run(procedure)

        self.store = Noting()  # type: ignore[assignment]
        self.close = inner.close


@pytest.fixture
def service() -> Iterator[Watching]:
    made = Watching()
    yield made
    made.close()


@pytest.mark.parametrize(("name", "arguments"), READERS)
def test_what_writes_nothing_only_reads(name: str, arguments: dict[str, Any], service: Watching) -> None:
    with contextlib.suppress(tenure.NotFound):
        getattr(service, name)(**arguments)
    assert service.reads == [True]
    assert "Writes: nothing." in section(f"#### {name}")


def test_only_what_reads_writes_nothing(service: Watching) -> None:
    silent = [name for name in VERBS if "Writes: nothing." in section(f"#### {name}")]
    assert sorted(silent) == sorted(name for name, _ in READERS)
    with pytest.raises(tenure.NotFound):
        service.cancel_job(uuid4(), reason="the control")
    assert service.reads == [False]


def test_defaults_and_members_are_those_of_the_code() -> None:
    assert "max_attempts: int = 3," in section("#### create_job")
    assert 'queue: str = "default",' in section("#### create_job")
    for name in ("effect", "publish", "job", "lease", "identity", "cancelled", "progress", "log"):
        assert hasattr(tenure.AsyncContext, name) or name == "log"
        assert re.search(rf"ctx\.{name}\b", section("### AsyncContext")), name
    for one in (*tenure.Status, *tenure.Phase, *tenure.EventName, *tenure.EffectState, *tenure.ApprovalState):
        assert f"`{one.value}`" in section("## Names")
