"""The inbox on both databases: a mark and an effect in the consumer's own commit, once for each operation."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure.errors import Conflict, Invalid, NotFound, Refused
from tenure.inbox import IncomingEvent
from tenure.rules.digest import message_digest
from tenure.rules.message import Message
from tenure.yields import new_id
from tests.contract.bench import Bench
from tests.contract.caller import own, producer
from tests.contract.refusal import refused

THROUGH_THE_POOLER = True

EVENT = IncomingEvent("acme", "op-1", "quote.accepted", 1, "quote/17", {"quote": 17})


def receive(bench: Bench, event: Any = EVENT, delivery: str = "d-1", consumer: str = "ledger", **more: Any) -> Any:
    with bench.transaction() as tx:
        return tenure.inbox.receive(tx, consumer, event, delivery, **more)


def message(bench: Bench, **changes: Any) -> Message:
    fields: dict[str, Any] = {"operation": "op-1", "type": "a", "version": 1, "subject": None, "data": {"x": 1}}
    digest = message_digest(**fields)
    made = Message("acme", new_id(), "op-1", "mail", "a", 1, None, {"x": 1}, 1, digest, bench.now)
    return replace(made, **changes)


def test_an_operation_is_new_once(bench: Bench) -> None:
    first = receive(bench)
    assert (first.new, first.first_delivery_id, first.times_seen, first.received_at) == (True, "d-1", 1, bench.now)
    came = bench.now
    bench.advance(hours=1)
    again = receive(bench, delivery="d-2")
    assert (again.new, again.first_delivery_id, again.times_seen, again.received_at) == (False, "d-1", 2, came)
    assert receive(bench, delivery="d-2").times_seen == 3
    # Another consumer and another tenant have memories of their own.
    assert receive(bench, consumer="audit").new
    assert receive(bench, replace(EVENT, tenant="rival")).new


def test_mark_and_effect_are_one_commit(bench: Bench) -> None:
    def apply(delivery: str, *, commit: bool) -> bool:
        with producer(bench) as caller:
            caller.begin()
            receipt = tenure.inbox.receive(caller.join(), "ledger", EVENT, delivery)
            if receipt.new:
                caller.write(17)
            if commit:
                caller.commit()
            return bool(receipt.new)

    assert apply("d-1", commit=False)
    assert own(bench) == []
    assert apply("d-1", commit=True)
    assert not apply("d-1", commit=True)
    assert not apply("d-2", commit=True)
    assert own(bench) == [17]


def test_a_message_is_received_as_it_is(bench: Bench) -> None:
    assert receive(bench, message(bench)).new
    assert not receive(bench, message(bench), "d-2").new
    with refused(bench, Invalid, code="DIGEST_MISMATCH"):
        receive(bench, message(bench, data={"x": 2}), "d-3")


@pytest.mark.parametrize(
    "changes", [{"data": {"quote": 18}}, {"type": "quote.refused"}, {"version": 2}, {"subject": None}]
)
def test_another_content_under_a_known_operation_is_a_conflict(bench: Bench, changes: dict[str, Any]) -> None:
    receive(bench)
    with refused(bench, Conflict, code="MESSAGE_MISMATCH"):
        receive(bench, replace(EVENT, **changes), "d-2")
    assert receive(bench, delivery="d-2").times_seen == 2


def test_a_delivery_brings_one_operation(bench: Bench) -> None:
    receive(bench)
    with refused(bench, Conflict, code="DELIVERY_ID_REUSED"):
        receive(bench, replace(EVENT, operation="op-2"))
    assert receive(bench, replace(EVENT, operation="op-2"), "d-2").new


def test_a_conflict_leaves_the_consumers_transaction_usable(bench: Bench) -> None:
    receive(bench)
    with producer(bench) as caller:
        caller.begin()
        with pytest.raises(Conflict):
            tenure.inbox.receive(caller.join(), "ledger", replace(EVENT, version=2), "d-2")
        caller.write(7)
        caller.commit()
    assert own(bench) == [7]
    assert [row["delivery_id"] for row in bench.dump()["inbox_delivery"]] == ["d-1"]


@pytest.mark.parametrize("commit", [True, False])
def test_of_two_at_once_the_second_waits_for_the_first(postgres_bench: Bench, commit: bool) -> None:
    bench = postgres_bench
    answers: list[Any] = []
    with producer(bench) as first, producer(bench) as second:
        first.begin()
        assert tenure.inbox.receive(first.join(), "ledger", EVENT, "d-1").new
        second.begin()
        joined = second.join()

        def wait() -> None:
            answers.append(tenure.inbox.receive(joined, "ledger", EVENT, "d-2"))

        thread = threading.Thread(target=wait)
        thread.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while not bench.sql(waiting)[0][0]:
            assert thread.is_alive()
        if commit:
            first.commit()
        else:
            first.rollback()
        thread.join()
        second.commit()
    assert [(one.new, one.first_delivery_id) for one in answers] == [(not commit, "d-1" if commit else "d-2")]


@pytest.mark.parametrize(
    "event,code",
    [
        (replace(EVENT, tenant=""), "BAD_ARGUMENT"),
        (replace(EVENT, operation=None), "BAD_ARGUMENT"),
        (replace(EVENT, version=True), "BAD_ARGUMENT"),
        (replace(EVENT, data=[]), "PAYLOAD_INVALID"),
        (replace(EVENT, data={"x": float("inf")}), "NON_FINITE_NUMBER"),
        ({"operation": "op-1"}, "BAD_EVENT"),
    ],
)
def test_a_malformed_event_is_refused(bench: Bench, event: Any, code: str) -> None:
    with refused(bench, Invalid, code=code):
        receive(bench, event)
    assert receive(bench).new


def test_the_replay_window_is_declared_once(bench: Bench) -> None:
    receive(bench, replay_window=timedelta(days=3))
    assert receive(bench, delivery="d-2", replay_window=timedelta(days=3)).times_seen == 2
    with refused(bench, Conflict, code="REPLAY_WINDOW_DIFFERS"):
        receive(bench, delivery="d-3", replay_window=timedelta(days=4))
    with bench.transaction() as tx:
        said = tenure.inbox.declare(tx, "ledger", replay_window=timedelta(days=4))
    assert (said.replay_window, said.retention) == (timedelta(days=4), timedelta(days=8))
    assert receive(bench, delivery="d-3", replay_window=timedelta(days=4)).times_seen == 3


def test_a_retention_shorter_than_the_replay_window_is_refused_with_both(bench: Bench) -> None:
    with refused(bench, Invalid, code="RETENTION_TOO_SHORT") as caught, bench.transaction() as tx:
        tenure.inbox.declare(tx, "ledger", replay_window=timedelta(days=7), retention=timedelta(days=6))
    assert "6 days" in str(caught.value)
    assert "7 days" in str(caught.value)
    with bench.transaction() as tx:
        tenure.inbox.declare(tx, "ledger", replay_window=timedelta(days=7), retention=timedelta(days=7))


TEN_YEARS = timedelta(days=3650)


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"replay_window": TEN_YEARS + timedelta(microseconds=1)}, "replay_window .* 3650 days"),
        ({"replay_window": 2 * TEN_YEARS}, "replay_window .* 3650 days"),
        ({"replay_window": timedelta(0)}, "replay_window"),
        ({"replay_window": 7}, "replay_window"),
        ({"retention": 2 * TEN_YEARS + timedelta(microseconds=1)}, "retention .* 7300 days"),
    ],
)
def test_a_window_and_a_retention_have_the_limits_that_their_refusal_names(
    bench: Bench, wrong: dict[str, Any], said: str
) -> None:
    with refused(bench, Invalid, code="BAD_DURATION") as caught, bench.transaction() as tx:
        tenure.inbox.declare(tx, "ledger", **{"replay_window": timedelta(days=7), **wrong})
    assert re.search(said, str(caught.value))
    with bench.transaction() as tx:
        allowed = tenure.inbox.declare(tx, "ledger", replay_window=TEN_YEARS, retention=2 * TEN_YEARS)
    assert (allowed.replay_window, allowed.retention) == (TEN_YEARS, 2 * TEN_YEARS)


def test_nothing_is_forgotten_within_the_replay_window(bench: Bench) -> None:
    with refused(bench, NotFound):
        bench.service.prune_inbox("ledger")
    receive(bench, replay_window=timedelta(days=3))
    receive(bench, replace(EVENT, tenant="rival"), "d-1")
    bench.advance(days=2)
    receive(bench, delivery="d-2")
    bench.advance(days=3)
    with refused(bench, Refused, code="REPLAY_WINDOW") as caught:
        bench.service.prune_inbox("ledger", older_than=timedelta(days=2))
    assert "3 days" in str(caught.value)
    assert "2 days" in str(caught.value)
    # What came again counts from when it did.
    assert bench.service.prune_inbox("ledger", older_than=timedelta(days=4)) == 1
    assert [row["tenant"] for row in bench.dump()["inbox"]] == ["acme"]
    assert bench.service.prune_inbox("ledger", older_than=timedelta(days=3)) == 1
    assert bench.dump()["inbox_delivery"] == []
    assert receive(bench, delivery="d-3").new


def test_a_consumer_without_an_age_is_pruned_by_its_retention(bench: Bench) -> None:
    receive(bench, replay_window=timedelta(days=3))
    bench.advance(days=6)
    assert bench.bound(tenant="rival").prune_inbox("ledger") == 0
    assert bench.service.prune_inbox("ledger") == 1
