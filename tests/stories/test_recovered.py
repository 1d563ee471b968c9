"""An older copy of the database takes the place of the current one: what becomes of jobs and of what they did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.connectors.http import HttpProvider
from tenure.errors import LeaseLost
from tenure.rules.outcome import Outcome
from tests.contract.bench import START
from tests.loops.stage import until
from tests.stories.restored import AWAITING, BLOCKING, House, opened_house


def _databases(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("postgres_databases") if request.param == "postgresql" else None


@pytest.fixture(params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """A provider that performs one request for each key."""
    with opened_house(tmp_path, _databases(request)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def keyless_house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """A provider that performs every request it gets."""
    with opened_house(tmp_path, _databases(request), idempotency_keys=False) as made:
        yield made


@pytest.mark.parametrize("kind", [AWAITING, BLOCKING])
def test_what_was_sent_after_the_backup_is_found_and_not_sent_again(house: House, kind: str) -> None:
    (sent,) = house.enqueue(kind=kind, key="sent")
    (unsent,) = house.enqueue(kind=kind, key="unsent", scheduled_at=START + timedelta(minutes=30))
    copy = house.back_up()
    house.work_off([sent])
    receipt = house.job(sent).result
    house.lose(copy)
    assert house.job(sent).status == "queued"
    assert house.recover() == 2
    house.wait_out()
    # The control beside it: what was never sent is sent once.
    house.work_off([sent, unsent])
    assert house.job(sent).result == receipt
    assert not house.job(sent).suspect
    assert {key: len(acts) for key, acts in house.simulator.effects().items()} == {
        f"{kind}:{sent}:send": 1,
        f"{kind}:{unsent}:send": 1,
    }
    # No second request was even made.
    assert house.simulator.state()["duplicates"] == 0


def test_where_every_request_acts_it_is_found_all_the_same(keyless_house: House) -> None:
    house = keyless_house
    (sent,) = house.enqueue()
    copy = house.back_up()
    house.work_off([sent])
    house.lose(copy)
    house.recover()
    house.wait_out()
    house.work_off([sent])
    assert len(house.simulator.effects()[f"{AWAITING}:{sent}:send"]) == 1


def test_without_the_mark_it_would_have_happened_twice(keyless_house: House) -> None:
    """The same story, and what it is that keeps the second effect away."""
    house = keyless_house
    (sent,) = house.enqueue()
    copy = house.back_up()
    house.work_off([sent])
    house.lose(copy)
    house.recover(mark=False)
    house.wait_out()
    house.work_off([sent])
    assert len(house.simulator.effects()[f"{AWAITING}:{sent}:send"]) == 2


@pytest.mark.parametrize("kind", [AWAITING, BLOCKING])
def test_a_provider_without_an_answer_leaves_it_to_a_person(house: House, kind: str) -> None:
    (sent,) = house.enqueue(kind=kind)
    copy = house.back_up()
    house.work_off([sent])
    house.lose(copy)
    house.recover()
    house.wait_out()
    house.simulator.fault("lookup_down", times=None)
    house.work_off([sent], "indeterminate")
    job = house.job(sent)
    assert f"{kind}:{sent}:send" in (job.escalation_reason or "")
    assert len(house.simulator.effects()) == 1
    # The provider is back, somebody lets the sweep loose again, and the receipt is found.
    house.simulator.clear_faults()
    with house.service() as service:
        service.resume_sweep(sent)
    house.work_off([sent])
    assert house.simulator.duplicates() == {}
    assert len(house.simulator.effects()[f"{kind}:{sent}:send"]) == 1


def test_a_job_created_after_the_backup_is_gone_with_its_key(house: House) -> None:
    """I6 does not cover it: created again it is another job with another operation key, and the provider acts again."""
    house.enqueue(key="before")
    copy = house.back_up()
    (lost,) = house.enqueue(key="after")
    house.work_off([lost])
    house.lose(copy)
    house.recover()
    house.wait_out()
    (again,) = house.enqueue(key="after")
    assert again != lost
    house.work_off([again])
    acts = house.simulator.effects()
    assert len(acts[f"{AWAITING}:{lost}:send"]) == len(acts[f"{AWAITING}:{again}:send"]) == 1


def test_a_provider_that_is_given_a_business_key_recognises_even_that(house: House) -> None:
    """What can be done about it: where the provider takes a key of the business, send that one."""

    class ByQuote(HttpProvider):
        async def send(self, request: Any, operation_key: str) -> Outcome:
            return await super().send(request, f"quote-{request['quote']}")

    url = house.simulator.url
    shop = ByQuote("mailer", f"{url}/effects", idempotency=house.mailer.idempotency, trust_env=False)
    copy = house.back_up()
    for _ in range(2):
        (job_id,) = house.enqueue(key="after")
        with house.working(house.made(shop)):
            house.until(job_id, "completed")
        if house.url != copy:
            house.lose(copy)
            house.recover()
            house.wait_out()
    assert {key: len(acts) for key, acts in house.simulator.effects().items()} == {"quote-0": 1}


def test_a_rollback_without_a_rotation(house: House) -> None:
    """The epoch is the same on both sides, so the lost worker's lease looks like one of this epoch."""
    (job_id,) = house.enqueue()
    copy = house.back_up()
    with house.service() as service:
        stale = service.claim_job("lost", start=True)
        assert stale is not None
    house.clock.advance(stale.lease.expires_at - house.clock.now())
    house.work_off([job_id])
    house.lose(copy)
    assert house.recover(rotate=False) == 1
    house.wait_out()
    with house.service() as service:
        current = service.claim_job("current", start=True)
        assert current is not None
        # Of the same generation and the same epoch, and refused all the same.
        assert current.lease.generation == stale.lease.generation
        with pytest.raises(LeaseLost):
            service.complete_job(stale.lease, result=None)
        service.release_job(current.lease, reason="let the worker have it")
    house.work_off([job_id])
    assert house.simulator.state()["duplicates"] == 0
    assert house.simulator.duplicates() == {}
    assert len(house.simulator.effects()) == 1


