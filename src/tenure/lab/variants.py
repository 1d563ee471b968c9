"""
Rules broken on purpose, one at a time, to see that each of them is what keeps its promise.

A variant replaces one rule of `tenure.rules` by a slightly wrong one, or changes one step in the order of a
transaction. Exploring it must find the broken promise by a short trace, in the very configuration in which the package
as it is passes.

While a variant is explored its rule is broken for the whole process.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import RLock
from types import ModuleType
from typing import NamedTuple

from tenure.lab import wrong
from tenure.lab.catalogue import TENANTS
from tenure.lab.configuration import Order

_MODULES = ("lease", "moves", "dispatch", "reconcile")
_LONG = timedelta(days=365_000)
_ONE_AT_A_TIME = RLock()


class Patch(NamedTuple):
    """
    One rule replaced.

    Attributes:
        rule: Its name.
        breaks: Makes the wrong rule out of the shipped one.
        module: The one user of the rule that gets the wrong one; every user when None.
    """

    rule: str
    breaks: wrong.Break
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """
    One broken rule.

    Attributes:
        promise: The promise that it breaks, by its name in a report.
        breaks: What is wrong with it, one line.
        configuration: Name of the configuration that shows it.
    """

    name: str
    promise: str
    breaks: str
    configuration: str
    patches: tuple[Patch, ...] = field(default=(), repr=False)
    order: Order = field(default=Order(), repr=False)


@contextmanager
def applied(variant: Variant | None) -> Iterator[None]:
    """Break a rule for the duration of one exploration; explorations of one process take turns."""
    with _ONE_AT_A_TIME:
        undo: list[tuple[ModuleType, str, wrong.Rule]] = []
        try:
            for patch in variant.patches if variant else ():
                undo += _apply(patch)
            yield
        finally:
            for module, name, original in reversed(undo):
                setattr(module, name, original)


def _apply(patch: Patch) -> list[tuple[ModuleType, str, wrong.Rule]]:
    names = _MODULES if patch.module is None else (patch.module,)
    modules = [importlib.import_module(f"tenure.rules.{name}") for name in names]
    found = [(module, patch.rule, getattr(module, patch.rule)) for module in modules if hasattr(module, patch.rule)]
    assert found, f"there is no rule {patch.rule} to break"
    replacement = patch.breaks(found[0][2])
    for module, name, _ in found:
        setattr(module, name, replacement)
    return found


def variants() -> list[Variant]:
    """Every broken rule, in the order of a job's life."""
    return list(_ALL)


def second_locks() -> list[Variant]:
    """Rules that another rule covers: broken alone they change nothing, and exploring them finds nothing."""
    return list(_COVERED)


def _fence(breaks: wrong.Break) -> Patch:
    return Patch("check_fence", breaks)


