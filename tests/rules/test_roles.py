"""One table says which role may run which procedure, and every procedure is in it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import tenure.procedures
import tenure.verbs
from tenure.errors import Invalid, Refused
from tenure.opening import open_async_store, open_store
from tenure.rules.roles import MAY, Role, check_role, check_role_name, is_role
from tenure.yields import Procedure, Script, procedure


def all_procedures() -> Iterator[str]:
    """Give the name of every procedure of the package that somebody can hand to a store."""
    for package in (tenure.procedures, tenure.verbs):
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            for name, made in inspect.getmembers(module, inspect.isfunction):
                # `procedure` wraps: what it gives was written in its module, and the wrapper in yields.
                wrapped = getattr(made, "__wrapped__", None)
                if wrapped is not None and made.__code__.co_name == "make" and wrapped.__module__ == module.__name__:
                    yield name


def test_every_procedure_is_in_the_table_and_nothing_else() -> None:
    found = set(all_procedures())
    private = {name for name in found if name.startswith("_")}
    assert len(found) > 80
    assert found - private == set(MAY)


def test_a_private_procedure_is_judged_by_the_one_that_it_hands_on() -> None:
    @procedure
    def create() -> Script[int]:
        yield []
        return 1

    @procedure
    def _one(inner: Procedure[int]) -> Script[int]:
        return (yield from inner)

    @procedure
    def _alone() -> Script[int]:
        yield []
        return 1

    made, alone = _one(create()), _alone()
    assert (made.verb, alone.verb) == ("create", "_alone")
    for one in (made, alone):
        one.script().close()


@pytest.mark.parametrize("role", Role)
def test_a_role_may_run_what_the_table_says(role: Role) -> None:
    allowed = {name for name, roles in MAY.items() if role in roles}
    for name in MAY:
        if name in allowed:
            check_role(role, name)
            continue
        with pytest.raises(Refused) as refused:
            check_role(role, name)
        assert refused.value.code == "ROLE_DENIED"
        assert str(refused.value).startswith(f"{'an' if role == Role.OPERATOR else 'a'} {role} may not run '{name}': ")
        assert all(f"{one}" in str(refused.value) for one in MAY[name])


@pytest.mark.parametrize("role", Role)
def test_what_the_table_does_not_know_is_nobodys(role: Role) -> None:
    with pytest.raises(Refused, match="none of the five roles may; open the store without role=") as refused:
        check_role(role, "migrate")
    assert refused.value.code == "ROLE_DENIED"


def test_who_runs_work_cannot_say_how_it_ended_and_the_other_way_round() -> None:
    sayings = ("reconcile_dispatched", "readmit_jobs", "recover_database", "clear_suspicion")
    doings = ("claim", "claim_batch", "begin_effects", "begin_effect", "open_publish", "hold", "complete_batch")
    people = ("cancel_job", "revoke_job", "retry_job", "freeze", "rotate", "pause_queue", "grant_approval")
    assert all(MAY[name] == {Role.REPAIRER} for name in sayings)
    assert all(MAY[name] == {Role.WORKER} for name in doings)
    assert all(MAY[name] == {Role.OPERATOR} for name in people)


def test_a_viewer_runs_only_what_reads() -> None:
    for name in [name for name, roles in MAY.items() if Role.VIEWER in roles]:
        assert name.startswith(("read_", "get_", "list_", "find_", "show_", "count_", "every_", "approval_of")) or (
            name in {"stats", "outbox_stats", "oldest_message"}
        )


def test_the_names_of_the_roles() -> None:
    assert sorted(Role) == ["operator", "producer", "repairer", "viewer", "worker"]
    assert all(is_role(name) for name in ("viewer", "producer", "worker", "operator", "repairer"))
    assert not is_role("postgres")


@pytest.mark.parametrize("name", ["", " ", "none", "NONE", "a\0b", "a\nb", "\ud800", 5, True, b"viewer", ["viewer"]])
def test_what_names_no_role_is_refused_before_anything_is_opened(name: Any) -> None:
    for url in ("sqlite:///:memory:", "postgresql://127.0.0.1:1/nowhere"):
        with pytest.raises(Invalid, match="the name of no role") as refused:
            open_store(url, role=name)
        assert refused.value.code == "BAD_ARGUMENT"
        with pytest.raises(Invalid, match="the name of no role"):
            asyncio.run(open_async_store(url, role=name))


@pytest.mark.parametrize("name", ["viewer", Role.VIEWER, "app_role", "None of the five", "x" * 63])
def test_a_role_of_ones_own_may_have_any_other_name(name: str) -> None:
    check_role_name(name)
    open_store("sqlite:///:memory:", role=None).close()
    open_store("sqlite:///:memory:", role="viewer").close()
