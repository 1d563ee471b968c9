"""Work that nobody can do now is put aside, so that claims do not walk over it, and comes back by itself."""

from __future__ import annotations

from datetime import timedelta

from tenure.procedures import upkeep
from tests.contract.bench import Bench
from tests.contract.build import KIND, claim, create

MINUTE = timedelta(minutes=1)


def place(bench: Bench, key: str = "k-1") -> str:
    job = bench.service.find_by_idempotency_key(project="p1", idempotency_key=key, tenant="acme")
    assert job is not None
    return bench.place(job.id)[0]


def test_a_kind_that_nobody_announces_is_parked_and_comes_back(bench: Bench) -> None:
    job = create(bench.service)
    bench.run(upkeep.announce("A", ["other"], MINUTE))
    assert bench.run(upkeep.park()).moved == 1
    table, row = bench.place(job.id)
    assert (table, row["status"], row["parked"], row["generation"], row["attempt"]) == (
        "resting", "queued", "unannounced", 0, 0
    )  # fmt: skip
    read = bench.service.get_job(job.id)
    assert (read.status, read.phase, read.parked) == ("queued", "READY", "unannounced")
    assert bench.trail(job.id) == []
    assert bench.run(upkeep.park()).moved == 0
    bench.run(upkeep.announce("B", [KIND], MINUTE))
    assert bench.run(upkeep.park()).moved == 1
    assert place(bench) == "ready"
    taken = claim(bench.service)
    assert (taken.job.id, taken.job.generation, taken.job.parked) == (job.id, 1, None)


def test_a_kind_that_somebody_announces_stays(bench: Bench) -> None:
    create(bench.service)
    bench.run(upkeep.announce("A", [KIND, "other"], MINUTE))
    assert bench.run(upkeep.park()).moved == 0
    assert place(bench) == "ready"
    # The announcement ends at its end, unless it is renewed.
    bench.advance(seconds=59, microseconds=999_999)
    assert bench.run(upkeep.park()).moved == 0
    bench.run(upkeep.announce("A", [KIND], MINUTE))
    bench.advance(seconds=60)
    assert bench.run(upkeep.park()).moved == 1
    assert place(bench) == "resting"


def test_a_worker_that_leaves_takes_its_announcement_along(bench: Bench) -> None:
    create(bench.service)
    bench.run(upkeep.announce("A", [KIND], MINUTE))
    bench.run(upkeep.announce("B", ["other"], MINUTE))
    bench.run(upkeep.withdraw("A"))
    assert [row["worker_id"] for row in bench.dump()["announcement"]] == ["B"]
    assert bench.run(upkeep.park()).moved == 1


def test_held_work_is_parked_and_comes_back_when_it_is_released(bench: Bench) -> None:
    job = create(bench.service)
    bench.run(upkeep.announce("A", [KIND], MINUTE))
    bench.sql("UPDATE $authority SET frozen = (1 = 1) WHERE tenant = ?", "acme")
    assert bench.run(upkeep.park()).moved == 1
    assert bench.place(job.id)[1]["parked"] == "held"
    assert bench.service.get_job(job.id).phase == "HELD"
    assert bench.service.claim_job("A") is None
    bench.sql("UPDATE $authority SET frozen = (1 = 0) WHERE tenant = ?", "acme")
    assert bench.run(upkeep.park()).moved == 1
    assert claim(bench.service).job.id == job.id


def test_the_single_claim_looks_among_parked_work_in_the_right_order(bench: Bench) -> None:
    low = create(bench.service, "k-1", priority=1)
    high = create(bench.service, "k-2", priority=5)
    bench.run(upkeep.announce("A", ["other"], MINUTE))
    assert bench.run(upkeep.park()).moved == 2
    taken = bench.service.claim_jobs("B", limit=5, kinds=[KIND])
    assert [one.job.id for one in taken] == [high.id, low.id]
    assert [one.job.generation for one in taken] == [1, 1]


def test_parked_work_can_be_cancelled_revoked_and_read(bench: Bench) -> None:
    jobs = [create(bench.service, f"k-{nth}") for nth in range(2)]
    bench.run(upkeep.announce("A", ["other"], MINUTE))
    bench.run(upkeep.park())
    assert bench.service.cancel_job(jobs[0].id, reason="r").status == "cancelled"
    assert bench.service.revoke_job(jobs[1].id, reason="r", actor="op:1").status == "cancelled"
    bench.run(upkeep.announce("B", [KIND], MINUTE))
    assert bench.run(upkeep.park()).moved == 0


def test_parking_is_bounded_and_goes_on(bench: Bench) -> None:
    for nth in range(5):
        create(bench.service, f"k-{nth}")
    bench.run(upkeep.announce("A", ["other"], MINUTE))
    while bench.run(upkeep.park()).moved:
        pass
    assert (len(bench.dump()["ready"]), len(bench.dump()["resting"])) == (0, 5 + 1)
    bench.run(upkeep.announce("A", [KIND], MINUTE))
    assert bench.run(upkeep.park(2)).moved == 2
    assert bench.run(upkeep.park(2)).moved == 2
    assert bench.run(upkeep.park(2)).moved == 1
    assert len(bench.dump()["ready"]) == 5


def test_attempts_and_errors_survive_the_way_to_the_side_and_back(bench: Bench) -> None:
    create(bench.service)
    lease = claim(bench.service, start=True).lease
    failed = bench.service.fail_job(lease, code="E", message="m", retryable=True)
    bench.clock.advance(failed.run_at - bench.now)
    bench.run(upkeep.promote())
    bench.run(upkeep.announce("A", ["other"], MINUTE))
    assert bench.run(upkeep.park()).moved == 1
    parked = bench.service.get_job(lease.job_id)
    assert (parked.attempt_count, parked.generation, parked.error_code) == (1, 1, "E")
    bench.run(upkeep.announce("A", [KIND], MINUTE))
    assert bench.run(upkeep.park()).moved == 1
    back = bench.service.get_job(lease.job_id)
    assert (back.attempt_count, back.generation, back.error_code, back.run_at) == (1, 1, "E", failed.run_at)