_ALL = (
    Variant(
        "no-fence", "I3", "no write asks whether its lease is the current one", "publish", (_fence(wrong.no_fence),)
    ),
    Variant(
        "fence-by-name",
        "I3",
        "the fence asks for the worker's name only, neither attempt nor generation",
        "one-process",
        (_fence(wrong.agreeing("attempt_id", "generation")),),
    ),
    Variant(
        "no-expiry", "I3", "the fence does not look at the clock", "publish", (Patch("live", wrong.always, "lease"),)
    ),
    Variant(
        "workers-clock",
        "I3",
        "the fence is asked at the worker's clock, which is behind",
        "publish",
        order=Order(skew=1),
    ),
    Variant(
        "live-at-expiry",
        "I1",
        "at the instant of expiry the lease is live and may be taken",
        "keyless",
        (Patch("live", wrong.live_at_expiry, "lease"),),
    ),
    Variant(
        "free-after-expiry",
        "I1",
        "at the instant of expiry the lease is neither live nor free",
        "keyless",
        (Patch("live", wrong.live_at_expiry, "moves"),),
    ),
    Variant(
        "refused-early",
        "I12",
        "the fence refuses the current worker shortly before its lease ends",
        "publish",
        (Patch("live", wrong.over_early, "lease"),),
    ),
    Variant(
        "fence-before-only",
        "I3",
        "a publish checks the fence before the caller's writes and not after them",
        "publish",
        order=Order(fence_at_end=False),
    ),
    Variant(
        "fence-outside",
        "I3",
        "a publish checks the fence in a transaction of its own",
        "publish",
        order=Order(fence_inside=False),
    ),
    Variant(
        "old-epoch-passes",
        "I11",
        "the fence does not look at the tenant's epoch",
        "authority",
        (_fence(wrong.under(epoch=True)),),
    ),
    Variant(
        "frozen-passes", "I11", "the fence does not look at freezes", "authority", (_fence(wrong.under(freezes=True)),)
    ),
    Variant(
        "restored-not-frozen",
        "I6",
        "a database restored from a backup goes on as if it were the current one",
        "restore",
        order=Order(restore_freezes=False),
    ),
    Variant(
        "suspects-not-marked",
        "I6",
        "a recovery does not mark the work of the restored copy",
        "recovered",
        order=Order(recovery_marks=False),
    ),
    Variant(
        "suspect-not-asked",
        "I6",
        "a begin on a suspect job sends without asking the provider",
        "recovered",
        (Patch("_in_doubt", wrong.sends_unasked),),
    ),
    Variant(
        "lost-call-not-awaited",
        "absence",
        "an absence counts as if a lost call had been over at the question",
        "recovered-keys",
        (Patch("_in_doubt", wrong.lost_call_is_over),),
    ),
    Variant(
        "generation-kept",
        "I2",
        "a revocation does not raise the generation",
        "people",
        (Patch("revoke", wrong.generation_kept),),
    ),
    Variant(
        "recovery-requeues",
        "I7",
        "an expired lease queues the job although a call was begun",
        "keyless",
        (Patch("recover", wrong.recover_requeues),),
    ),
    Variant(
        "claim-takes-expired",
        "I7",
        "a claim takes an expired job without asking what its effects did",
        "keyless",
        (Patch("claim", wrong.claim_takes_expired),),
    ),
    Variant(
        "cancelled-requeued",
        "I7",
        "giving a job back queues it although a cancellation is pending",
        "endings",
        (Patch("release", wrong.cancelled_is_requeued),),
    ),
    Variant(
        "no-boundary",
        "I6",
        "the request leaves first and its intent is written with its outcome",
        "keyless",
        order=Order(intent_first=False),
    ),
    Variant(
        "second-intent", "I5", "an open effect may be begun again", "resend", (Patch("begin", wrong.begins_again),)
    ),
    Variant(
        "key-for-each-attempt",
        "I6",
        "every attempt sends under a key of its own",
        "doubt",
        (Patch("begin", wrong.key_of_attempt),),
    ),
    Variant(
        "begin-after-cancel",
        "cancellation",
        "work begins although a cancellation is pending",
        "publish",
        (Patch("refuse_cancelled", wrong.does_nothing),),
    ),
    Variant(
        "complete-after-cancel",
        "cancellation",
        "a cancelled job may complete before anything has happened",
        "endings",
        (Patch("complete", wrong.cancelled_completes),),
    ),
    Variant(
        "complete-while-open",
        "completion",
        "a job completes while the outcome of its effect is not known",
        "keyless",
        (Patch("complete", wrong.open_completes),),
    ),
    Variant(
        "unknown-is-failed",
        "I6",
        "a call without a reply counts as one that did not happen",
        "keyless",
        (Patch("settled_effect", wrong.unknown_is_failed),),
    ),
    Variant(
        "last-call-settles",
        "refusal",
        "the end of a second call settles the first as well",
        "resend",
        (Patch("settled_effect", wrong.last_call_settles),),
    ),
    Variant(
        "resend-keeps-deadline",
        "absence",
        "a look-up does not wait for a call that was made again",
        "resend",
        (Patch("begin", wrong.deadline_kept),),
    ),
    Variant(
        "retry-anything",
        "I4",
        "an operator's retry queues a dead letter too",
        "reopen",
        (Patch("retry", wrong.retries_anything),),
    ),
    Variant(
        "silent-release",
        "I9",
        "a job that is given back leaves no event",
        "endings",
        (Patch("release", wrong.says_nothing),),
    ),
    Variant(
        "retry-unproven",
        "I7",
        "a failed job is retried although nobody has said what its mark did",
        "bare",
        (Patch("retry", wrong.retry_ignores_marks),),
    ),
    Variant(
        "evidence-moves-job",
        "I3",
        "a late receipt completes the job of whoever holds it now",
        "keyless",
        (Patch("receive", wrong.evidence_moves),),
    ),
    Variant(
        "no-lookup",
        "I6",
        "what is uncertain is queued again without asking the provider",
        "keyless",
        (Patch("judge", wrong.silence_is_absence), Patch("_key_still_good", wrong.always)),
    ),
    Variant(
        "absence-at-once",
        "absence",
        "an absence counts before the call's deadline has passed",
        "doubt",
        (Patch("_settles", wrong.settles_with(at_once=True)),),
    ),
    Variant(
        "absence-judged-late",
        "absence",
        "an absence counts from when its answer is applied",
        "doubt",
        order=Order(ask_time=False),
    ),
    Variant(
        "absence-incomplete",
        "absence",
        "an absence counts although the look-up may miss what happened",
        "incomplete",
        (Patch("_settles", wrong.settles_with(lookup_complete=True)),),
    ),
    Variant(
        "absence-keyless",
        "I6",
        "an absence counts although the provider performs every request it gets",
        "keyless",
        (
            Patch("_settles", wrong.settles_with(honours_key=True, retention=_LONG)),
            Patch("_key_still_good", wrong.always),
        ),
    ),
    Variant(
        "forgotten-key",
        "I6",
        "an effect is begun again after the provider has forgotten its key",
        "doubt",
        (Patch("_key_still_good", wrong.always),),
    ),
    Variant(
        "answer-for-another",
        "I3",
        "a provider's answer about one intent is applied to a later one",
        "doubt",
        (Patch("answered", wrong.any_intent),),
    ),
    Variant(
        "refusal-for-another",
        "refusal",
        "a refusal of an earlier attempt's call settles a later one",
        "doubt",
        (Patch("_settles", wrong.any_refusal),),
    ),
    Variant(
        "contradiction-dropped",
        "contradiction",
        "a receipt that proves a second effect is filed and forgotten",
        "doubt",
        (Patch("contradicts", wrong.never),),
    ),
    Variant("key-without-tenant", "I10", "idempotency keys are looked up without their tenant", TENANTS),
    Variant(
        "nobody-is-asked",
        "rest",
        "what no provider can tell is never handed to a person",
        "keyless",
        (Patch("judge", wrong.nobody_is_asked),),
    ),
)

# Every claim makes a new attempt id and a new generation, so either alone tells two leases apart. Both are kept: an id
# cannot be confused after a restore, and a generation can be compared by somebody who never saw the id.
_COVERED = (
    Variant(
        "no-generation",
        "",
        "the fence does not compare generations",
        "one-process",
        (_fence(wrong.agreeing("generation")),),
    ),
    Variant(
        "no-attempt",
        "",
        "the fence does not compare attempt ids",
        "one-process",
        (_fence(wrong.agreeing("attempt_id")),),
    ),
)
