"""`tenure recover`: bring a frozen database back, say what needs evidence, and ask an app's providers about it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from tenure.app import Tenure
from tenure.errors import Invalid, Refused
from tenure.faces.cli.options import AsJson, LedgerPlace, StoreUrl, loaded, opened, who
from tenure.faces.cli.show import write_json
from tenure.faces.cli.suspects import Effects, answer_fields, ask_about_all, need_fields, operations_of
from tenure.flows.authority import recover_database
from tenure.flows.drive import run_flow
from tenure.flows.ledger import Ledger
from tenure.flows.look import begun
from tenure.flows.recover import Answered
from tenure.procedures.approvals import every_revocation
from tenure.procedures.authority import read_facts
from tenure.procedures.recover import every_need
from tenure.procedures.tenants import list_tenants
from tenure.rules.ledger import FROZEN, Book, Facts, judge
from tenure.rules.recover import NeedsEvidence
from tenure.stores.contract import Store
from tenure.yields import new_id


def recover(
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Whose providers to ask about what the copy does not know."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the act.")] = "",
    actor: Annotated[str, typer.Option(envvar="TENURE_ACTOR", help="Who asks; kept with the act.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what would be done.")] = False,
    effect: Effects = None,
    store: StoreUrl = None,
    ledger: LedgerPlace = None,
    as_json: AsJson = False,
) -> int:
    """Bring a frozen database back: replay restrictions, raise epochs, mark suspects, say what needs evidence."""
    with _place(app, store, ledger) as (made, found):
        operations = {} if found is None else operations_of(found, effect or [])
        if found is None and effect:
            raise Invalid("--effect names effects of an app: give MODULE:APP too", code="BAD_ARGUMENT")
        watched = _watched(made)
        book = watched.read()
        facts = made.run(read_facts(book, made.file_identity()))
        plan = _plan(made, book, facts)
        if facts.frozen is not None and yes:
            plan |= _recovered(made, watched, book, facts, actor or who(), reason)
        if not as_json:
            sys.stdout.write(_told_plan(plan))
        if plan["frozen"] and not plan["done"]:
            if as_json:
                write_json(plan)
            return 1
        # What a recovery before this one has left is said and asked as well: this may be its second run.
        needs = made.run(every_need())
        asked: _Asked | None = None
        providers = [] if found is None else sorted(found.providers.by_name)
        if found is not None and needs:
            asked = asyncio.run(_ask(found, operations, quiet=as_json))
            needs = asked.needs
    if as_json:
        answers = [] if asked is None else asked.answers
        plan |= {"needs_evidence": [need_fields(one) for one in needs], "answers": [answer_fields(a) for a in answers]}
        write_json(plan)
    else:
        sys.stdout.write(_told_needs(needs, asked) + _told_next(plan, needs, asked, app, providers))
    return 0


@contextmanager
def _place(app: str | None, url: str | None, ledger: str | None) -> Iterator[tuple[Store, Tenure | None]]:
    if app is None:
        with opened(url, ledger) as made:
            yield made, None
        return
    with loaded(app, url, ledger) as found:
        try:
            yield found.store, found
        finally:
            found.close()


def _watched(made: Store) -> Ledger:
    if made.ledger is None:
        raise Invalid(
            "no authority ledger is configured, so there is nothing to recover from: name it with "
            "--authority-ledger or TENURE_AUTHORITY_LEDGER",
            code="LEDGER_REQUIRED",
        )
    watched: Ledger = made.ledger
    return watched


def _recovered(
    made: Store, watched: Ledger, book: Book | None, facts: Facts, actor: str, reason: str
) -> dict[str, Any]:
    if not reason:
        raise Invalid("say why: --reason 'restored the backup of monday'", code="BAD_ARGUMENT")
    if facts.store is not None and book is not None and facts.store != book.store:
        raise Refused(
            f"the ledger at {watched.where} belongs to another store; name the right one, or move this one "
            f"away, and the database gets a new one",
            code="LEDGER_FOREIGN",
        )
    done = run_flow(recover_database(watched, made.file_identity(), actor, reason, _new_book(made)), made.run)
    if not done.changed:
        raise Refused(
            "the database is not frozen any more: it was recovered since you looked, and nothing was changed now; see "
            "`tenure tenants list` for the epochs, and `tenure recover` for what needs evidence",
            code="RECOVERED_ALREADY",
        )
    return {
        "done": True,
        "suspects": done.suspects,
        "revocations": done.revocations,
        "epochs": done.epochs,
        "incarnation": done.incarnation,
    }


def _new_book(made: Store) -> Callable[[str], Book]:
    tenants, revoked = made.run(list_tenants()), made.run(every_revocation())
    # Another store from now on: the ledger that was lost may turn up again, and knows a life that has ended.
    return lambda identity: begun(str(new_id()), identity, tenants, revoked)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an app's providers said, and what needs evidence after that."""

    answers: list[Answered]
    needs: list[NeedsEvidence]


