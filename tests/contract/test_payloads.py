"""Hostile values and foreign rows: they come back as they were, or stop nobody but themselves."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.digest import payload_digest
from tenure.rules.outcome import Succeeded
from tenure.rules.payload import encode
from tests.contract.bench import Bench
from tests.contract.build import KIND, MAILER, RECEIPT, claim, create
from tests.rules.corpus import ACCEPTED, MENDED, REFUSED_TEXTS, same
from tests.rules.values import json_values

THROUGH_THE_FUNCTION = True

# The payload is an object around the value, so the deepest ones do not fit; they are held to their own limit elsewhere.
FITTING = {name: make for name, make in ACCEPTED.items() if "at_the_limit" not in name or "digits" in name}


def test_every_accepted_value_travels_unchanged(bench: Bench) -> None:
    """Create, read, claim, effect, receipt, result, event: the same bytes on both databases."""
    sent = {name: make() for name, make in FITTING.items()} | {name: make()[0] for name, make in MENDED.items()}
    back = {name: make() for name, make in FITTING.items()} | {name: make()[1] for name, make in MENDED.items()}
    assert len(sent) > 90
    check_travel(bench, sent, back)
    small = {name: value for name, value in sent.items() if len(encode(value)) < 300}
    assert len(small) > 70
    check_travel(bench, small, {name: back[name] for name in small})


@given(values=st.lists(json_values, min_size=1, max_size=8))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_generated_values_travel_unchanged(bench: Bench, values: list[Any]) -> None:
    named = {str(nth): value for nth, value in enumerate(values)}
    check_travel(bench, named, named)


def check_same(found: dict[str, Any], back: dict[str, Any]) -> None:
    assert [name for name in back if not same(found[name], back[name])] == []
    assert list(found) == list(back)


def check_travel(bench: Bench, sent: dict[str, Any], back: dict[str, Any]) -> None:
    bench.reset()
    made = create(bench.service, payload={"v": sent})
    ((stored, digest),) = bench.sql("SELECT CAST(payload AS text), payload_digest FROM $job WHERE job_id = ?", made.id)
    envelope = made.payload["execution"]
    assert stored == encode({"v": back, "execution": envelope})
    assert digest == payload_digest(KIND, {"v": back})
    check_same(bench.service.get_job(made.id).payload["v"], back)
    taken = claim(bench.service, start=True)
    check_same(taken.job.payload["v"], back)
    begun = bench.service.begin_effect(taken.lease, name="send", request=sent, provider=MAILER)
    bench.service.finish_effect(taken.lease, name="send", outcome=Succeeded(sent))
    check_same(bench.service.list_effects(made.id)[0].receipt, back)
    again = bench.service.begin_effect(taken.lease, name="send", request=back, provider=MAILER)
    assert again.request_digest == begun.request_digest
    if len(stored.encode()) < 16_000:
        bench.service.append_job_event(made.id, "admission_checked", {"v": sent})
        check_same(bench.service.list_job_events(made.id)[-1].data["v"], back)
    bench.service.complete_job(taken.lease, result=sent)
    check_same(bench.service.get_job(made.id).result, back)


# --- rows of another hand ---------------------------------------------------------------------------------------------

# A document column of PostgreSQL takes only what its own parser takes; these it takes as well.
BOTH_TAKE = {
    "a list": "[]",
    "a number": "7",
    "nothing": "null",
    "text": '"x"',
    "too deep": "[" * 150 + "]" * 150,
    "a repeated key": '{"a": 1, "a": 2}',
    "half a character": '{"t": "\\ud83d"}',
    "a NUL": '{"t": "a\\u0000b"}',
    "beyond every float": '{"v": 1E400}',
    "an endless integer": '{"n": ' + "9" * 5000 + "}",
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH_TAKE)
def test_a_payload_that_cannot_be_read_stops_nobody_else(bench: Bench, name: str) -> None:
    create(bench.service, "k-0", priority=9)
    bad = create(bench.service, "k-1", priority=5)
    create(bench.service, "k-2")
    bench.sql("UPDATE $job SET payload = ? WHERE job_id = ?", BOTH_TAKE[name], bad.id)
    read = bench.service.get_job(bad.id)
    assert (read.payload, read.unreadable is not None, read.status) == ({}, True, "queued")
    assert len(bench.service.list_jobs(tenant="acme")) == 3
    taken = bench.service.claim_jobs("A", limit=5, start=True)
    assert [one.job.idempotency_key for one in taken] == ["k-0", "k-1", "k-2"]
    spoilt = taken[1]
    assert spoilt.job.unreadable is not None
    # Its holder can end it like any other.
    done = bench.service.fail_job(spoilt.lease, code="UNREADABLE_PAYLOAD", message="see the row", retryable=False)
    assert (done.status, done.attempt_count) == ("failed", 1)
    for one in (taken[0], taken[2]):
        assert bench.service.complete_job(one.lease, result=None).status == "completed"


@pytest.mark.parametrize("name", sorted(name for name, (text, _, _) in REFUSED_TEXTS.items() if isinstance(text, str)))
def test_whatever_stands_in_the_payload_column_only_its_own_job_suffers(sqlite_bench: Bench, name: str) -> None:
    bench = sqlite_bench
    text = REFUSED_TEXTS[name][0]
    assert isinstance(text, str)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
    bad = create(bench.service, "k-1", priority=5)
    create(bench.service, "k-2")
    bench.sql("UPDATE $job SET payload = ? WHERE job_id = ?", text.replace("\0", ""), bad.id)
    taken = bench.service.claim_jobs("A", limit=5, start=True)
    assert [one.job.idempotency_key for one in taken] == ["k-1", "k-2"]
    assert bench.service.complete_job(taken[1].lease, result=None).status == "completed"
    bench.service.get_job(bad.id)


def test_a_row_that_looks_like_code_is_data(bench: Bench, tmp_path: Path) -> None:
    """Nothing is imported or called by a name that stands in the store."""
    trap = tmp_path / "sprung"
    hostile = {
        "__type__": "os.system",
        "__reduce__": ["os.system", [f"touch {trap}"]],
        "py/object": "os.system",
        "args": [f"touch {trap}"],
        "$ref": "#",
        "exception": "os:system",
    }
    bad = create(bench.service, payload=hostile)
    taken = claim(bench.service, start=True)
    begun = bench.service.begin_effect(taken.lease, name="send", request=hostile, provider=MAILER)
    assert begun.is_open
    bench.service.finish_effect(taken.lease, name="send", outcome=Succeeded(hostile))
    bench.service.append_job_event(bad.id, "admission_checked", hostile)
    bench.service.fail_job(taken.lease, code="os:system", message=json.dumps(hostile), retryable=False)
    bench.service.retry_job(bad.id, actor="os:system")
    again = claim(bench.service, start=True)
    done = bench.service.complete_job(again.lease, result=hostile)
    assert done.result == hostile
    assert {key: value for key, value in done.payload.items() if key != "execution"} == hostile
    assert bench.service.list_effects(bad.id)[0].receipt == hostile
    assert not os.path.lexists(trap)


def test_a_pickled_payload_is_never_unpickled(sqlite_bench: Bench, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {trap}",))

    bench = sqlite_bench
    bad = create(bench.service)
    bench.sql("UPDATE $job SET payload = ? WHERE job_id = ?", pickle.dumps(Trap(), 0).decode("latin-1"), bad.id)
    taken = claim(bench.service, start=True)
    assert taken.job.unreadable is not None
    assert bench.service.get_job(bad.id).payload == {}
    bench.service.fail_job(taken.lease, code="E", message="m", retryable=False)
    assert not trap.exists()


def test_big_numbers_keep_their_digits_and_ids_are_safe_for_every_reader(bench: Bench) -> None:
    payload = {"id": 9007199254740993, "n": 9223372036854775808}
    made = create(bench.service, payload=payload)
    taken = claim(bench.service)
    assert {key: taken.job.payload[key] for key in payload} == payload
    assert taken.job.generation < 2**53
    assert isinstance(str(made.id), str)


def test_a_second_reader_sees_equal_but_separate_values(bench: Bench) -> None:
    """What a caller does to a record it was given must not reach the next reader."""
    made = create(bench.service, payload={"l": [1]})
    first = bench.service.get_job(made.id)
    first.payload["l"].append(2)
    assert bench.service.get_job(made.id).payload["l"] == [1]
    taken = claim(bench.service, start=True)
    bench.service.begin_effect(taken.lease, name="send", request={"l": [1]}, provider=MAILER)
    bench.service.finish_effect(taken.lease, name="send", outcome=Succeeded(RECEIPT))
    bench.service.list_effects(made.id)[0].receipt["id"] = "changed"
    assert bench.service.list_effects(made.id)[0].receipt == RECEIPT


def test_a_caller_that_changes_its_payload_afterwards_changes_nothing(bench: Bench) -> None:
    payload: dict[str, Any] = {"l": [1]}
    made = create(bench.service, payload=payload, execution=None)
    payload["l"].append(2)
    assert bench.service.get_job(made.id).payload == {"l": [1]}
    again = bench.service.create_job(
        organization="acme", project="p1", idempotency_key="k-1", kind=KIND, payload={"l": [1]}
    )
    assert not again.created
    with pytest.raises(Invalid):
        create(bench.service, "k-2", payload={"l": {1}})
