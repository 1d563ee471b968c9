"""Every procedure of the package, on a job or a message that is ready for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure import verbs
from tenure.connectors.provider import terms
from tenure.procedures import approvals, authority, claim_batch, inspect, recover, tenants, upkeep
from tenure.procedures import hold as holding
from tenure.procedures.complete_batch import Completion, complete_batch
from tenure.procedures.control import stop_effect
from tenure.procedures.effect import Beginning, Finishing, begin_effect, begin_effects, finish_effect, finish_effects
from tenure.procedures.enqueue import create_at_once
from tenure.procedures.inbox import declare_consumer, receive_event
from tenure.procedures.outbox import claim_messages
from tenure.procedures.outbox_operate import oldest_message
from tenure.procedures.outbox_upkeep import (
    announce_relay,
    prune_messages,
    tend_messages,
    withdraw_relay,
)
from tenure.procedures.publish import close_publish, find_publish, open_publish
from tenure.procedures.reconcile import find_candidate_scopes, find_candidates
from tenure.rules.control import ControlMode, Judged
from tenure.rules.inbox import check_arrival
from tenure.rules.ledger import Book
from tenure.rules.outcome import Succeeded
from tenure.rules.recover import Operation
from tenure.verbs.scope import Scope
from tests.contract.bench import Bench
from tests.contract.build import CASES, KIND, MAILER, PAYLOAD, RECEIPT, Case, create
from tests.contract.governed import forgotten, governed
from tests.contract.test_create_at_once import job as new_one
from tests.contract.test_inbox import EVENT
from tests.contract.test_lost_commit import STORIES as WRITES
from tests.contract.test_lost_commit import Story, _message, _outgoing, _suspect

SCOPE = Scope(None, "op:1", None)
MINUTE = timedelta(minutes=1)
ACT = UUID(int=11)


def _frozen(bench: Bench) -> Case:
    case = CASES["queued"](bench)
    bench.service.freeze_tenant("acme", actor="op:1", reason="r")
    return case


def _later(bench: Bench) -> Case:
    create(bench.service, scheduled_at=bench.now + MINUTE)
    bench.advance(minutes=2)
    return Case(UUID(int=0), None)  # type: ignore[arg-type]  # nobody holds it


def _final_suspect(bench: Bench) -> Case:
    case = _suspect(bench)
    bench.service.complete_job(case.lease)
    return case


def _received(bench: Bench) -> Case:
    case = CASES["running"](bench)
    bench.run(declare_consumer("shop", MINUTE, MINUTE * 2))
    bench.run(_arrival())
    bench.advance(minutes=3)
    return case


def _arrival() -> Any:
    return receive_event(check_arrival("shop", EVENT, "d-1"), None)


def _delivered(bench: Bench) -> Case:
    case = _outgoing(bench)
    WRITES["finish messages"][1](bench, case)
    bench.advance(hours=1)
    return case


def _asked(case: Case) -> Beginning:
    return Beginning(case.lease, "send", "v1:" + "0" * 64, terms(MAILER), MINUTE)


def _book(bench: Bench, procedure: Callable[[Book], Any]) -> Any:
    """Run what compares with a ledger, on a ledger that fits."""
    facts = bench.run(authority.read_facts(None, None))
    return bench.run(procedure(Book(store="s-1", identity=facts.identity)))


def _frozen(bench: Bench) -> Case:
    case = CASES["queued"](bench)
    bench.sql("INSERT INTO $meta (key, value) VALUES ('frozen', 'restored')")
    return case


def _reading(procedure: Callable[[Case], Any], case: str = "completed, sent") -> Story:
    return CASES[case], lambda b, c: b.run(procedure(c))


READS: dict[str, Story] = {
    "read_facts": _reading(lambda c: authority.read_facts(None, None)),
    "get_job": _reading(lambda c: inspect.get_job(c.job_id)),
    "get_jobs": _reading(lambda c: inspect.get_jobs([c.job_id])),
    "find_by_key": _reading(lambda c: inspect.find_by_key("acme", "p1", "k-1")),
    "list_jobs": _reading(lambda c: inspect.list_jobs(tenant="acme")),
    "list_effects": _reading(lambda c: inspect.list_effects(c.job_id)),
    "list_events": _reading(lambda c: inspect.list_events(c.job_id)),
    "list_evidence": _reading(lambda c: inspect.list_evidence(c.job_id)),
    "find_candidates": _reading(lambda c: find_candidates("acme", "p1", "acme", 10), "indeterminate, effect"),
    "find_candidate_scopes": _reading(lambda c: find_candidate_scopes(None), "indeterminate, effect"),
    "list_candidates": _reading(
        lambda c: verbs.find_reconciliation_candidates(SCOPE, organization="acme", project="p1"),
        "indeterminate, effect",
    ),
    "read_effects": _reading(lambda c: claim_batch.read_effects([c.job_id])),
    "read_epoch": _reading(lambda c: tenants.read_epoch("acme")),
    "list_tenants": _reading(lambda c: tenants.list_tenants()),
    "show_tenant": _reading(lambda c: tenants.show_tenant("acme")),
    "list_queues": _reading(lambda c: verbs.list_queues(SCOPE)),
    "show_queues": _reading(lambda c: verbs.show_queues(SCOPE)),
    "list_queue_changes": _reading(lambda c: verbs.list_queue_changes(SCOPE, "default")),
    "stats": _reading(lambda c: verbs.stats(SCOPE)),
    "outbox_stats": _reading(lambda c: verbs.outbox_stats(SCOPE)),
    "oldest_message": _reading(lambda c: oldest_message()),
    "list_messages": _reading(lambda c: verbs.list_messages(SCOPE, tenant="acme")),
    "get_message": (_outgoing, lambda b, c: b.run(verbs.get_message(SCOPE, c.question[0].message.id))),
    "get_approval": (governed("ap-1"), lambda b, c: b.run(approvals.get_approval("acme", "ap-1"))),
    "list_approvals": (governed("ap-1"), lambda b, c: b.run(approvals.list_approvals("acme"))),
    "approval_of": (
        lambda bench: _with_job(bench, governed("ap-1")(bench)),
        lambda b, c: b.run(approvals.approval_of(c.question)),
    ),
    "every_revocation": _reading(lambda c: approvals.every_revocation()),
    "before_revocation": (governed("ap-1"), lambda b, c: b.run(approvals.before_revocation("acme", "ap-1"))),
    "list_suspects": (_suspect, lambda b, c: b.run(recover.list_suspects())),
    "count_suspects": (_suspect, lambda b, c: b.run(recover.count_suspects())),
    "list_needs": (_suspect, lambda b, c: b.run(recover.list_needs())),
    "every_need": (_suspect, lambda b, c: b.run(recover.every_need())),
    "find_operations": (_suspect, lambda b, c: b.run(recover.find_operations([KIND], None))),
    "read_doubt": (
        _suspect,
        lambda b, c: b.run(recover.read_doubt(c.job_id, [Operation("send", terms(MAILER))])),
    ),
}


def _with_job(bench: Bench, case: Case) -> Case:
    return replace(case, question=bench.service.get_job(case.job_id))


MORE_WRITES: dict[str, Story] = {
    "compare": (CASES["queued"], lambda b, c: _book(b, lambda book: authority.compare(book, None))),
    "tick": (CASES["queued"], lambda b, c: _book(b, lambda book: authority.tick(book, None, sure=True))),
    "recover_database": (
        _frozen,
        lambda b, c: _book(b, lambda book: authority.recover_database(book, None, "op:1", "restored")),
    ),
    "create_at_once": (
        CASES["running"],
        lambda b, c: b.run(create_at_once(new_one("k-9"))),
    ),
    "create_at_once, later": (
        CASES["running"],
        lambda b, c: b.service.create_job(
            organization="new",
            project="p1",
            idempotency_key="k-9",
            kind=KIND,
            payload=PAYLOAD,
            scheduled_at=b.now + MINUTE,
        ),
    ),
    "claim_batch": (
        WRITES["claim"][0],
        lambda b, c: b.run(claim_batch.claim_batch("B", [KIND], limit=5)),
    ),
    "promote": (_later, lambda b, c: b.run(upkeep.promote())),
    "withdraw": (CASES["queued"], lambda b, c: b.run(upkeep.withdraw("B"))),
    "forget_claims": (CASES["claimed"], lambda b, c: b.run(upkeep.forget_claims(timedelta(0)))),
    "complete_batch": (
        CASES["running"],
        lambda b, c: b.run(complete_batch([Completion(c.lease, "acme", '{"n":1}')])),
    ),
    "hold": (CASES["running"], lambda b, c: b.run(holding.hold([holding.completing(c.lease, None)]))),
    "open_publish": (CASES["running"], lambda b, c: b.run(open_publish(c.lease))),
    "close_publish": (CASES["running"], lambda b, c: b.run(close_publish(c.lease, ACT))),
    "find_publish": (CASES["running"], lambda b, c: b.run(find_publish(c.lease, ACT))),
    "begin_effect": (CASES["running"], lambda b, c: b.run(begin_effect(_asked(c)))),
    "begin_effects": (CASES["running"], lambda b, c: b.run(begin_effects([begin_effect(_asked(c))]))),
    "finish_effect": (
        CASES["running, effect"],
        lambda b, c: b.run(finish_effect(Finishing(c.lease, "send", Succeeded(RECEIPT)))),
    ),
    "finish_effects": (
        CASES["running, effect"],
        lambda b, c: b.run(finish_effects([finish_effect(Finishing(c.lease, "send", Succeeded(RECEIPT)))])),
    ),
    "stop_effect": (
        CASES["running"],
        lambda b, c: b.run(stop_effect(c.lease, "send", "mailer", "v1:0", Judged(ControlMode.ENFORCED, "deny", "no"))),
    ),
    "forget_suspects": (_final_suspect, lambda b, c: b.run(recover.forget_suspects())),
    "announce_relay": (_message, lambda b, c: b.run(announce_relay("r-1", ["mail"], MINUTE))),
    "announce_relay, for another": (_message, lambda b, c: b.run(announce_relay("r-1", ["post"], MINUTE))),
    "withdraw_relay": (_message, lambda b, c: b.run(withdraw_relay("r-1"))),
    "claim_messages": (_message, lambda b, c: b.run(claim_messages("r-1", "mail", 10, MINUTE))),
    "tend_messages": (_message, lambda b, c: b.run(tend_messages())),
    "tend_messages, of a lost relay": (
        lambda bench: _aged(bench, _outgoing(bench)),
        lambda b, c: b.run(tend_messages()),
    ),
    "prune_messages": (_delivered, lambda b, c: b.run(prune_messages(MINUTE))),
    "declare_consumer": (CASES["running"], lambda b, c: b.run(declare_consumer("shop", MINUTE, MINUTE * 2))),
    "receive_event": (CASES["running"], lambda b, c: b.run(_arrival())),
    "receive_event, again": (_received, lambda b, c: b.run(_arrival())),
    "prune_inbox": (
        _received,
        lambda b, c: b.run(verbs.prune_inbox(SCOPE, "shop", older_than=MINUTE * 2, tenant="acme")),
    ),
    "add_messages": (CASES["running"], lambda b, c: _message(b)),
    "add_messages, again": (_message, lambda b, c: _message(b)),
    "save_queue": (
        CASES["queued"],
        lambda b, c: b.service.set_queue("default", fair=True, weights={"acme": 2}),
    ),
    "thaw, frozen": (_frozen, lambda b, c: b.service.thaw_tenant("acme", actor="op:1", reason="r")),
    "replay_revocations": (
        lambda bench: replace(governed("ap-1")(bench), question=forgotten(bench)),
        lambda b, c: b.run(approvals.replay_revocations([c.question])),
    ),
}


def _aged(bench: Bench, case: Case) -> Case:
    bench.advance(minutes=5)
    return case


# They read as well, or write past the store.
LEFT_OUT = {"mark suspects", "replay revocations", "revoke an approval, in a ledger", "complete two at once"}

ACTS: dict[str, Story] = {
    **READS,
    **{name: story for name, story in WRITES.items() if name not in LEFT_OUT},
    **MORE_WRITES,
}
