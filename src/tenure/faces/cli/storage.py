"""Commands about the store itself: init, migrate, doctor."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import chdir
from pathlib import Path
from typing import Annotated, Any

import typer

import tenure
from tenure.errors import Invalid, TenureError
from tenure.faces.cli.options import AsJson, LedgerPlace, StoreUrl, opened
from tenure.faces.cli.show import several, table, write_json
from tenure.faces.cli.stats import beside
from tenure.loops.relay import ALARM_AFTER
from tenure.procedures.authority import read_facts
from tenure.procedures.inspect import list_jobs
from tenure.procedures.operate_queues import show_queues
from tenure.procedures.reconcile import find_candidate_scopes
from tenure.rules.ledger import Book, Facts
from tenure.stores.contract import Store

_STARTER = '''"""A first job. Run it with: tenure worker app:app"""

from tenure import AsyncContext, Tenure

app = Tenure("{url}", organization="studio", project="first", actor="user:me")


@app.job("greet")
async def greet(ctx: AsyncContext, payload: dict) -> str:
    return f"hello {{payload['name']}}"


if __name__ == "__main__":
    app.migrate()
    print(app.enqueue(greet, {{"name": "world"}}, key="greet-world").job.id)
'''


def init(
    directory: Annotated[Path, typer.Argument(help="Where app.py goes.")] = Path(),
    store: StoreUrl = "sqlite:///jobs.db",
    as_json: AsJson = False,
) -> None:
    """Write a first app.py and make its store."""
    url = store or "sqlite:///jobs.db"
    path = directory / "app.py"
    if path.exists():
        raise Invalid(f"{path} exists already and is left as it is; choose another directory", code="FILE_EXISTS")
    directory.mkdir(parents=True, exist_ok=True)
    # A relative URL means the same to this command as to the app that it writes.
    with chdir(directory), opened(url) as made:
        applied = made.migrate()
    path.write_text(_STARTER.format(url=url), encoding="utf-8")
    if as_json:
        write_json({"app": str(path), "store": url, "applied": applied})
        return
    sys.stdout.write(f"wrote {path}\nnext:\n  cd {directory}\n  python app.py\n  tenure worker app:app\n")


def migrate(
    store: StoreUrl = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the schema instead of applying it.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say what is missing; exit 1 if anything is.")] = False,
    roles: Annotated[
        bool, typer.Option("--roles", help="Make the database roles of PostgreSQL too; with --sql print only these.")
    ] = False,
    row_security: Annotated[
        bool | None,
        typer.Option(
            "--row-security/--no-row-security",
            help="Keep the tenants' rows apart in PostgreSQL, with the roles; or end that. Left out: as it is.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Bring the schema up to this version; forward only, safe from many processes at once."""
    with opened(store) as made:
        if sql:
            apart = row_security is True
            text = made.roles_sql(row_security=apart) if roles or apart else made.migration_sql()
            sys.stdout.write(text.rstrip() + "\n")
            return 0
        if check:
            pending = made.pending_migrations()
            if as_json:
                write_json({"pending": pending})
            else:
                sys.stdout.write("".join(f"missing {name}\n" for name in pending) or "up to date\n")
            return 1 if pending else 0
        applied = made.migrate(roles=roles, row_security=row_security)
    roles = roles or row_security is True
    if as_json:
        said = {} if row_security is None else {"row_security": row_security}
        write_json({"applied": applied, **({"roles": True} if roles else {}), **said})
        return 0
    lines = [f"applied {name}\n" for name in applied] or ["up to date\n"]
    if roles:
        lines.append("roles granted\n")
    if row_security is not None:
        lines.append(f"row security is {'on' if row_security else 'off'}\n")
    sys.stdout.write("".join(lines))
    return 0


def doctor(store: StoreUrl = None, ledger: LedgerPlace = None, as_json: AsJson = False) -> int:
    """Look at versions, the store and what needs a person; exit 1 when something is wrong."""
    findings: list[dict[str, Any]] = [
        _finding("tenure", tenure.__version__),
        _finding("python", sys.version.split()[0]),
    ]
    try:
        with opened(store, ledger) as made:
            findings += _look(made)
    except TenureError as error:
        findings.append(_finding("store", str(error), ok=False))
    if as_json:
        write_json({"ok": all(one["ok"] for one in findings), "findings": findings})
    else:
        table(
            "doctor",
            ("", "what", "found"),
            [(_mark(one), one["what"], one["found"]) for one in findings],
        )
    return 0 if all(one["ok"] for one in findings) else 1


