"""Intents and outcomes of many jobs in one transaction: each as by itself, whatever becomes of those beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import Conflict, LeaseLost, Uncertain
from tenure.procedures.effect import Beginning, Finishing, begin_effect, begin_effects, finish_effect, finish_effects
from tenure.rules.dispatch import Begun
from tenure.rules.effect import Effect
from tenure.rules.lease import Lease
from tenure.rules.outcome import FailedBeforeDispatch, Outcome, Rejected, Succeeded, Terms, Unknown
from tenure.yields import Procedure
from tests.contract.bench import Bench
from tests.contract.build import RECEIPT, claim, create
from tests.contract.test_batches import alike

TERMS = Terms(
    provider="mailer", honours_key=True, retention=timedelta(hours=24), binds_payload=True, lookup_complete=True,
    settles_within=timedelta(seconds=30),
)  # fmt: skip
OUTCOMES: list[Outcome] = [
    Succeeded(RECEIPT),
    FailedBeforeDispatch("no connection"),
    Rejected("not this one"),
    Unknown("no reply"),
]


def beginning(lease: Lease, name: str = "send", digest: str = "v1:0") -> Procedure[Begun]:
    return begin_effect(Beginning(lease, name, digest, TERMS, timedelta(seconds=20)))


def held(bench: Bench, count: int, *, start: bool = True) -> list[Lease]:
    leases = []
    for nth in range(count):
        create(bench.service, f"k-{nth}")
        leases.append(claim(bench.service, start=start).lease)
    return leases


@pytest.mark.parametrize("start", [True, False])
def test_a_batch_writes_what_each_of_them_writes_alone(bench: Bench, start: bool) -> None:
    leases = held(bench, len(OUTCOMES), start=start)
    before = bench.snapshot()
    together = bench.run(begin_effects([beginning(lease) for lease in leases]))
    begun = bench.dump()
    bench.restore(before)
    alone = [bench.run(beginning(lease)) for lease in leases]
    assert together == alone
    assert all(isinstance(one, Begun) and one.send for one in together)
    assert alike(begun) == alike(bench.dump())

    before = bench.snapshot()
    ends = list(zip(leases, OUTCOMES, strict=True))
    together_ended = bench.run(
        finish_effects([finish_effect(Finishing(lease, "send", outcome)) for lease, outcome in ends])
    )
    ended = bench.dump()
    bench.restore(before)
    assert together_ended == [bench.run(finish_effect(Finishing(lease, "send", outcome))) for lease, outcome in ends]
    assert alike(ended) == alike(bench.dump())
    assert {one.state.value for one in together_ended if isinstance(one, Effect)} == {
        "succeeded", "failed_before_dispatch", "rejected", "unknown"
    }  # fmt: skip


def test_one_that_is_refused_leaves_the_others_alone(bench: Bench) -> None:
    good, stale, open_, other, sent = held(bench, 5)
    bench.run(beginning(open_))
    for lease in (other, sent):
        bench.run(beginning(lease))
        bench.run(finish_effect(Finishing(lease, "send", Succeeded(RECEIPT))))
    bench.service.revoke_job(stale.job_id, reason="no more", actor="op:1")
    asked = [beginning(good), beginning(stale), beginning(open_), beginning(other, digest="v1:1"), beginning(sent)]
    answers = bench.run(begin_effects(asked))
    kinds: list[Any] = [type(one) for one in answers]
    assert kinds[1:3] == [LeaseLost, Uncertain]
    assert issubclass(kinds[3], Conflict)
    assert isinstance(answers[0], Begun)
    assert answers[0].send
    # The receipt of before is given, and nothing is to be sent.
    assert isinstance(answers[4], Begun)
    assert (answers[4].send, answers[4].effect.receipt) == (False, RECEIPT)
    assert [one.state.value for one in bench.service.list_effects(good.job_id)] == ["pending"]
    assert bench.service.list_effects(stale.job_id) == []


def test_two_effects_of_one_job_do_not_go_together(bench: Bench) -> None:
    """The second has to see what the first one writes, so it is sent back to come by itself."""
    (lease,) = held(bench, 1)
    first, second = bench.run(begin_effects([beginning(lease, "a"), beginning(lease, "b")]))
    assert isinstance(first, Begun)
    assert second is None
    assert isinstance(bench.run(beginning(lease, "b")), Begun)
    ended = bench.run(
        finish_effects(
            [finish_effect(Finishing(lease, "a", Succeeded(1))), finish_effect(Finishing(lease, "b", Succeeded(2)))]
        )
    )
    assert isinstance(ended[0], Effect)
    assert ended[1] is None
    assert {one.name: one.state.value for one in bench.service.list_effects(lease.job_id)} == {
        "a": "succeeded",
        "b": "pending",
    }


def test_an_outcome_that_is_refused_is_left_to_the_call_of_its_own(bench: Bench) -> None:
    """That one also keeps what the call proved; here nothing is written for it, and the other one is."""
    lost, kept = held(bench, 2)
    bench.run(begin_effects([beginning(lost), beginning(kept)]))
    bench.service.revoke_job(lost.job_id, reason="no more", actor="op:1")
    ends = [
        finish_effect(Finishing(lost, "send", Succeeded(RECEIPT))),
        finish_effect(Finishing(kept, "send", Succeeded(RECEIPT))),
    ]
    refused, settled = bench.run(finish_effects(ends))
    assert refused is None
    assert isinstance(settled, Effect)
    assert bench.table("evidence", lost.job_id) == []
    with pytest.raises(LeaseLost):
        bench.run(finish_effect(Finishing(lost, "send", Succeeded(RECEIPT))))
    assert len(bench.table("evidence", lost.job_id)) == 1
    assert bench.table("evidence", kept.job_id) == []


def test_a_batch_that_is_run_again_answers_itself(bench: Bench) -> None:
    leases = held(bench, 2)
    begin = begin_effects([beginning(lease) for lease in leases])
    first = bench.run(begin)
    before = bench.dump()
    # The same value, as after a lost reply: the calls were not made yet. A new one is judged anew.
    again = bench.run(begin)
    assert [one.effect for one in again if isinstance(one, Begun)] == [
        one.effect for one in first if isinstance(one, Begun)
    ]
    assert all(isinstance(one, Begun) and one.send for one in again)
    assert {type(one) for one in bench.run(begin_effects([beginning(lease) for lease in leases]))} == {Uncertain}
    finish = finish_effects([finish_effect(Finishing(lease, "send", Succeeded(RECEIPT))) for lease in leases])
    assert bench.dump() == before
    ended = bench.run(finish)
    before = bench.dump()
    assert bench.run(finish) == ended
    anew = finish_effects([finish_effect(Finishing(lease, "send", Succeeded(RECEIPT))) for lease in leases])
    assert bench.run(anew) == [None, None]
    assert bench.dump() == before


def test_an_unknown_job_is_refused_as_by_itself(bench: Bench) -> None:
    (lease,) = held(bench, 1)

    nobody = replace(lease, job_id=UUID(int=1))
    answers = bench.run(begin_effects([beginning(nobody), beginning(lease)]))
    assert type(answers[0]).__name__ == "NotFound"
    assert isinstance(answers[1], Begun)
    assert bench.run(finish_effects([finish_effect(Finishing(nobody, "send", Succeeded(1)))])) == [None]
