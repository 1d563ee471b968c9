"""Every interleaving of two workers, a job and an effect, with the shipped rules; and each rule broken once."""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tenure import lab
from tenure.errors import Invalid
from tenure.lab.configuration import Configuration
from tenure.lab.variants import applied, second_locks
from tenure.rules import dispatch, lease, moves, reconcile

# What a broken variant has to be refuted by, and what one core has to manage.
TRACE_MAX = 15
SECONDS_MAX = 180
STATES_MIN = 200_000

SMALL = replace(
    lab.configurations()["keyless"], name="small", about="for tests that need any world", outages=0, answers=frozenset()
)
# The control of every refutation: the very configuration passes with the rules as they are.
CONFIGURATIONS = sorted(lab.configurations())
VARIANTS = {variant.name: variant for variant in lab.variants()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_promise_holds_in_every_state(name: str) -> None:
    began = time.process_time()
    report = lab.explore(name)
    seconds = time.process_time() - began
    print(f"{name}: {report.states} states, {report.transitions} steps, depth {report.depth}, {seconds:.1f} s")
    print(json.dumps(report.counters))
    assert report.violation is None, str(report.violation)
    assert report.complete
    assert report.expected, "a configuration says what it has to have seen"
    assert report.missing == (), "what never happened was not tested"
    assert seconds < SECONDS_MAX
    if name == "keys":
        assert report.states >= STATES_MIN
        assert set(report.invariants) == set(lab.PROMISES) - {"I10"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "deeper",
    [
        replace(lab.configurations()["keys"], name="three attempts", attempts=3, renews=False, revokes=0),
        replace(lab.configurations()["keyless"], name="two crashes", crashes=2, outages=2, cancels=1, renews=True),
        replace(lab.configurations()["memory"], name="longer memory", lease=2, retention=5, crashes=2),
    ],
    ids=lambda deeper: deeper.name,
)
def test_every_promise_holds_further_out(deeper: Configuration) -> None:
    report = lab.explore(deeper)
    print(f"{deeper.name}: {report.states} states, {report.transitions} steps, {report.seconds:.1f} s")
    assert report.violation is None, str(report.violation)
    assert report.complete
    assert set(report.missing) <= {"revoked"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_rule_is_refuted_by_a_short_trace(name: str) -> None:
    variant = VARIANTS[name]
    assert variant.configuration in CONFIGURATIONS, "its control is explored above"
    report = lab.explore(variant=variant)
    assert report.violation is not None, f"{report.states} states, and nothing found"
    assert report.violation.invariant == variant.promise
    assert 1 <= len(report.violation.steps) <= TRACE_MAX, str(report.violation)
    assert not report.complete


def test_there_are_enough_broken_rules_and_each_promise_has_one() -> None:
    assert len(VARIANTS) >= 14
    assert {"no-fence", "no-lookup", "no-boundary"} <= set(VARIANTS)
    # An assertion is a rule's own second look; the checkers' tests break one by hand.
    assert {variant.promise for variant in VARIANTS.values()} == set(lab.PROMISES) - {"assertion"}
    for variant in VARIANTS.values():
        assert variant.breaks
        assert variant.breaks[0].islower()


@pytest.mark.parametrize("variant", second_locks(), ids=lambda variant: variant.name)
def test_attempt_id_and_generation_cover_for_each_other(variant: lab.Variant) -> None:
    assert lab.explore(variant=variant).violation is None
    both = lab.explore(variant="fence-by-name")
    assert both.violation is not None
    assert both.configuration == variant.configuration


def test_a_broken_rule_is_whole_again_after_its_exploration() -> None:
    modules = (lease, moves, dispatch, reconcile)
    before = [dict(vars(module)) for module in modules]
    for variant in VARIANTS.values():
        with applied(variant):
            if variant.patches:
                assert [dict(vars(module)) for module in modules] != before
        assert [dict(vars(module)) for module in modules] == before


def test_a_broken_rule_is_whole_again_after_an_error() -> None:
    original = reconcile._settles

    def stop(*given: int) -> None:
        assert reconcile._settles is not original
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.explore(variant="absence-keyless", progress=stop)
    assert reconcile._settles is original


# --- the explorer asks the shipped rules ------------------------------------------------------------------------------


class Asked(Exception):
    """The rule was asked."""


RULES = [
    ("moves", "claim", "keyless"),
    ("moves", "recover", "keyless"),
    ("moves", "renew", "publish"),
    ("moves", "complete", "keyless"),
    ("moves", "fail", "keyless"),
    ("moves", "release", "endings"),
    ("moves", "acknowledge_cancellation", "endings"),
    ("moves", "mark_halt_unsafe", "endings"),
    ("moves", "mark_indeterminate", "endings"),
    ("moves", "time_out", "endings"),
    ("moves", "cancel", "people"),
    ("moves", "revoke", "people"),
    ("moves", "retry", "reopen"),
    ("moves", "eligible", "keyless"),
    ("moves", "check_fence", "keyless"),
    ("moves", "open_boundary", "keyless"),
    ("dispatch", "begin", "keyless"),
    ("dispatch", "mark", "bare"),
    ("dispatch", "finish", "keyless"),
    ("dispatch", "receive", "keyless"),
    ("dispatch", "check_fence", "keyless"),
    ("lease", "check_fence", "publish"),
    ("lease", "live", "keyless"),
    ("reconcile", "assess", "keyless"),
    ("reconcile", "answered", "keyless"),
    ("reconcile", "judge", "keyless"),
    ("reconcile", "settle", "keyless"),
    ("reconcile", "settle_stored", "keyless"),
    ("reconcile", "state_fact", "blind"),
    ("reconcile", "escalate", "keyless"),
    ("reconcile", "resume_sweep", "people"),
    ("job", "may_move", "keyless"),
    ("recover", "answer", "recovered"),
    ("dispatch", "_in_doubt", "recovered"),
]


@pytest.mark.parametrize("module,rule,configuration", RULES)
def test_each_rule_is_asked_where_it_is_shipped(
    monkeypatch: pytest.MonkeyPatch, module: str, rule: str, configuration: str
) -> None:
    def ask(*given: Any, **options: Any) -> None:
        raise Asked

    monkeypatch.setattr(importlib.import_module(f"tenure.rules.{module}"), rule, ask)
    with pytest.raises(Asked):
        lab.explore(configuration, limit=30_000)


def nothing(*given: Any) -> None:
    return None


def settles_always(*given: Any) -> bool:
    return True


@pytest.mark.parametrize(
    "module,rule,wrong,promises",
    [
        # A lease that nobody ends: the job is neither live nor free, and never comes to rest.
        (moves, "recover", nothing, {"I1", "rest"}),
        (dispatch, "refuse_cancelled", nothing, {"cancellation"}),
        (reconcile, "_settles", settles_always, {"absence", "I6"}),
    ],
)
def test_a_rule_broken_from_outside_turns_the_exploration_red(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, rule: str, wrong: Any, promises: set[str]
) -> None:
    world = replace(SMALL, cancels=1)
    assert lab.explore(world).violation is None
    monkeypatch.setattr(module, rule, wrong)
    report = lab.explore(world)
    assert report.violation is not None
    assert report.violation.invariant in promises


# --- what others build on ---------------------------------------------------------------------------------------------


def test_a_report_is_json_with_stable_names() -> None:
    report = lab.explore(variant="no-boundary").as_json()
    assert json.loads(json.dumps(report)) == report
    assert set(report) == {
        "complete",
        "configuration",
        "counters",
        "depth",
        "expected",
        "invariants",
        "missing",
        "rule_calls",
        "seconds",
        "states",
        "transitions",
        "variant",
        "violation",
    }
    assert report["variant"] == "no-boundary"
    assert set(report["violation"]) == {"invariant", "promise", "said", "steps"}
    assert set(report["violation"]["steps"][0]) == {"actor", "action", "text"}


def test_a_trace_is_a_table_of_who_did_what_and_how_things_stand() -> None:
    report = lab.explore(variant="no-boundary")
    assert report.violation is not None
    steps = report.violation.steps
    assert [(step.actor, step.action) for step in steps][:3] == [
        ("worker A", "claims the job and starts it"),
        ("worker A", "sends the request without an intent"),
        ("worker A", "hears that it was accepted"),
    ]
    assert "the provider has acted twice" in steps[-1].text
    lines = str(report.violation).splitlines()
    assert len(lines) == len(steps) + 1
    assert lines[-1] == "I6: the provider acted 2 times for one operation"
    assert len({line.index(step.action) for line, step in zip(lines, steps, strict=False)}) == 1


def test_names_of_workers_stay_the_same_along_a_trace() -> None:
    report = lab.explore(variant="fence-by-name")
    assert report.violation is not None
    claims = [step.actor for step in report.violation.steps if step.action.startswith("claims")]
    assert claims == ["worker A", "worker B"]
    last = report.violation.steps[-1]
    assert last.actor == "worker A", "the one whose lease is gone"


def test_a_limit_ends_an_exploration_early_and_says_so() -> None:
    seen: list[tuple[int, int]] = []
    report = lab.explore("keys", limit=50_000, progress=lambda done, known: seen.append((done, known)))
    assert not report.complete
    assert report.violation is None
    assert 50_000 < report.states < 50_100
    assert seen
    assert all(done <= known for done, known in seen)


def test_the_default_is_the_package_as_it_is_in_its_richest_world() -> None:
    report = lab.explore(limit=1_000)
    assert (report.configuration, report.variant) == ("keys", None)


def test_a_variant_brings_its_configuration_and_may_be_given_another() -> None:
    assert lab.explore(variant="no-fence").configuration == "publish"
    assert lab.explore("keyless", "no-fence").configuration == "keyless"


@pytest.mark.parametrize("given", [{"configuration": "nowhere"}, {"variant": "nothing"}])
def test_unknown_names_are_refused_with_the_known_ones(given: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="the lab has: ") as refused:
        lab.explore(**given)
    assert next(iter(given.values())) in str(refused.value)


def test_a_configuration_of_ones_own_is_explored() -> None:
    report = lab.explore(Configuration(name="mine", about="no faults at all", crashes=0, honours_key=False, attempts=1))
    assert report.configuration == "mine"
    assert report.complete
    assert report.violation is None