def _look(made: Store) -> list[dict[str, Any]]:
    found = [_finding("store", made.url)]
    if made.dialect == "sqlite":
        found.append(_finding("sqlite", sqlite3.sqlite_version))
    pending = made.pending_migrations()
    if pending:
        return [*found, _finding("schema", f"missing {', '.join(pending)}; run `tenure migrate`", ok=False)]
    found.append(_finding("schema", "up to date"))
    unsecured = made.unsecured_tables()
    if unsecured:
        text = f"only in part: it leaves out {', '.join(unsecured)}; run `tenure migrate --row-security`"
        found.append(_finding("row security", text, ok=False))
    elif unsecured is not None:
        found.append(_finding("row security", "on, for every table with a tenant"))
    waiting = made.run(list_jobs(phase=tenure.Phase.NEEDS_ATTENTION, limit=1000))
    escalated = [job for job in waiting if job.escalated_at is not None]
    found.append(_finding("needs attention", f"{several(len(waiting), 'job')}, {len(escalated)} escalated"))
    scopes = made.run(find_candidate_scopes(None))
    found.append(
        _finding("to reconcile", f"{several(len(scopes), 'scope')}; a worker or `tenure sweep` asks their providers")
    )
    return [*found, *_beside(made), *_authority(made)]


def _beside(made: Store) -> list[dict[str, Any]]:
    """Say what waits beside the jobs, and what somebody has stopped: only where there is something."""
    other = beside(made)
    age = other["outbox"]["oldest_unpublished_age_seconds"]
    found = []
    if other["outbox"]["unpublished"]:
        stuck = age is not None and age > ALARM_AFTER.total_seconds()
        why = "; does a relay run, and does its destination answer?" if stuck else ""
        waiting = several(other["outbox"]["unpublished"], "message")
        text = f"{waiting} unpublished, {other['outbox']['set_aside']} set aside"
        due = "" if age is None else f", the oldest is due for {age:.0f} s"
        codes = f"; last answers: {', '.join(other['outbox']['codes'])}" if other["outbox"]["codes"] else ""
        found.append(_finding("outbox", f"{text}{due}{codes}{why}; see `tenure outbox list`", ok=not stuck))
    if other["suspects"]:
        found.append(
            _finding("suspects", f"{several(other['suspects'], 'job')} of a restored copy; see `tenure suspects list`")
        )
    stopped = [one.name for one in made.run(show_queues()) if one.paused_at or one.draining_at]
    if stopped:
        found.append(_finding("queues", f"paused or drained: {', '.join(sorted(stopped))}; see `tenure queues list`"))
    return found


def _authority(made: Store) -> list[dict[str, Any]]:
    """Say whether a restored copy would be noticed, whether this is one, and what to run next."""
    ledger, what = made.ledger, "restore protection"
    if ledger is None:
        facts = made.run(read_facts(None, made.file_identity()))
        none = "none: no authority ledger is configured, so a restored copy would not be noticed"
        if facts.store is not None:
            none = "this database has an authority ledger, and it was not named here; pass --authority-ledger"
        return [_finding(what, none, ok=facts.store is None, good=False), *_frozen(facts, None)]
    try:
        book = ledger.read()
    except TenureError as error:
        facts = made.run(read_facts(None, made.file_identity()))
        return [_finding(what, f"{error} [{error.code}]", ok=False), *_frozen(facts, None)]
    facts = made.run(read_facts(book, made.file_identity()))
    if book is None and facts.store is None:
        return [_finding(what, f"begins with the first worker, at {ledger.where}"), *_frozen(facts, book)]
    pending = 0 if book is None else len(book.pending)
    waiting = f"; {pending} acts wait for a worker to apply them" if pending else ""
    return [_finding(what, f"{ledger.where}, tick {facts.incarnation}{waiting}"), *_frozen(facts, book)]


def _frozen(facts: Facts, book: Book | None) -> list[dict[str, Any]]:
    if facts.frozen is None:
        return []
    behind = 0 if book is None else book.incarnation - facts.incarnation
    ticks = f" ({behind} ticks, about as many seconds of work, behind)" if behind > 0 else ""
    return [
        _finding(
            "frozen",
            f"{facts.frozen.cause}: {facts.frozen.text}{ticks}; see that this is the database you mean, then look at "
            "`tenure recover`, which changes nothing without --yes",
            ok=False,
        )
    ]


def _finding(what: str, found: str, *, ok: bool = True, good: bool = True) -> dict[str, Any]:
    """
    Give one finding.

    Args:
        ok: It is as it may be, and no reason to end with 1.
        good: It protects, or works, as one would want it to.
    """
    return {"what": what, "found": found, "ok": ok, "good": ok and good}


def _mark(finding: dict[str, Any]) -> str:
    if not finding["ok"]:
        return "!!"
    return "ok" if finding["good"] else "--"
