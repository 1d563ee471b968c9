"""Fair queues: tenants take turns, nobody waits for ever, nothing is lost when a queue is switched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import Invalid, Refused
from tenure.procedures import claim as claiming
from tenure.procedures import upkeep
from tenure.procedures.claim import Claim
from tenure.procedures.claim_batch import Claimed, Cursor, Turns, claim_batch
from tenure.procedures.upkeep import LANES_MAX
from tenure.rules.fairness import LONG_TURN, QueueSetting, Turn, after
from tenure.yields import Last, Procedure, Script, Statement, procedure
from tests.contract.bench import START, Bench
from tests.contract.build import KIND, PAYLOAD, claim
from tests.contract.refusal import refused

THROUGH_THE_FUNCTION = True
BLOCKING_ALONE = True

FAIR, PLAIN = "fair", "plain"


def fill(bench: Bench, jobs: Iterable[tuple[str, str]], queue: str = FAIR, **fields: Any) -> None:
    """Create jobs, each of a tenant under a key, in this order."""
    bench.service.create_jobs(
        [
            {
                "organization": "acme",
                "project": "p1",
                "idempotency_key": key,
                "kind": KIND,
                "payload": PAYLOAD,
                "tenant": tenant,
                "queue": queue,
                **fields,
            }
            for tenant, key in jobs
        ]
    )


def many(tenant: str, count: int, name: str = "") -> list[tuple[str, str]]:
    return [(tenant, f"{tenant}{name}-{nth:04}") for nth in range(count)]


class Worker:
    """A worker's claims, one after the other, with all that a worker remembers."""

    def __init__(self, bench: Bench, *, kinds: tuple[str, ...] = (KIND,), **scope: Any) -> None:
        self.bench = bench
        self.kinds = kinds
        self.scope = scope
        self.cursor: Cursor | None = None
        self.turns: Turns = {}

    def take(self, limit: int) -> list[Claim | Claimed]:
        taken = self.bench.run(
            claim_batch("A", self.kinds, limit=limit, cursor=self.cursor, turns=self.turns, **self.scope)
        )
        self.cursor, self.turns = taken.cursor, taken.turns
        return taken.claims

    def drain(self, limit: int, most: int = 1000) -> list[Claim | Claimed]:
        """Take until twice nothing came."""
        found: list[Claim | Claimed] = []
        empty = 0
        while empty < 2:
            assert len(found) <= most, "more than there is"
            taken = self.take(limit)
            found += taken
            empty = 0 if taken else empty + 1
        return found


def keys(claims: list[Claim | Claimed] | list[Claim], tenant: str | None = None) -> list[str]:
    return [one.job.idempotency_key for one in claims if tenant in {None, one.job.tenant}]


def lanes(bench: Bench, queue: str = FAIR) -> Counter[str]:
    return Counter(row["lane"] for row in bench.dump()["ready"] if row["queue"] == queue)


# --- the setting ------------------------------------------------------------------------------------------------------


def test_a_queue_is_plain_until_somebody_makes_it_fair(bench: Bench) -> None:
    assert bench.service.list_queues() == []
    fill(bench, [("acme", "k-1")])
    said = bench.service.set_queue(FAIR, fair=True, weights={"north": 3, "acme": 2})
    assert said == QueueSetting(FAIR, True, {"acme": 2, "north": 3})
    bench.service.set_queue("other", fair=False)
    assert bench.service.list_queues() == [said, QueueSetting("other", False, {})]
    fill(bench, [("acme", "k-2"), ("north", "k-3")])
    fill(bench, [("acme", "k-4")], queue=PLAIN)
    assert lanes(bench) == {"": 1, "acme": 1, "north": 1}
    assert lanes(bench, queue=PLAIN) == {"": 1}
    # What was said before is forgotten.
    assert bench.service.set_queue(FAIR, fair=True) == QueueSetting(FAIR, True, {})
    assert bench.dump()["queue_weight"] == []
    bench.service.set_queue(FAIR, fair=False)
    fill(bench, [("acme", "k-5")])
    assert lanes(bench) == {"": 2, "acme": 1, "north": 1}


