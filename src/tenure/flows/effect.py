"""
Intent, call, receipt: the only way this package makes an outside call for a job.

The order is the promise. The intent commits before the call; the outcome commits after it, shielded by the driver from
the handler's own cancellation. When the outcome cannot be written the receipt is kept outside the database, and the
pending intent goes on to forbid a second call.

On a job of a restored copy the intent of an earlier call may be lost. There the order is: intent, question, answer; and
only what the provider's answer proves not to have happened is begun like any other effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tenure.errors import Unavailable, Uncertain
from tenure.flows.sweep import look_up
from tenure.procedures.control import stop_effect
from tenure.procedures.effect import Beginning, Finishing, begin_effect, finish_effect
from tenure.procedures.recover import answer_lost
from tenure.rules.control import ControlMode, Judged
from tenure.rules.dispatch import Begun
from tenure.rules.effect import Effect, EffectState
from tenure.rules.lease import Lease
from tenure.rules.ledger import Seen
from tenure.rules.outcome import Evidence, NoAnswer, Outcome, Terms
from tenure.yields import FlowScript, call, flow, transact


@dataclass(frozen=True, slots=True)
class Performed:
    """
    How an effect stands after `perform`.

    Attributes:
        outcome: How this call ended; None when an earlier attempt's receipt was found and nothing was sent.
    """

    effect: Effect
    outcome: Outcome | None


@flow
def perform(
    lease: Lease,
    name: str,
    digest: str,
    terms: Terms,
    timeout: timedelta,
    *,
    send: Callable[[Begun], Any],
    keep: Callable[[Effect, Outcome], Any],
    ask: Callable[[Begun], Any] | None = None,
    resend: bool = False,
    judged: Judged | None = None,
    seen: Seen | None = None,
) -> FlowScript[Performed]:
    """
    Make one outside call, at most once as far as anybody can know.

    Args:
        send: Makes the call within `begun.timeout` and gives its outcome; never raises for what the provider did.
        keep: Keeps the outcome outside the database when it cannot be written there; says whether it did.
        ask: Asks the provider about the operation key and gives Evidence; without it there is no answer.
        judged: What the execution control said, where there is one.
        seen: See `Beginning`.
    Raises:
        ExecutionStopped, Unavailable: The execution control stopped it before its intent.
        Uncertain: The call was made and its outcome could not be recorded.
        LeaseLost: The lease was lost during the call; what the call proved is stored as evidence.
    """
    if judged is not None and judged.stops:
        yield from transact(stop_effect(lease, name, terms.provider, digest, judged))
    watched = judged if judged is not None and judged.mode is ControlMode.SHADOW else None
    asked = Beginning(lease, name, digest, terms, timeout, resend, watched=watched, seen=seen)
    begun = yield from transact(begin_effect(asked))
    if begun.ask:
        said: Evidence = (yield from look_up(ask, begun)) if ask else NoAnswer("nobody was there to ask")
        settled = yield from transact(answer_lost(lease, name, said, begun.effect.begun_at))
        if settled.state is not EffectState.FAILED_BEFORE_DISPATCH:
            return Performed(settled, None)
        # Proven not to have happened: an effect like any other now, and once is often enough to be asked.
        begun = yield from transact(begin_effect(replace(asked, watched=None)))
    if not begun.send:
        return Performed(begun.effect, None)
    outcome: Outcome = yield from call("send", send, begun)
    try:
        effect = yield from transact(finish_effect(Finishing(lease, name, outcome)))
    except Unavailable as gone:
        kept = yield from call("keep", keep, begun.effect, outcome)
        proof = "its receipt is in the journal and is handed in when the database is back"
        raise Uncertain(
            f"effect {name!r} of job {lease.job_id} was called and the database did not take its outcome; "
            f"{proof if kept else 'a sweep asks the provider'}",
            code="OUTCOME_NOT_RECORDED",
        ) from gone
    return Performed(effect, outcome)