def test_an_epoch_rotated_while_a_job_is_inside_its_effect(house: House) -> None:
    (job_id,) = house.enqueue()
    house.simulator.fault("hold_reply")
    with house.working(sweep_every=None) as running:
        house.simulator.wait_until(held=1)
        house.sql("UPDATE $authority SET epoch = epoch + 1")
        house.simulator.release()
        # Its finish is refused, and what the call proved is kept in the same commit.
        with house.service() as service:
            until(lambda: "evidence_received" in [e.name for e in service.list_job_events(job_id)], "the receipt")
        assert running.worker is not None
    assert house.job(job_id).status == "running"
    house.wait_out()
    house.readmit()
    house.work_off([job_id])
    assert len(house.simulator.effects()[f"{AWAITING}:{job_id}:send"]) == 1


def test_fifty_jobs_of_yesterdays_dump(house: House) -> None:
    """All of them were done an hour after the dump; a day later it is restored, and four workers start at once."""
    ids = [*house.enqueue(25, key="a"), *house.enqueue(25, key="b", kind=BLOCKING)]
    with house.service() as service:
        held = service.claim_jobs("yesterday", limit=10, start=True)
        assert len(held) == 10
    copy = house.back_up()
    house.clock.advance(held[0].lease.expires_at - house.clock.now())
    house.work_off(ids)
    assert len(house.simulator.entries()) == 50
    house.wait_out()
    house.lose(copy)
    for nth in range(4):
        with house.working(worker_id=f"early-{nth}") as running:
            assert running.worker.health()
    assert sum(house.job(job_id).attempt_count for job_id in ids) == 10
    assert house.recover() == 50
    with house.service() as service:
        needs = service.list_effects_needing_evidence(limit=100)
        assert [one.job_id for one in needs] == sorted(ids)
        assert {one.provider for one in needs} == {"mailer"}
        effects = {kind: {"send": house.mailer} for kind in (AWAITING, BLOCKING)}
        first = service.reconcile_suspects(operations=effects, limit=30)
        rest = service.reconcile_suspects(operations=effects, limit=30, after=first.after)
        told = [*first.answers, *rest.answers]
        assert rest.after is None
        assert sorted(one.job_id for one in told) == sorted(ids)
        found = [one for one in told if one.action == "found"]
        assert len(found) == 40
        with pytest.raises(LeaseLost):
            service.complete_job(held[0].lease, result=None)
    house.work_off(ids)
    assert len(house.simulator.effects()) == 50
    assert house.simulator.duplicates() == {}
    with house.service() as service:
        assert service.count_suspects() == {}
        assert service.list_effects_needing_evidence() == []