def test_what_cannot_be_a_setting_is_refused_and_nothing_is_written(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True, weights={"acme": 3})
    good: dict[str, Any] = {"name": FAIR, "fair": True, "weights": {"acme": 4}}
    bad: list[dict[str, Any]] = [
        {"name": ""}, {"name": None}, {"name": "a\0"}, {"fair": "yes"}, {"fair": False}, {"weights": {"acme": 101}},
        {"weights": {"acme": 0}}, {"weights": {"acme": "3"}}, {"weights": {3: 3}}, {"weights": ["acme"]},
    ]  # fmt: skip
    for wrong in bad:
        given = {**good, **wrong}
        with refused(bench, Invalid, code="BAD_ARGUMENT"):
            bench.service.set_queue(given.pop("name"), **given)
    with refused(bench, Refused, code="TENANT_BOUND") as refusal:
        bench.bound("acme").set_queue(FAIR, fair=False)
    assert "acme" in str(refusal.value)
    given = dict(good)
    assert bench.service.set_queue(given.pop("name"), **given).weights == {"acme": 4}


def test_a_tenants_service_sees_no_other_tenants_weight(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True, weights={"acme": 3, "north": 2})
    assert bench.bound("north").list_queues() == [QueueSetting(FAIR, True, {"north": 2})]
    assert bench.bound("south").list_queues() == [QueueSetting(FAIR, True, {})]


def test_the_setting_counts_when_a_job_becomes_ready(bench: Bench) -> None:
    fill(bench, [("acme", "later")], scheduled_at=START + timedelta(minutes=1))
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, [("acme", "even later")], scheduled_at=START + timedelta(minutes=3))
    bench.advance(minutes=2)
    bench.run(upkeep.promote())
    assert lanes(bench) == {"acme": 1}
    bench.service.set_queue(FAIR, fair=False)
    bench.advance(minutes=2)
    bench.run(upkeep.promote())
    assert lanes(bench) == {"acme": 1, "": 1}
    assert keys(Worker(bench).drain(5)) == ["even later", "later"]


# --- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["worker", "verb", "verb, many"])
def test_inside_a_tenant_the_order_holds(bench: Bench, by: str) -> None:
    bench.service.set_queue(FAIR, fair=True)
    for nth, (priority, minutes) in enumerate([(0, 3), (5, 3), (0, 1), (5, 1), (-1, 0), (5, 1), (0, 2)]):
        for tenant in ("acme", "north", "south"):
            fill(
                bench, [(tenant, f"{tenant}-{nth}")], priority=priority, scheduled_at=START + timedelta(minutes=minutes)
            )
    bench.advance(minutes=5)
    taken: list[Any] = []
    worker = Worker(bench)
    while len(taken) < 21:
        if by == "worker":
            taken += worker.take(4)
        else:
            taken += bench.service.claim_jobs("A", queues=[FAIR], limit=1 if by == "verb" else 5)
    for tenant in ("acme", "north", "south"):
        assert keys(taken, tenant) == [f"{tenant}-{nth}" for nth in (3, 5, 1, 2, 6, 0, 4)]


@pytest.mark.parametrize("limit", [1, 4, 7, 50])
def test_workers_give_turns_by_weight(bench: Bench, limit: int) -> None:
    """After any claim each lane has what single turns would have given it: exactly, so within one turn of its share."""
    weights = {"acme": 3, "north": 1, "south": 2}
    bench.service.set_queue(FAIR, fair=True, weights=weights)
    fill(bench, [job for tenant in weights for job in many(tenant, 100)])
    worker = Worker(bench)
    served: Counter[str] = Counter()
    stepped: Counter[str] = Counter()
    stand: Turn | None = None
    while sum(served.values()) + limit <= 150:
        served.update(one.job.tenant for one in worker.take(limit))
        while sum(stepped.values()) < sum(served.values()):
            lane, stand = after(sorted(weights), weights, stand)
            stepped[lane] += 1
        assert served == stepped
    assert sum(served.values()) > 99


def test_what_a_tenant_leaves_over_is_shared_among_the_others(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, [*many("acme", 2), *many("north", 40), *many("south", 40)])
    assert Counter(one.job.tenant for one in Worker(bench).take(30)) == {"acme": 2, "north": 14, "south": 14}


def test_a_flood_of_one_tenant_does_not_keep_another_waiting(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, many("acme", 300))
    worker = Worker(bench)
    assert Counter(one.job.tenant for one in worker.take(20)) == {"acme": 20}
    # The store's clock stands still here, so a worker looks before every claim; it does so too where looks are quick.
    fill(bench, [("north", "n-1")])
    worker.cursor = None
    assert "n-1" in keys(worker.take(3))
    fill(bench, [("north", "n-2")])
    assert "n-2" in keys([claim(bench.service, queues=[FAIR]) for _ in range(2)])


