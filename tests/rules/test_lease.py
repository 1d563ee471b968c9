"""The lease and its fence by rule: live or over, one reason at a time, in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import EpochClosed, Invalid, LeaseLost
from tenure.rules.authority import Authority
from tenure.rules.lease import Lease, check_beat, check_duration, check_fence, live, trusted_until
from tenure.rules.status import Status
from tests.rules.records import LEASE, NOW, a_job

WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "status": ({"status": Status.COMPLETED, "lease": None}, {}),
    "worker": ({}, {"worker_id": "B"}),
    "attempt": ({}, {"attempt_id": uuid4()}),
    "generation": ({}, {"generation": 2}),
    "expired": ({"lease": replace(LEASE, expires_at=NOW)}, {}),
    "frozen": ({"authority": Authority(tenant_frozen=True)}, {}),
    "epoch": ({"epoch": 2}, {}),
}


@pytest.mark.parametrize("reason", WRONG)
@pytest.mark.parametrize("status", ["claimed", "running"])
def test_each_reason_alone_is_enough(reason: str, status: str) -> None:
    fields, presented = WRONG[reason]
    lease = replace(LEASE, **presented)
    assert check_fence(a_job(status), LEASE, NOW) == LEASE
    with pytest.raises(LeaseLost) as caught:
        check_fence(replace(a_job(status), **fields), lease, NOW)
    assert caught.value.reason == reason
    assert isinstance(caught.value, EpochClosed) == (reason in {"frozen", "epoch"})
    assert str(LEASE.job_id) in str(caught.value)


@given(wrong=st.lists(st.sampled_from(sorted(WRONG)), min_size=1, unique=True))
def test_of_several_the_first_in_order_is_named(wrong: list[str]) -> None:
    job, lease = a_job("running"), LEASE
    for reason in wrong:
        fields, presented = WRONG[reason]
        if reason != "expired" or job.lease is not None:
            job = replace(job, **fields)
        lease = replace(lease, **presented)
    with pytest.raises(LeaseLost) as caught:
        check_fence(job, lease, NOW)
    assert caught.value.reason == min(wrong, key=list(WRONG).index)


@pytest.mark.parametrize("status", [status for status in Status if status not in {"claimed", "running"}])
def test_only_a_job_at_work_has_a_fence_to_pass(status: Status) -> None:
    with pytest.raises(LeaseLost) as caught:
        check_fence(a_job(status), LEASE, NOW)
    assert caught.value.reason == "status"


def test_what_the_holder_says_of_its_expiry_is_not_believed() -> None:
    told = replace(LEASE, expires_at=NOW + timedelta(days=9), duration=timedelta(days=9))
    with pytest.raises(LeaseLost):
        check_fence(replace(a_job("running"), lease=replace(LEASE, expires_at=NOW)), told, NOW)
    assert check_fence(a_job("running"), replace(LEASE, expires_at=NOW - timedelta(days=9)), NOW) == LEASE


@given(st.integers(-(10**9), 10**9))
def test_a_lease_is_live_before_its_expiry_and_never_at_it(offset: int) -> None:
    assert live(LEASE, LEASE.expires_at + timedelta(microseconds=offset)) == (offset < 0)


@pytest.mark.parametrize("authority", [Authority(database_frozen=True), Authority(tenant_frozen=True)])
def test_either_freeze_closes_the_fence(authority: Authority) -> None:
    with pytest.raises(EpochClosed):
        check_fence(a_job("running", authority=authority), LEASE, NOW)
    assert not authority.admits(1)
    assert Authority(epoch=3).admits(3)
    assert not Authority(epoch=3).admits(2)
    assert not Authority(epoch=3).admits(4)


@pytest.mark.parametrize(
    "seconds,ok",
    [(0.0999, False), (0.1, True), (60, True), (604_800, True), (604_800.1, False), (0, False), (-1, False)],
)
def test_the_bounds_of_a_lease(seconds: float, ok: bool) -> None:
    duration = timedelta(seconds=seconds)
    if ok:
        assert check_duration(duration) == duration
    else:
        with pytest.raises(Invalid):
            check_duration(duration)


@pytest.mark.parametrize(
    "beat,lease,ok", [(20, 60, True), (20.1, 60, False), (60, 60, False), (0, 60, False), (-1, 60, False)]
)
def test_a_beat_must_survive_two_lost_ones(beat: float, lease: float, ok: bool) -> None:
    if ok:
        assert check_beat(timedelta(seconds=beat), timedelta(seconds=lease)) == timedelta(seconds=beat)
        return
    with pytest.raises(Invalid) as caught:
        check_beat(timedelta(seconds=beat), timedelta(seconds=lease))
    assert f"{beat:g} s" in str(caught.value)
    assert f"{lease:g} s" in str(caught.value)


def test_trust_ends_before_the_lease_does() -> None:
    """Counted from when the request was sent, with a margin: the store counted from some instant after that."""
    assert trusted_until(100.0, timedelta(seconds=60)) == pytest.approx(157.0)


def test_a_lease_is_a_value() -> None:
    assert replace(LEASE) == LEASE
    with pytest.raises(AttributeError):
        LEASE.generation = 9  # type: ignore[misc]
    assert isinstance(hash(LEASE), int)
    assert Lease.__slots__
