"""Older copies of a PostgreSQL database, each brought back in another way; beside each the allowed control."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tenure.errors import Invalid
from tests.authority.clusters import Standby, address, base_backup, both, program, put_back
from tests.authority.crew import Crew, frozen, runs_on, ticks
from tests.loops.stage import until
from tests.support.postgres import Databases, Server


def migrated(crew: Crew) -> Crew:
    app = crew.app()
    app.migrate()
    app.close()
    return crew


@pytest.fixture
def crew(postgres_server: Server, tmp_path: Path) -> Crew:
    return migrated(Crew(postgres_server.url, tmp_path / "ledger"))


def on(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def more_ticks(crew: Crew) -> None:
    with crew.working() as running:
        until(lambda: "b" in crew.sent, "b to run")
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")


def test_a_dump_is_noticed_in_its_own_database_and_in_another(crew: Crew, postgres_server: Server) -> None:
    server = postgres_server
    with crew.working() as running:
        runs_on(crew, running, "a")
    crew.create("b")
    dump = str(server.folder / "dump")
    program(server, "pg_dump", *address(server), "-Fc", "-n", "tenure", "-f", dump, "postgres")
    more_ticks(crew)
    # The control: the same database, its server started again.
    server.stop()
    server.start()
    with crew.working() as running:
        runs_on(crew, running, "c")
        assert frozen(running) is None
    # Elsewhere, as somebody does who copies production.
    program(server, "createdb", *address(server), "elsewhere")
    program(server, "pg_restore", *address(server), "-d", "elsewhere", dump)
    copied = Crew(on(server.url, "elsewhere"), crew.ledger)
    with copied.working() as running:
        assert "IDENTITY_CHANGED" in (frozen(running) or "")
        assert copied.sent == []
    with crew.working() as running:
        runs_on(crew, running, "d")
    # In place.
    program(server, "pg_restore", *address(server), "--clean", "-d", "postgres", dump)
    sent = list(crew.sent)
    with crew.working() as running:
        assert "COUNTER_BEHIND" in (frozen(running) or "")
        assert crew.recover().epochs == {"studio": 2}
        until(lambda: running.worker.health().ok, "the worker to be well again by itself")
        assert crew.sent == sent, "b is queued in the copy, and waits for a person"
        runs_on(crew, running, "e")


def test_a_base_backup_is_noticed_by_a_worker_that_runs_on(crew: Crew, postgres_server: Server) -> None:
    server = postgres_server
    with crew.working() as running:
        runs_on(crew, running, "a")
        backup = base_backup(server, "backup")
        runs_on(crew, running, "b")
        before = ticks(running)
        until(lambda: ticks(running) > before + 1, "more ticks")
        # The control: a crash and a restart on the same data.
        server.stop("immediate")
        server.start()
        runs_on(crew, running, "c")
        assert frozen(running) is None
        put_back(server, backup)
        until(lambda: frozen(running), "the worker to notice")
        assert "COUNTER_BEHIND" in (frozen(running) or "")
        crew.create("d")
        assert "d" not in crew.sent
        crew.recover()
        crew.readmit()
        until(lambda: "d" in crew.sent, "work to go on by itself")
    with crew.working() as running:
        runs_on(crew, running, "e")


def test_a_promoted_standby_is_noticed_at_start_and_by_a_worker_that_runs_on(
    crew: Crew, postgres_server: Server
) -> None:
    """Even one that lost nothing: nobody can tell from the inside, and the old primary must never be right as well."""
    with Standby(postgres_server) as standby:
        away = Crew(both(postgres_server, standby), crew.ledger)
        with away.working() as running:
            runs_on(away, running, "a")
            assert frozen(running) is None
            standby.caught_up(postgres_server)
            postgres_server.stop("immediate")
            standby.promote()
            until(lambda: frozen(running), "the worker to notice", within=60)
            assert "IDENTITY_CHANGED" in (frozen(running) or "")
            away.create("b")
            assert "b" not in away.sent
        with away.working() as running:
            assert "IDENTITY_CHANGED" in (frozen(running) or "")
            away.recover()
            away.readmit()
            until(lambda: "b" in away.sent, "work to go on")
        # The old primary comes back by itself, and is the wrong one now.
        postgres_server.start()
        old, new = Crew(postgres_server.url, crew.ledger), Crew(standby.url, crew.ledger)
        with old.working() as wrong, new.working() as right:
            assert "IDENTITY_CHANGED" in (frozen(wrong) or "")
            old.create("c")
            runs_on(new, right, "d")
            assert old.sent == []


def test_a_ledger_in_a_second_database_protects_alike(
    postgres_database: str, postgres_databases: Databases, tmp_path: Path
) -> None:
    second = postgres_databases.create()
    crew = migrated(Crew(postgres_database, second))
    with crew.working() as running:
        runs_on(crew, running, "a")
        running.app.service.rotate_tenant("studio", actor="op:1", reason="r")
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("UPDATE tenure.authority SET epoch = 1")
    with crew.working() as running:
        assert "EPOCH_BEHIND" in (frozen(running) or "")
        assert crew.recover().epochs == {"studio": 3}
        runs_on(crew, running, "b")
    postgres_databases.drop(second)


def test_a_worker_that_was_not_told_of_the_ledger_does_not_start(
    postgres_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crew = migrated(Crew(postgres_database))
    with crew.working() as running:
        assert running.worker.health().ok
    said = [record.message for record in caplog.records if "no authority ledger" in record.message]
    assert len(said) == 1
    assert "a restored copy would not be noticed" in said[0]
    told = Crew(postgres_database, tmp_path / "ledger")
    with told.working() as running:
        runs_on(told, running, "a")
    with pytest.raises(Invalid) as raised, crew.working():
        pass
    assert raised.value.code == "LEDGER_REQUIRED"
    app = crew.app()
    for act in (app.service.rotate_tenant, app.service.freeze_tenant, app.service.thaw_tenant):
        with pytest.raises(Invalid) as refused:
            act("studio", actor="op:1", reason="r")
        assert refused.value.code == "LEDGER_REQUIRED"
    app.close()
    app = told.app()
    assert app.service.rotate_tenant("studio", actor="op:1", reason="r").epoch == 2
    app.close()
