"""Something comes under a known identity with another content: a conflict, and neither a repeat nor a second act."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenure import inbox
from tenure.faces.experiments.breaking import replaced
from tenure.faces.experiments.place import RUN
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import EFFECT, KIND, Stage, letter, refusal
from tenure.procedures import enqueue, rows
from tenure.rules import dispatch
from tenure.rules import inbox as arrivals
from tenure.rules.digest import request_digest
from tenure.rules.job import Change, Job, find_effect, with_effect
from tenure.rules.lease import Lease

CONSUMER = "books"
FIRST = inbox.IncomingEvent(RUN, "accept-Q-1", "quote.accepted", 1, "quote/Q-1", {"total": "10.00"})


def _compares_nothing(*_: Any, **__: Any) -> None:
    return


_begin = dispatch.begin


def _begins_whatever(job: Job, lease: Lease, name: str, digest: str, *given: Any, **options: Any) -> Change:
    known = find_effect(job, name)
    same = job if known is None else with_effect(job, replace(known, request_digest=digest))
    return _begin(same, lease, name, digest, *given, **options)


# A payload is compared twice: by the rule, and where the job is read by whoever presents its digest.
_BROKEN: dict[str, tuple[tuple[Any, Any], ...]] = {
    "event-not-compared": ((arrivals.judge, _compares_nothing),),
    "payload-not-compared": (
        (enqueue._refuse_other_meaning, _compares_nothing),  # noqa: SLF001 - taken away on purpose
        (rows.read_known, rows.read),
    ),
    "request-not-compared": ((dispatch.begin, _begins_whatever),),
}


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    with ExitStack() as broken:
        if variant is not None:
            broken.enter_context(replaced(*_BROKEN[variant]))
        _event(stage, notes)
        _payload(stage, notes)
        _request(stage, notes)


def _receive(stage: Stage, event: inbox.IncomingEvent, delivery: str) -> inbox.Received:
    with stage.books.transaction() as connection:
        tx: Any = stage.store.join(connection)
        received: inbox.Received = inbox.receive(tx, CONSUMER, event, delivery)
        if received.new:
            stage.note(connection, event.data["total"], 1, CONSUMER)
    return received


def _event(stage: Stage, notes: Notes) -> None:
    _receive(stage, FIRST, "delivery-1")
    notes.step("consumer", "gets an event and applies it", f"{len(stage.books.publications())} row")
    changed = replace(FIRST, data={"total": "99.00"})
    code = refusal(lambda: _receive(stage, changed, "delivery-2"))
    notes.step("consumer", "gets another content under that operation", _said(code))
    again = _receive(stage, FIRST, "delivery-3")
    notes.step("consumer", "gets the first event again", f"arrivals counted under the operation: {again.times_seen}")
    applied = [row[0] for row in stage.books.publications()]
    notes.promise(
        "another content under a known operation is neither applied nor taken for a repeat",
        code == "MESSAGE_MISMATCH" and again.times_seen == 2 and applied == ["10.00"],
        f"{_said(code)}, arrivals counted: {again.times_seen}, applied: {', '.join(applied)}",
    )
    notes.control("the same content may come again", not again.new and again.times_seen > 1, f"new: {_word(again.new)}")


def _payload(stage: Stage, notes: Notes) -> None:
    stage.accept("Q-1")
    other = {**letter("Q-1"), "text": "another quote"}
    code = refusal(lambda: stage.app.enqueue(KIND, other, key="Q-1"))
    notes.step("producer", "creates a job with another payload under the key of Q-1", _said(code))
    text = stage.job("Q-1").payload["text"]
    notes.promise(
        "another payload under a known key is not taken for the job that is there",
        code == "IDEMPOTENCY_MISMATCH" and text == "your quote" and len(stage.service.list_jobs()) == 1,
        f"{_said(code)}, the stored job says {text!r}",
    )
    same = stage.app.enqueue(KIND, letter("Q-1"), key="Q-1")
    notes.control("the same payload finds the job", not same.created, f"created: {_word(same.created)}")


def _request(stage: Stage, notes: Notes) -> None:
    stage.post.down = True
    first = stage.claim("A")
    assert first is not None, "Q-1 waits"
    code = refusal(first.send)
    first.fail()
    stage.post.down = False
    stage.clock.move(timedelta(hours=2))
    notes.step("worker A", "sends the letter of Q-1; the post is closed, nothing happened", _said(code))
    second = stage.claim("B")
    assert second is not None, "Q-1 is tried again"
    code = refusal(lambda: second.send({**letter("Q-1"), "text": "another quote"}))
    acts = len(stage.acts("Q-1"))
    notes.step("worker B", f"sends another letter as effect {EFFECT!r}", f"{_said(code)}, acts: {acts}")
    second.send()
    notes.step("worker B", "sends the first letter", f"acts: {len(stage.acts('Q-1'))}")
    second.publish()
    second.complete()
    sent = [act.payload_digest for act in stage.acts("Q-1")]
    notes.promise(
        "an effect sends the request that its intent was written for, and no other",
        code == "EFFECT_MISMATCH" and sent == [request_digest(letter("Q-1"))],
        f"{_said(code)}, acts in the provider's ledger: {len(sent)}, "
        f"of them with the first request: {sent.count(request_digest(letter('Q-1')))}",
    )
    notes.control(
        "the first request is sent by a later attempt",
        stage.job("Q-1").status == "completed",
        f"job {stage.job('Q-1').status}",
    )


def _said(code: str | None) -> str:
    return "not refused" if code is None else f"refused: {code}"


def _word(there: bool) -> str:
    return "yes" if there else "no"


CHANGED_DIGEST = Experiment(
    "changed-digest",
    "another content comes under a known operation, key or effect",
    {
        "event-not-compared": "an inbox compares operations and not what they mean",
        "payload-not-compared": "a producer's key finds a job whatever its payload is",
        "request-not-compared": "an effect is begun again with any request",
    },
    _play,
)
