"""What a user's own tests are given: a clock to move and a provider to script."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import tenure.testing
from tenure.connectors.provider import IdempotencyKey, lookup_bounded, send_bounded, terms
from tenure.connectors.simulator import ProviderSimulator as RealSimulator
from tenure.errors import Invalid
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.testing import FakeProvider, ManualClock, Step

START = datetime(2030, 1, 1, tzinfo=UTC)
AMPLE = timedelta(seconds=20)
KEY = "send_quote:0198:send"


def send(provider: FakeProvider, request: Any = None, key: str = KEY) -> Outcome:
    return asyncio.run(send_bounded(provider, {} if request is None else request, key, AMPLE))


# --- the clock --------------------------------------------------------------------------------------------------------


def test_a_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(START)
    assert clock.now() == clock.now() == START
    assert clock.advance(timedelta(seconds=60)) == START + timedelta(seconds=60)
    assert clock.advance(timedelta(0)) == clock.now() == START + timedelta(seconds=60)
    assert repr(clock) == "<ManualClock 2030-01-01T00:01:00+00:00>"


def test_a_clock_gives_utc_whatever_zone_it_started_in() -> None:
    clock = ManualClock(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == START
    assert clock.now().tzinfo is UTC


@pytest.mark.parametrize("start", [datetime(2030, 1, 1), "2030-01-01", 0, None])  # noqa: DTZ001 - the naive one is the point
def test_a_clock_refuses_what_is_no_instant(start: Any) -> None:
    with pytest.raises(Invalid):
        ManualClock(start)


@pytest.mark.parametrize("step", [timedelta(microseconds=-1), timedelta.max, 60, None])
def test_a_clock_refuses_a_step_it_cannot_make_and_stays_where_it_is(step: Any) -> None:
    clock = ManualClock(START)
    with pytest.raises(Invalid):
        clock.advance(step)
    assert clock.now() == START


def test_no_step_of_many_threads_is_lost() -> None:
    clock = ManualClock(START)
    seen: list[datetime] = []

    def move() -> None:
        for _ in range(2000):
            clock.advance(timedelta(microseconds=1))
            seen.append(clock.now())

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == START + timedelta(microseconds=8000)
    assert len(seen) == 8000


# --- the fake provider ------------------------------------------------------------------------------------------------


def test_it_ends_as_scripted_and_then_succeeds() -> None:
    script: list[Any] = [
        FailedBeforeDispatch("down", timedelta(seconds=3)),
        Rejected("no"),
        Unknown("lost"),
        ValueError("x"),
    ]
    fake = FakeProvider(script=script, idempotency=None)
    ends = [send(fake, key=f"k:{number}") for number in range(5)]
    assert ends[:3] == script[:3]
    assert ends[3] == Unknown("fake: send raised ValueError")
    assert isinstance(ends[4], Succeeded)
    assert [act.action for act in fake.ledger] == ["nothing", "refused", "accepted", "accepted", "accepted"]


def test_an_unknown_has_acted_unless_the_script_says_it_was_lost_on_its_way() -> None:
    fake = FakeProvider(
        script=[Unknown("no reply"), Step(Unknown("no reply"), acts=False), Step(OSError(), acts=False)]
    )
    for key in ("acted", "lost", "failed"):
        assert isinstance(send(fake, key=key), Unknown)
    lookups = [asyncio.run(lookup_bounded(fake, key, AMPLE)) for key in ("acted", "lost", "failed")]
    assert [type(found) for found in lookups] == [Accepted, Absent, Absent]


def test_one_key_is_one_act_and_one_receipt() -> None:
    fake = FakeProvider(script=[Succeeded({"id": "r-1"})])
    assert send(fake) == send(fake) == Succeeded({"id": "r-1"})
    assert asyncio.run(lookup_bounded(fake, KEY, AMPLE)) == Accepted({"id": "r-1"})
    assert [act.action for act in fake.ledger] == ["accepted", "replayed"]
    assert (len(fake.effects()), len(fake.effects(KEY)), fake.effects("other"), fake.duplicates()) == (1, 1, [], [])


def test_a_key_bound_to_its_request_refuses_another_one() -> None:
    fake = FakeProvider()
    first = send(fake, {"amount": 10})
    assert isinstance(send(fake, {"amount": 20}), Rejected)
    assert send(fake, {"amount": 10}) == first
    free = FakeProvider(idempotency=IdempotencyKey(timedelta(hours=1)))
    assert send(free, {"amount": 10}) == send(free, {"amount": 20})


def test_a_request_that_no_provider_could_send_is_rejected_as_the_real_ones_do() -> None:
    fake = FakeProvider()
    assert isinstance(send(fake, {"tags": {"a"}}), Rejected)
    assert fake.ledger == []
    assert isinstance(send(fake, {"tags": ["a"]}), Succeeded)


def test_without_keys_the_second_send_is_a_duplicate() -> None:
    fake = FakeProvider(idempotency=None)
    assert send(fake) != send(fake)
    assert fake.duplicates() == [KEY]
    assert len(fake.effects(KEY)) == 2


def test_the_lookup_reads_the_ledger_after_its_script() -> None:
    fake = FakeProvider(script=[Rejected("no")], lookups=[NoAnswer("busy"), Absent()])
    send(fake)
    found = [asyncio.run(lookup_bounded(fake, KEY, AMPLE)) for _ in range(3)]
    assert found == [NoAnswer("busy"), Absent(), Declined("refused")]
    assert asyncio.run(lookup_bounded(fake, "never", AMPLE)) == Absent()


def test_it_declares_what_it_is_told_to() -> None:
    full, bare = terms(FakeProvider("a")), terms(FakeProvider("b", lookup=False, idempotency=None))
    assert (full.honours_key, full.lookup_complete, full.binds_payload) == (True, True, True)
    assert (bare.honours_key, bare.lookup_complete) == (False, False)
    assert not FakeProvider(lookup=False).has_lookup
    assert FakeProvider(lookup_complete=False).has_lookup
    assert not terms(FakeProvider(lookup_complete=False)).lookup_complete
    with pytest.raises(Invalid, match="has no look-up"):
        FakeProvider(lookup=False, lookup_complete=True)


@pytest.mark.parametrize(
    "ending, acts",
    [(Succeeded(), False), (Rejected("no"), True), (FailedBeforeDispatch("no"), True), ("ok", None), (Absent(), None)],
)
def test_a_step_that_lies_is_refused(ending: Any, acts: bool | None) -> None:
    with pytest.raises(Invalid):
        Step(ending, acts=acts)
    with pytest.raises(Invalid):
        FakeProvider(script=[Step(ending, acts=acts)])
    assert Step(Succeeded(), acts=True).changes_the_world


def test_a_script_can_be_continued() -> None:
    fake = FakeProvider()
    send(fake, key="k:1")
    fake.then(Rejected("now"))
    assert send(fake, key="k:2") == Rejected("now")
    assert isinstance(send(fake, key="k:3"), Succeeded)


def test_the_simulator_is_the_connectors_own() -> None:
    assert tenure.testing.ProviderSimulator is RealSimulator