async def _ask(app: Tenure, operations: Any, *, quiet: bool) -> _Asked:
    try:
        answers = await ask_about_all(app, operations, None, None, quiet=quiet)
        return _Asked(answers, await (await app.astore()).run(every_need()))
    finally:
        await app.aclose()


def _plan(made: Store, book: Book | None, facts: Facts) -> dict[str, Any]:
    tenants = made.run(list_tenants())
    restrictions = {} if book is None else book.restrictions
    return {
        "frozen": facts.frozen is not None,
        "cause": None if facts.frozen is None else facts.frozen.cause.value,
        "text": None if facts.frozen is None else facts.frozen.text,
        "behind": judge(book, facts) is not None,
        "ledger": made.ledger.where,
        "copy_until": _instant(0 if facts.frozen is None else facts.frozen.copy_until),
        "ledger_until": _instant(0 if book is None else book.ticked_at),
        "epochs": {one.name: max(one.epoch, 1 if book is None else book.reach(one.name)) + 1 for one in tenants},
        "freezes": sorted(tenant for tenant, kind, _ in restrictions if kind == FROZEN),
        "suspects": None,
        "revocations": None,
        "done": False,
    }


def _instant(us: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) if us else None


def _told_plan(plan: dict[str, Any]) -> str:
    if not plan["frozen"]:
        return "the database is not frozen; there is nothing to recover\n"
    lines = [f"frozen: {plan['cause']}: {plan['text']}", f"ledger: {plan['ledger']}"]
    copy, ledger = plan["copy_until"], plan["ledger_until"]
    if copy is not None and ledger is not None and copy < ledger:
        lines.append(
            f"jobs created between {copy:%Y-%m-%d %H:%M:%S} and {ledger:%Y-%m-%d %H:%M:%S} UTC, "
            f"{ledger - copy} in all, are gone with their keys; what they sent is not known here"
        )
    elif ledger is None:
        lines.append("the ledger is gone, so nobody can say which jobs are missing")
    for tenant, epoch in plan["epochs"].items():
        lines.append(f"tenant {tenant}: epoch {epoch}{', frozen' if tenant in plan['freezes'] else ''}")
    if plan["done"]:
        suspects = "1 job is" if plan["suspects"] == 1 else f"{plan['suspects']} jobs are"
        lines.append(f"done; {suspects} suspect, revocations of approvals replayed: {plan['revocations']}")
    else:
        lines.append("nothing was changed; again with --yes --reason TEXT to do this")
    return "\n".join(lines) + "\n"


def _told_needs(needs: list[NeedsEvidence], asked: _Asked | None) -> str:
    lines = []
    if asked is not None:
        said = Counter(one.action for one in asked.answers)
        told = ", ".join(f"{number} {action}" for action, number in sorted(said.items()))
        # What was left was not asked about, whichever providers the app has.
        start = "asked the providers" if set(said) - {"left"} else "no provider was asked"
        lines.append(f"{start}: {told}")
        lines += [f"  {number} left: {why}" for why, number in sorted(_left(asked).items())]
    if needs:
        lines.append("what needs evidence:")
        counts = Counter((one.provider or "no provider is known", one.why) for one in needs)
        lines += [f"  {number} x {provider}: {why}" for (provider, why), number in sorted(counts.items())]
    return "".join(f"{line}\n" for line in lines)


def _left(asked: _Asked) -> Counter[str]:
    return Counter(one.reason for one in asked.answers if one.action == "left")


def _unnamed(needs: list[NeedsEvidence], asked: _Asked, providers: list[str]) -> list[str]:
    """Give --effect for each kind of which no effect is known, with what of it is known here."""
    left = {one.job_id for one in asked.answers if one.action == "left" and one.operation_key is None}
    only = providers[0] if len(providers) == 1 else "PROVIDER"
    return sorted(
        {f"{one.kind}:NAME={one.provider or only}" for one in needs if one.name is None and one.job_id in left}
    )


def _told_next(
    plan: dict[str, Any], needs: list[NeedsEvidence], asked: _Asked | None, app: str | None, providers: list[str]
) -> str:
    lines = []
    if needs:
        lines.append("tenure suspects list")
        if asked is None:
            lines.append(f"tenure suspects reconcile {app or 'MODULE:APP'}")
        else:
            # The name is in the handler; a kind whose handler has no effects has none to name.
            lines += [
                f"tenure suspects reconcile {app} --effect {one}  # NAME as in ctx.effect(NAME, ...)"
                for one in _unnamed(needs, asked, providers)
            ]
    if plan["done"]:
        lines += [f"tenure tenants readmit {tenant} --all --reason TEXT" for tenant in plan["epochs"]]
    return "".join(["next:\n", *(f"  {line}\n" for line in lines)]) if lines else ""
