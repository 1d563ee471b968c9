"""When a destination counts as not working, and what becomes of what it was handed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tenure.loops.circuit import PAUSE_FIRST, PAUSE_MAX, PROMOTED, WAIT_MIN, Circuit
from tenure.rules.message import Deferred, Delivered, Refused
from tenure.rules.outage import blame
from tenure.rules.outbox import Answer, Paused, Together

ONE, TWO, THREE, FOUR = (UUID(int=nth) for nth in range(1, 5))
LATER, UNREACHED, ALL = Deferred("HTTP 500"), Deferred("nobody is there", outage=True), Together("it failed")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def claims(circuit: Circuit) -> int:
    with circuit.turn(100) as limit:
        return limit


def opened(clock: Clock) -> Circuit:
    circuit = Circuit("out", clock=clock)
    circuit.judge([ONE], [UNREACHED])
    return circuit


def test_an_outage_that_the_destination_tells_costs_nothing_at_all() -> None:
    circuit = Circuit("out")
    assert circuit.judge([ONE, TWO], [UNREACHED, UNREACHED]) == [Paused("nobody is there")] * 2
    assert claims(circuit) == 0
    assert "nobody is there" in (circuit.trouble or "")


def test_one_message_that_fails_is_to_blame_itself_however_often() -> None:
    circuit = Circuit("out")
    for _ in range(20):
        assert circuit.judge([ONE], [LATER]) == [LATER]
    assert claims(circuit) == 100
    assert circuit.trouble is None


def test_three_messages_that_fail_each_for_itself_are_an_outage() -> None:
    circuit = Circuit("out")
    assert circuit.judge([ONE, TWO], [LATER, LATER]) == [LATER, LATER], "control: two are not enough"
    assert circuit.judge([THREE], [LATER]) == [Paused("HTTP 500", timedelta(seconds=WAIT_MIN))]
    assert claims(circuit) == 0


def test_a_delivery_between_them_says_that_it_was_none() -> None:
    for sign in (Delivered(), Refused("never")):
        circuit = Circuit("out")
        circuit.judge([ONE, TWO], [LATER, LATER])
        assert circuit.judge([THREE, FOUR], [LATER, sign]) == [LATER, sign]
        assert claims(circuit) == 100


def test_calls_that_fail_as_a_whole_count_once_until_others_fail_without_them() -> None:
    circuit = Circuit("out")
    every = [UUID(int=nth) for nth in range(100)]
    assert circuit.judge(every, [ALL] * 100) == [ALL] * 100
    assert circuit.judge(every[:10], [ALL] * 10) == [ALL] * 10, "the poison is among these ten"
    assert circuit.judge(every[:1], [LATER]) == [LATER], "and this is it"
    assert circuit.judge(every[10:20], [ALL] * 10) == [ALL] * 10
    assert {type(one) for one in circuit.judge(every[20:30], [ALL] * 10)} == {Paused}, "one cannot be in all of them"


def test_a_failure_within_a_known_one_narrows_it() -> None:
    pair, one, other = frozenset({ONE, TWO}), frozenset({ONE}), frozenset({TWO})
    known = blame((), [ONE, TWO], [ALL, ALL])
    assert known == (pair,)
    assert blame(known, [ONE], [LATER]) == (one,)
    assert blame((one,), [TWO], [LATER]) == (one, other)
    assert blame((one,), [ONE, TWO], [ALL, ALL]) == (one,), "it says nothing new"


def test_it_is_tried_with_one_message_by_one_lane_at_a_time() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now += PAUSE_FIRST
    with circuit.turn(100) as limit, circuit.turn(100) as beside:
        assert (limit, beside) == (1, 0)
    assert claims(circuit) == 1, "control: nothing was found, so that the next one may try"


def test_pauses_grow_up_to_a_limit_and_end_with_a_delivery() -> None:
    clock = Clock()
    circuit = opened(clock)
    longest = 0.0
    for _ in range(12):
        began = clock.now
        while not claims(circuit):
            clock.now += 0.05
        circuit.judge([ONE], [UNREACHED])
        assert clock.now - began <= PAUSE_MAX + 0.1
        assert clock.now - began >= min(longest / 2, PAUSE_MAX / 2)
        longest = max(longest, clock.now - began)
    assert longest > PAUSE_MAX / 2
    circuit.judge([ONE], [Delivered()])
    assert claims(circuit) == 100
    assert circuit.trouble is None
    circuit.judge([ONE], [UNREACHED])
    clock.now += PAUSE_FIRST
    assert claims(circuit) == 1, "the next outage begins with the first pause"


def test_an_outage_with_nothing_waiting_is_a_note_and_no_trouble() -> None:
    clock = Clock()
    circuit = opened(clock)
    circuit.nothing_due()
    assert circuit.trouble is not None, "what was put back is due again only when it was promoted"
    clock.now += 340
    assert (claims(circuit), circuit.note) == (1, None)
    circuit.nothing_due()
    assert circuit.trouble is None
    assert "last tried, 340 s ago; nothing waits for it" in (circuit.note or "")
    assert claims(circuit) == 1, "the next message tries it, and goes alone"
    circuit.judge([ONE], [UNREACHED])
    assert (circuit.note, "since 340 s" in (circuit.trouble or "")) == (None, True)
    circuit.judge([ONE], [Delivered()])
    circuit.nothing_due()
    assert (circuit.note, circuit.trouble, claims(circuit)) == (None, None, 100), "the control: it works"


def test_an_outage_is_a_trouble_for_as_long_as_something_that_was_put_off_comes_back() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now += 60
    (answer,) = circuit.judge([ONE], [LATER])
    assert answer == Paused("HTTP 500", timedelta(seconds=60))
    clock.now += 60
    circuit.nothing_due()
    assert circuit.trouble is not None
    clock.now += PROMOTED + 1
    circuit.nothing_due()
    assert circuit.trouble is None


def test_messages_that_may_be_to_blame_make_room_for_others_the_longer_it_lasts() -> None:
    clock = Clock()
    circuit = opened(clock)
    waits = []
    for _ in range(5):
        clock.now += 60
        (answer,) = circuit.judge([ONE], [LATER])
        assert isinstance(answer, Paused)
        waits.append(answer.wait.total_seconds())
    assert waits == [60, 120, 180, 240, 300]
    clock.now += 10_000
    assert circuit.judge([ONE], [LATER]) == [Paused("HTTP 500", timedelta(minutes=10))]


def test_a_wish_to_be_left_alone_is_heard_within_reason() -> None:
    clock = Clock()
    for wish, heard in ((timedelta(seconds=90), 90), (timedelta(days=3), 600)):
        circuit = Circuit("out", clock=clock)
        answers: Sequence[Answer] = [Deferred("HTTP 503", wish)] * 3
        expected = Paused("HTTP 503", timedelta(seconds=heard))
        assert circuit.judge([ONE, TWO, THREE], answers) == [expected] * 3
        clock.now += heard - 1
        assert claims(circuit) == 0
        clock.now += 1
        assert claims(circuit) == 1