@pytest.mark.parametrize("tenants,limit", [(40, 1), (40, 3), (LANES_MAX + 40, 100)])
def test_with_more_tenants_than_one_look_sees_each_has_its_turn(bench: Bench, tenants: int, limit: int) -> None:
    bench.service.set_queue(FAIR, fair=True)
    names = [f"t{nth:03}" for nth in range(tenants)]
    each = LONG_TURN + 2
    fill(bench, [(name, f"{name}-{nth}") for nth in range(each) for name in names])
    worker = Worker(bench)
    seen: Counter[str] = Counter()
    while (rest := LONG_TURN * tenants - sum(seen.values())) > 0:
        taken = worker.take(min(limit, rest))
        assert taken, "there is more, and it is found without a pause"
        seen.update(one.job.tenant for one in taken)
    # A turn for everybody before anybody has another one.
    assert seen == dict.fromkeys(names, LONG_TURN)
    assert len(worker.drain(limit, most=2 * tenants)) == 2 * tenants


def test_tenants_whose_work_nobody_here_does_keep_nobody_waiting(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    names = [f"t{nth:03}" for nth in range(50)]
    fill(bench, [(name, name) for name in names], kind="other")
    fill(bench, [("z", "z-1")])
    fill(bench, [("z", "z-2")], queue=PLAIN)
    worker = Worker(bench, queues=[FAIR, PLAIN])
    found: list[str] = []
    for _ in range(8):
        found += keys(worker.take(2))
    assert sorted(found) == ["z-1", "z-2"]


def test_the_single_claim_goes_round(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, [*many("acme", 50), *many("north", 3), *many("south", 3)])
    taken = [bench.service.claim_job("A") for _ in range(9)]
    assert [one.job.tenant for one in taken if one] == ["acme", "north", "south"] * 3
    # Many at once: a turn each, and what is left over from the lanes that have it.
    fill(bench, many("north", 2, "b"))
    assert Counter(one.job.tenant for one in bench.service.claim_jobs("A", limit=5)) == {"acme": 3, "north": 2}


def test_the_single_claim_of_one_tenant_takes_its_own(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, [*many("acme", 5), *many("north", 5)])
    taken = bench.service.claim_jobs("A", tenant="north", limit=9)
    assert keys(taken) == [key for _, key in many("north", 5)]
    assert bench.service.claim_job("A", tenant="north") is None
    worker = Worker(bench, tenant="acme")
    assert keys(worker.drain(2)) == [key for _, key in many("acme", 5)]


# --- switching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["worker", "verb"])
@pytest.mark.parametrize("first", [True, False])
def test_a_switched_queue_loses_nothing_and_serves_both_side_by_side(bench: Bench, by: str, first: bool) -> None:
    bench.service.set_queue(FAIR, fair=first)
    fill(bench, [*many("acme", 20), *many("north", 20)])
    bench.service.set_queue(FAIR, fair=not first)
    fill(bench, [*many("acme", 20, "b"), *many("south", 20)])
    expected = {"": 40, "acme": 20, "south": 20} if first is False else {"": 40, "acme": 20, "north": 20}
    assert lanes(bench) == expected
    worker = Worker(bench)
    taken: list[Any] = []
    for _ in range(30):
        taken += worker.take(1) if by == "worker" else bench.service.claim_jobs("A", queues=[FAIR], limit=1)
    left = lanes(bench)
    # Ten of each lane: the lane without a name takes its turns like a tenant.
    assert {lane: expected[lane] - left[lane] for lane in expected} == dict.fromkeys(expected, 10)
    taken += worker.drain(7) if by == "worker" else bench.service.claim_jobs("A", queues=[FAIR], limit=200)
    assert sorted(keys(taken)) == sorted(
        key for _, key in [*many("acme", 20), *many("north", 20), *many("acme", 20, "b"), *many("south", 20)]
    )


# --- what else looks at lanes -----------------------------------------------------------------------------------------


def test_parking_sees_every_lane(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    names = [f"t{nth:03}" for nth in range(LANES_MAX + 30)]
    fill(bench, [(name, name) for name in names], kind="odd")
    fill(bench, [("t000", "known")])
    bench.run(upkeep.announce("A", [KIND], timedelta(minutes=1)))
    parked = bench.run(upkeep.park())
    # The neighbour's job of another kind is moved too.
    assert parked.moved >= LANES_MAX
    assert parked.places == {FAIR: names[LANES_MAX - 1]}
    while parked.moved:
        parked = bench.run(upkeep.park(places=parked.places))
    assert lanes(bench) == {"t000": 1}
    assert sum(row["queue"] == FAIR for row in bench.dump()["resting"]) == len(names)
    bench.run(upkeep.announce("B", ["odd"], timedelta(minutes=1)))
    while bench.run(upkeep.park()).moved:
        pass
    assert sum(lanes(bench).values()) == len(names) + 1
    assert "" not in lanes(bench)


def test_a_job_whose_worker_was_lost_comes_back_to_its_lane(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, many("acme", 3))
    assert len(Worker(bench).take(2)) == 2
    bench.advance(minutes=5)
    bench.run(upkeep.recover())
    assert lanes(bench) == {"acme": 3}
    taken = bench.run(claim_batch("B", [KIND], limit=5, lost=1))
    assert sorted(one.error_code or "" for one in taken.claims) == ["", "WORKER_LOST"]
    assert {one.job.generation for one in taken.claims} == {1, 2}


def test_queues_are_served_in_the_order_given_fair_or_not(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    bench.service.set_queue("also fair", fair=True)
    fill(bench, [*many("acme", 3), *many("north", 1)])
    fill(bench, many("acme", 2, "p"), queue=PLAIN, priority=9)
    fill(bench, many("acme", 2, "f"), queue="also fair", priority=9)
    worker = Worker(bench, queues=["also fair", FAIR, PLAIN])
    taken = [one.job.queue for one in worker.drain(3)]
    assert taken == ["also fair"] * 2 + [FAIR] * 4 + [PLAIN] * 2


# --- what it costs ----------------------------------------------------------------------------------------------------


def noted(inner: Procedure[Any], names: list[str]) -> Procedure[Any]:
    """Give a procedure that does the same and writes down which statements it sends."""

    @procedure
    def forward() -> Script[Any]:
        script = inner.script()
        request: Any = next(script)
        while True:
            several = request.requests if isinstance(request, Last) else request
            sent = several if isinstance(several, list) else [several]
            names.extend([one.name for one in sent if isinstance(one, Statement) or one.rows])
            rows = yield request
            try:
                request = script.send(rows)
            except StopIteration as end:
                return end.value

    return forward()


def asked(bench: Bench, inner: Procedure[Any]) -> tuple[Any, Mapping[str, int]]:
    names: list[str] = []
    return bench.run(noted(inner, names)), Counter(names)


LOOK = {"deferred_due": 1, "ready_fronts": 1}


def test_a_plain_queue_is_claimed_with_as_many_statements_as_ever(bench: Bench) -> None:
    fill(bench, [*many("acme", 20), *many("north", 20)], queue=PLAIN)
    fill(bench, many("acme", 20, "b"), queue=PLAIN, priority=3)
    first, names = asked(bench, claim_batch("A", [KIND], queues=[PLAIN], limit=10))
    assert names == {**LOOK, "claim_batch": 1}
    again, names = asked(bench, claim_batch("A", [KIND], queues=[PLAIN], limit=25, cursor=first.cursor))
    assert (len(again.claims), names) == (25, {"claim_batch": 1})
    one, names = asked(bench, claiming.claim("A", queues=[PLAIN]))
    assert len(one) == 1
    saved = {"ready_delete": 1, "lease_insert": 1, "event_insert": 1, "effect_read": 1}
    assert names == {"deferred_due": 1, "lease_expired": 1, "ready_front": 1, **saved}


def test_a_fair_queue_is_claimed_for_all_its_tenants_at_once(bench: Bench) -> None:
    bench.service.set_queue(FAIR, fair=True)
    fill(bench, [job for nth in range(15) for job in many(f"t{nth:02}", 4)])
    first, names = asked(bench, claim_batch("A", [KIND], limit=20))
    assert (len(first.claims), names) == (20, {**LOOK, "claim_batch": 1})
    second, names = asked(bench, claim_batch("A", [KIND], limit=20, cursor=first.cursor, turns=first.turns))
    assert (len(second.claims), names) == (20, {"claim_batch": 1})
    # Some tenants have less than their share: one more statement for the others.
    third, names = asked(bench, claim_batch("A", [KIND], limit=20, turns=second.turns))
    assert (len(third.claims), names) == (20, {**LOOK, "claim_batch": names["claim_batch"]})
    assert names["claim_batch"] <= 2
