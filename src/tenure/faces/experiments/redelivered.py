"""A committed event arrives more than once, and its consumer dies once on the way: it is applied once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure import inbox
from tenure.faces.experiments.post import Death
from tenure.faces.experiments.shape import Experiment, Notes
from tenure.faces.experiments.stage import Stage, dies

CONSUMER = "books"


def _event(stage: Stage, quote: str) -> inbox.IncomingEvent:
    """Commit an event beside its change, and give it as it leaves the outbox."""
    with stage.books.transaction() as connection:
        stage.write_quote(connection, quote)
        stage.app.join(connection).add_message(
            destination="books", type="quote.accepted", data={"quote": quote}, operation=f"accept-{quote}"
        )
    sent = next(one for one in stage.service.list_messages() if one.message.operation == f"accept-{quote}").message
    return inbox.IncomingEvent(sent.tenant, sent.operation, sent.type, sent.version, sent.subject, sent.data)


def _receive(stage: Stage, connection: Any, event: inbox.IncomingEvent, delivery: str) -> inbox.Received:
    tx: Any = stage.store.join(connection)
    received: inbox.Received = inbox.receive(tx, CONSUMER, event, delivery)
    return received


def _together(stage: Stage, event: inbox.IncomingEvent, delivery: str, within: Callable[[], None]) -> None:
    with stage.books.transaction() as connection:
        if _receive(stage, connection, event, delivery).new:
            _apply(stage, connection, event)
        within()


def _marked_before(stage: Stage, event: inbox.IncomingEvent, delivery: str, within: Callable[[], None]) -> None:
    with stage.books.transaction() as connection:
        new = _receive(stage, connection, event, delivery).new
    within()
    if new:
        with stage.books.transaction() as connection:
            _apply(stage, connection, event)


def _marked_after(stage: Stage, event: inbox.IncomingEvent, delivery: str, within: Callable[[], None]) -> None:
    with stage.books.transaction() as connection:
        new = _receive(stage, connection, event, delivery).new
        connection.rollback()
    if new:
        with stage.books.transaction() as connection:
            _apply(stage, connection, event)
    within()
    with stage.books.transaction() as connection:
        _receive(stage, connection, event, delivery)


_WAYS = {None: _together, "marked-before": _marked_before, "marked-after": _marked_after}


def _apply(stage: Stage, connection: Any, event: inbox.IncomingEvent) -> None:
    stage.note(connection, event.data["quote"], 1, CONSUMER)


def _play(stage: Stage, notes: Notes, variant: str | None) -> None:
    consume = _WAYS[variant]

    def end() -> None:
        raise Death

    event = _event(stage, "Q-1")
    notes.step("producer", "commits Q-1 with its event", f"{len(stage.service.list_messages())} message in the outbox")
    died = dies(lambda: consume(stage, event, "delivery-1", end))
    notes.step("consumer", "gets it, and dies before it is done", _applied(stage, "Q-1"))
    for delivery in ("delivery-2", "delivery-2", "delivery-3"):
        consume(stage, event, delivery, lambda: None)
        notes.step("relay", f"brings it again as {delivery}", _applied(stage, "Q-1"))
    times = len(stage.rows("Q-1"))
    notes.promise(
        "an event is applied once, however often it comes",
        died and times == 1,
        f"four arrivals, one death, rows in the consumer's table: {times}",
    )
    other = _event(stage, "Q-2")
    consume(stage, other, "delivery-4", lambda: None)
    notes.step("relay", "brings the event of Q-2", _applied(stage, "Q-2"))
    notes.control("another event is applied", len(stage.rows("Q-2")) == 1, f"rows of Q-2: {len(stage.rows('Q-2'))}")


def _applied(stage: Stage, quote: str) -> str:
    return f"{quote} is applied {len(stage.rows(quote))} times"


REDELIVERED = Experiment(
    "redelivered",
    "an event is delivered again, and its consumer dies on the way",
    {
        "marked-before": "the consumer commits its mark first and its effect after it",
        "marked-after": "the consumer commits its effect first and its mark after it",
    },
    _play,
)
