"""The simulator keeps its promises, goes wrong exactly when asked, and writes down what really happened."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.connectors.simulator import (
    Entry,
    Fault,
    ProviderSimulator,
    Simulator,
    duplicates,
    read_ledger,
)
from tenure.connectors.simulator.faults import LOOKUP_FAULTS, SEND_FAULTS
from tenure.errors import Invalid
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)
from tenure.testing import ManualClock

KEY = "send_quote:0198:send"


def send(simulator: Simulator, key: str = KEY, request: Any = None, **settings: Any) -> Outcome:
    return asyncio.run(simulator.provider(**settings).send({"quote": 17} if request is None else request, key))


def look_up(simulator: Simulator, key: str = KEY, **settings: Any) -> Evidence:
    return asyncio.run(simulator.provider(**settings).lookup(key))


def actions(simulator: Simulator) -> list[str]:
    return [entry.action for entry in simulator.entries()]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "effects.jsonl"


# --- promises ---------------------------------------------------------------------------------------------------------


def test_one_key_is_one_effect_and_one_receipt(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        first, again, found = send(simulator), send(simulator), look_up(simulator)
        assert isinstance(first, Succeeded)
        assert again == first
        assert found == Accepted(first.receipt)
        assert actions(simulator) == ["accepted", "replayed", "looked_up"]
        assert [act.effect_id for act in simulator.effects()[KEY]] == [first.receipt["body"]["effect_id"]]
        assert simulator.duplicates() == {}
        other = send(simulator, "send_quote:0199:send")
        assert isinstance(other, Succeeded)
        assert other.receipt != first.receipt


def test_a_key_is_bound_to_its_payload(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        first = send(simulator, request={"amount": 10})
        assert send(simulator, request={"amount": 20}) == Rejected("HTTP 422")
        assert look_up(simulator) == Accepted(getattr(first, "receipt", None))
        assert len(simulator.effects()[KEY]) == 1


def test_a_key_that_binds_nothing_answers_with_the_first_result(ledger: Path) -> None:
    with ProviderSimulator(ledger, binds_payload=False) as simulator:
        assert send(simulator, request={"amount": 10}) == send(simulator, request={"amount": 20})
        assert len(simulator.effects()[KEY]) == 1


def test_without_keys_every_request_is_an_effect_and_the_second_a_duplicate(ledger: Path) -> None:
    with ProviderSimulator(ledger, idempotency_keys=False) as simulator:
        assert simulator.provider().idempotency is None
        first, second = send(simulator), send(simulator)
        assert first != second
        assert [act.duplicate for act in simulator.effects()[KEY]] == [False, True]
        assert list(duplicates(ledger)) == [KEY]
        assert simulator.state()["duplicates"] == 1


@pytest.mark.parametrize("scope, effects", [("account", 2), ("global", 1)])
def test_keys_are_unique_within_their_scope(ledger: Path, scope: str, effects: int) -> None:
    with ProviderSimulator(ledger, key_scope=scope) as simulator:
        send(simulator, account="acme")
        assert isinstance(look_up(simulator, account="zeta"), Absent if scope == "account" else Accepted)
        send(simulator, account="zeta")
        assert len(simulator.effects()[KEY]) == effects
        assert simulator.duplicates() == {}, "two accounts under one key are two operations"
        key = simulator.provider().idempotency
        assert key is not None
        assert key.scope == scope


def test_a_key_is_forgotten_after_its_retention_counted_from_the_first_request(ledger: Path) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    with ProviderSimulator(ledger, retention=timedelta(hours=24), clock=clock) as simulator:
        first = send(simulator)
        clock.advance(timedelta(hours=23))
        assert send(simulator) == first
        clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
        assert send(simulator) == first, "a replay renewed the key"
        clock.advance(timedelta(microseconds=1))
        second = send(simulator)
        assert isinstance(second, Succeeded)
        assert second != first
        assert list(simulator.duplicates()) == [KEY]
        assert send(simulator) == second


def test_a_request_without_a_key_is_done_each_time(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        for _ in range(2):
            connection = http.client.HTTPConnection(simulator.url.removeprefix("http://"), timeout=10)
            connection.request("POST", "/effects", b"{}")
            assert connection.getresponse().status == 200
            connection.close()
        assert len(simulator.effects()[""]) == 2
        assert simulator.duplicates() == {}, "nothing says that the two were meant to be one"


def test_requests_at_the_same_time_under_one_key_are_one_effect(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        barrier = threading.Barrier(12)

        def one(number: int) -> Outcome:
            barrier.wait(20)
            return send(simulator, key=f"k:{number % 2}")

        with ThreadPoolExecutor(12) as pool:
            outcomes = list(pool.map(one, range(12)))
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
        assert {key: len(acts) for key, acts in simulator.effects().items()} == {"k:0": 1, "k:1": 1}
        assert actions(simulator).count("replayed") == 10


def test_without_a_lookup_it_cannot_be_asked(ledger: Path) -> None:
    with ProviderSimulator(ledger, lookup=False) as simulator:
        send(simulator)
        assert not simulator.provider().has_lookup
        url = f"{simulator.url}/effects/{{operation_key}}"
        assert look_up(simulator, lookup_url=url, lookup_complete=False) == NoAnswer("HTTP 501")


def test_an_unfinished_lookup_says_so(ledger: Path) -> None:
    with ProviderSimulator(ledger, lookup_complete=False) as simulator:
        assert simulator.provider().has_lookup
        assert not simulator.provider().lookup_complete
    with ProviderSimulator(ledger) as simulator:
        assert simulator.provider().lookup_complete


# --- faults -----------------------------------------------------------------------------------------------------------

SEND_CASES: list[tuple[Fault, Outcome, Evidence | type, str]] = [
    (Fault(kind="drop_request"), Unknown("no whole answer (RemoteProtocolError)"), Absent(), "turned_away"),
    (Fault(kind="refuse"), Rejected("HTTP 400"), Declined("HTTP 422"), "refused"),
    (Fault(kind="refuse", status=402), Rejected("HTTP 402"), Declined("HTTP 422"), "refused"),
    (Fault(kind="refuse", status=401), Rejected("HTTP 401", "authentication"), Declined("HTTP 422"), "refused"),
    (Fault(kind="refuse", status=409), Unknown("HTTP 409"), Declined("HTTP 422"), "refused"),
    (
        Fault(kind="too_many", retry_after="7"),
        FailedBeforeDispatch("HTTP 429", timedelta(seconds=7)),
        Absent(),
        "turned_away",
    ),
    (Fault(kind="too_many"), FailedBeforeDispatch("HTTP 429"), Absent(), "turned_away"),
    (Fault(kind="error_before"), Unknown("HTTP 503"), Absent(), "turned_away"),
    (Fault(kind="error_before", status=500, body="CANARY"), Unknown("HTTP 500"), Absent(), "turned_away"),
    (Fault(kind="error_after"), Unknown("HTTP 500"), Accepted, "accepted"),
    (Fault(kind="error_after", status=502), Unknown("HTTP 502"), Accepted, "accepted"),
    (Fault(kind="drop_reply"), Unknown("no whole answer (RemoteProtocolError)"), Accepted, "accepted"),
]


@pytest.mark.parametrize("fault, outcome, evidence, action", SEND_CASES, ids=lambda value: repr(value)[:50])
def test_a_fault_hits_one_request_and_the_ledger_says_what_really_happened(
    ledger: Path, fault: Fault, outcome: Outcome, evidence: Evidence | type, action: str
) -> None:
    with ProviderSimulator(ledger) as simulator:
        simulator.queue(fault)
        assert send(simulator) == outcome
        found = look_up(simulator)
        assert isinstance(found, evidence) if isinstance(evidence, type) else found == evidence
        entry = simulator.entries()[0]
        assert (entry.action, entry.fault, bool(entry.effect_id)) == (action, fault.kind, action == "accepted")
        assert simulator.faults() == []
        # The control: the next one under the same key succeeds, and is done once in all.
        assert isinstance(send(simulator), Succeeded)
        assert len(simulator.effects()[KEY]) == 1
        assert simulator.state()["faults_hit"] == {fault.kind: 1}


LOOKUP_CASES: list[tuple[Fault, Evidence]] = [
    (Fault(kind="lookup_unknown"), Absent()),
    (Fault(kind="lookup_down"), NoAnswer("HTTP 503")),
    (Fault(kind="lookup_down", status=500), NoAnswer("HTTP 500")),
    (Fault(kind="lookup_declined"), Declined("HTTP 422")),
    (Fault(kind="lookup_drop"), NoAnswer("no whole answer (RemoteProtocolError)")),
]


@pytest.mark.parametrize("fault, evidence", LOOKUP_CASES, ids=lambda value: repr(value)[:50])
def test_a_lookup_goes_wrong_as_often_as_asked(ledger: Path, fault: Fault, evidence: Evidence) -> None:
    with ProviderSimulator(ledger) as simulator:
        first = send(simulator)
        assert isinstance(first, Succeeded)
        simulator.queue(Fault(kind=fault.kind, status=fault.status, times=3))
        assert [look_up(simulator) for _ in range(4)] == [evidence] * 3 + [Accepted(first.receipt)]
        assert send(simulator) == first, "a fault of the look-up touched a request"


def test_every_fault_has_its_case() -> None:
    tested = {case[0].kind for case in SEND_CASES} | {case[0].kind for case in LOOKUP_CASES}
    assert tested | {"hold_reply", "late_reply"} == set(SEND_FAULTS) | set(LOOKUP_FAULTS)


def test_faults_are_for_the_keys_they_name_in_the_order_they_came(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        simulator.fault("refuse", key="*:charge", status=402)
        simulator.fault("refuse", key="*:charge", status=403)
        simulator.fault("too_many", key="job-2:*", times=None, retry_after=5)
        assert isinstance(send(simulator, "job-1:send"), Succeeded)
        assert send(simulator, "job-1:charge") == Rejected("HTTP 402")
        assert [send(simulator, f"job-2:{n}") for n in range(3)] == [
            FailedBeforeDispatch("HTTP 429", timedelta(seconds=5))
        ] * 3
        assert send(simulator, "job-3:charge") == Rejected("HTTP 403", category="authentication")
        assert isinstance(send(simulator, "job-4:charge"), Succeeded)
        assert [fault.kind for fault in simulator.faults()] == ["too_many"]
        simulator.clear_faults()
        assert isinstance(send(simulator, "job-2:7"), Succeeded)


def test_a_reply_can_also_be_lost_on_a_replay(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        simulator.fault("drop_reply", times=2)
        assert [type(send(simulator)) for _ in range(3)] == [Unknown, Unknown, Succeeded]
        assert actions(simulator) == ["accepted", "replayed", "replayed"]


def test_a_held_reply_is_accepted_seen_and_released(ledger: Path) -> None:
    async def run(simulator: ProviderSimulator) -> Outcome:
        held = asyncio.create_task(simulator.provider().send({"quote": 17}, KEY))
        state = await asyncio.to_thread(simulator.wait_until, held=1)
        assert [(one["operation_key"], one["effect_id"]) for one in state["held"]] == [(KEY, "fx-1")]
        assert [entry.action for entry in read_ledger(ledger)] == ["accepted"], "it was not yet done when it was held"
        # Others are served meanwhile.
        assert isinstance(await simulator.provider().send({}, "other:1:send"), Succeeded)
        assert not held.done()
        assert await asyncio.to_thread(simulator.release, "nobody:*") == 0
        assert await asyncio.to_thread(simulator.release, "send_quote:*") == 1
        return await held

    with ProviderSimulator(ledger) as simulator:
        simulator.fault("hold_reply", key="send_quote:*")
        assert isinstance(asyncio.run(run(simulator)), Succeeded)
        assert simulator.wait_until(requests=2)["held"] == []


@pytest.mark.parametrize("kind", ["late_reply", "hold_reply"])
def test_a_reply_may_come_late_by_itself(ledger: Path, kind: str) -> None:
    with ProviderSimulator(ledger) as simulator:
        simulator.fault(kind, seconds=30)
        assert isinstance(send(simulator, timeout=timedelta(seconds=2)), Unknown)
        assert len(simulator.effects()[KEY]) == 1
        simulator.fault(kind, seconds=0.05)
        assert isinstance(send(simulator, "k:2"), Succeeded)


def test_stopping_lets_held_replies_go(ledger: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with ProviderSimulator(ledger) as simulator:
            simulator.fault("hold_reply")
            pending = pool.submit(send, simulator)
            simulator.wait_until(held=1)
        assert isinstance(pending.result(20), Succeeded | Unknown)


def test_a_wait_that_is_in_vain_says_what_there_is(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        with pytest.raises(TimeoutError, match="waited for 1 held"):
            simulator.wait_until(held=1, within=timedelta(milliseconds=50))
        send(simulator)
        assert simulator.wait_until(accepted=1, requests=1)["accepted"] == 1


@pytest.mark.parametrize(
    "given, text",
    [
        ({"kind": "explode"}, "no fault 'explode'"),
        ({"kind": "refuse", "status": 503}, "does not fit"),
        ({"kind": "error_after", "status": 200}, "does not fit"),
        ({"kind": "drop_reply", "status": 500}, "does not fit"),
        ({"kind": "too_many", "status": 500}, "does not fit"),
        ({"kind": "refuse", "times": 0}, "times is 1 or more"),
        ({"kind": "late_reply"}, "needs seconds"),
        ({"kind": "hold_reply", "seconds": -1}, "seconds is zero or more"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(ledger: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Fault(**given)
    with ProviderSimulator(ledger) as simulator:
        assert control(simulator, "POST", "/_faults", given)[0] == 400
        assert simulator.faults() == []
        assert control(simulator, "POST", "/_faults", [{"kind": "refuse"}, {"kind": "drop_reply"}])[0] == 200
        assert [fault.kind for fault in simulator.faults()] == ["refuse", "drop_reply"]


def control(simulator: Simulator, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(simulator.url.removeprefix("http://"), timeout=20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, content)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("POST", "/_faults", b"not JSON", 400),
        ("POST", "/_faults", {"kind": "refuse", "colour": "red"}, 400),
        ("POST", "/_faults", {"kind": "refuse", "times": "many"}, 400),
        ("POST", "/_faults", "refuse", 400),
        ("POST", "/_release", {"key": 7}, 400),
        ("POST", "/_release", {}, 200),
        ("GET", "/_state?held=x", None, 400),
        ("GET", "/_state?colour=red", None, 400),
        ("GET", "/_state", None, 200),
        ("GET", "/elsewhere", None, 404),
        ("POST", "/elsewhere", None, 404),
        ("DELETE", "/elsewhere", None, 404),
        ("POST", "/effects", b"x" * ((1 << 20) + 1), 413),
    ],
)
def test_the_control_addresses_answer_nonsense_with_a_status(
    ledger: Path, method: str, path: str, body: Any, status: int
) -> None:
    with ProviderSimulator(ledger) as simulator:
        assert control(simulator, method, path, body)[0] == status
        assert simulator.effects() == {}


def test_a_client_that_breaks_off_while_it_sends_asked_for_nothing(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        port = int(simulator.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /effects HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
        assert simulator.entries() == []


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_a_ledger_outlives_its_simulator(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        first = send(simulator)
        simulator.fault("refuse", key="refused:*")
        send(simulator, "refused:1")
    with ProviderSimulator(ledger) as simulator:
        assert send(simulator) == first
        assert look_up(simulator, "refused:1") == Declined("HTTP 422")
        assert [entry.seq for entry in simulator.entries()] == [1, 2, 3, 4]
        assert len(simulator.effects()[KEY]) == 1


def test_a_half_written_line_is_left_out_and_removed(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        send(simulator)
    whole = ledger.read_bytes()
    for cut in range(1, len(whole)):
        ledger.write_bytes(whole + whole[:cut])
        assert len(read_ledger(ledger)) == 1
    with ProviderSimulator(ledger) as simulator:
        assert isinstance(send(simulator, "k:2"), Succeeded)
    assert [entry.seq for entry in read_ledger(ledger)] == [1, 2]
    assert ledger.read_bytes().startswith(whole)


def test_two_simulators_never_share_a_ledger(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        with pytest.raises(Invalid, match="another simulator writes"):
            ProviderSimulator(ledger).start()
        with pytest.raises(Invalid, match="running already"):
            simulator.start()
    with ProviderSimulator(ledger) as simulator:
        assert isinstance(send(simulator), Succeeded)
    simulator.stop()


def test_the_ledger_holds_digests_and_no_payload(ledger: Path) -> None:
    with ProviderSimulator(ledger) as simulator:
        send(simulator, request={"card": "CANARY"})
        send(simulator, "k:2", request={"card": "CANARY"})
        first, second = simulator.entries()
    assert first.payload_digest == second.payload_digest
    assert len(first.payload_digest) == 64
    assert "CANARY" not in ledger.read_text()


def test_every_answer_is_in_the_ledger_before_it_is_given(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        synced.append(ledger.read_bytes().count(b"\n"))

    monkeypatch.setattr("tenure.connectors.simulator.ledger.os.fsync", fsync)
    with ProviderSimulator(ledger) as simulator:
        for number in range(3):
            send(simulator, f"k:{number}")
            assert synced[-1] == number + 1


def test_duplicates_are_counted_per_account(ledger: Path) -> None:
    def act(seq: int, account: str, key: str, action: str = "accepted") -> Entry:
        return Entry(seq=seq, at="2030-01-01T00:00:00+00:00", action=action, account=account, operation_key=key)

    def found(*entries: Entry) -> list[str]:
        lines = [json.dumps({name: getattr(entry, name) for name in Entry.__slots__}) + "\n" for entry in entries]
        ledger.write_text("".join(lines))
        return list(duplicates(ledger))

    assert found(act(1, "acme", "k"), act(2, "zeta", "k")) == []
    assert found(act(1, "acme", "k"), act(2, "acme", "k", "replayed"), act(3, "acme", "k", "refused")) == []
    assert found(act(1, "acme", ""), act(2, "acme", "")) == []
    assert found(act(1, "acme", "k"), act(2, "zeta", "k"), act(3, "acme", "k")) == ["k"]


@pytest.mark.parametrize("wrong", [{"key_scope": "planet"}, {"retention": timedelta(0)}])
def test_wrong_promises_are_refused(ledger: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ProviderSimulator(ledger, **wrong)
    ProviderSimulator(ledger)
