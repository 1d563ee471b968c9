"""
Procedures inside a caller's transaction on an asyncpg connection.

asyncpg has no pipeline: every request of a procedure is a round trip of its own, and so is the savepoint before the
first. What it is asked is the same SQL; only how values travel differs. asyncpg encodes them itself, by the types that
the server names and by codecs that its owner may have replaced, which is usual for uuid, json and jsonb. So these three
travel as text and are cast by the server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import asyncpg

from tenure.errors import Invalid
from tenure.stores.postgres.transactions import NOT_UNDONE, Host, transaction_failed
from tenure.stores.postgres.trouble import FAILED, Failure, Kind, kept_waiting, lost, refused
from tenure.stores.postgres.values import Query
from tenure.stores.runner import Requests, asked, drive_async
from tenure.yields import Procedure, Rows

T = TypeVar("T")

_PLACE = re.compile(r"\$(?P<number>\d+)(?:::(?P<type>(?:double precision|[a-z_][a-z_0-9]*)(?:\[\])?))?", re.IGNORECASE)
_AS_TEXT = frozenset({"uuid", "json", "jsonb"})

# Which texts are made into which, once for each.
_texts: dict[bytes, str] = {}


def text_of(query: bytes) -> str:
    """Give a statement's text as asyncpg gets it: every use of a parameter names its type, the three as text."""
    made = _texts.get(query)
    if made is None:
        made = _texts[query] = _retyped(query.decode())
    return made


def _retyped(text: str) -> str:
    types: dict[str, str] = {}
    for place in _PLACE.finditer(text):
        if place["type"]:
            types.setdefault(place["number"], place["type"])

    def cast_again(place: re.Match[str]) -> str:
        number, kind = place["number"], place["type"] or types.get(place["number"])
        if kind is None:
            return place[0]
        base, array, _ = kind.partition("[]")
        as_text = f"::text{array}" if base.lower() in _AS_TEXT else ""
        return f"${number}{as_text}::{kind}"

    return _PLACE.sub(cast_again, text)


def value_of(value: Any) -> Any:
    """Give a value as asyncpg gets it."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list | tuple):
        return [value_of(one) for one in value]
    return value


def own(connection: Any) -> Any:
    """Give the connection itself, where a pool has lent it inside a wrapper that is made anew each time."""
    return getattr(connection, "_con", None) or connection


class AsyncpgJoined:
    """The caller's transaction on an asyncpg connection; see `contract.AsyncTransaction`. It ends nothing."""

    def __init__(self, connection: Any, host: Host) -> None:
        self.connection = connection
        self._host = host
        self._check_open()

    def _check_open(self) -> None:
        try:
            closed, inside = self.connection.is_closed(), self.connection.is_in_transaction()
        except asyncpg.InterfaceError:
            closed, inside = True, False  # given back to its pool
        if closed:
            raise Invalid("the connection to join is closed, or back in its pool", code="CANNOT_JOIN")
        if not inside:
            raise Invalid(
                "no transaction is open on this asyncpg connection, so this would be committed by itself; put "
                "`async with connection.transaction():` around your change and this",
                code="AUTOCOMMIT",
            )

    async def run(self, procedure: Procedure[T]) -> T:
        """See `contract.AsyncTransaction.run`; an `AfterCommit` is given back as it is: the commit is the caller's."""
        with asked(procedure, self._host.allows):
            self._check_open()
            conversation = Conversation(self.connection, self._host)
        try:
            return cast("T", await drive_async(procedure, conversation.answer))
        except BaseException as error:
            if conversation.unit.opened and not self.connection.is_closed():
                await conversation.undo(error)
            told = error.told() if isinstance(error, Failure) else error
            if told is error:
                raise
            raise told from None

    async def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        """Run the caller's own SQL, `$1`, and give the driver's records."""
        self._check_open()
        rows: list[Any] = await self.connection.fetch(sql, *params)
        return rows

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the transaction to its owner."""


class Conversation:
    """
    One procedure on one connection.

    Attributes:
        unit: What is sent; opened once the savepoint was.
    """

    def __init__(self, connection: Any, host: Host) -> None:
        self._connection = connection
        self._host = host
        self.unit = host.unit()
        self._savepoint = self.unit.inside

    async def answer(self, requests: Requests) -> list[Rows]:
        """Ask one query after the other."""
        queries = self.unit.queries(requests)
        results = [await self._ask(query) for query in queries]
        self._host.heard(results)
        return self.unit.answers(results)

    async def _ask(self, query: Query) -> Rows:
        try:
            if query is self._savepoint.set:
                # Its name comes once, so nothing of it is to be prepared.
                await self._connection.execute(query.text.decode())
                return []
            records = await self._connection.fetch(text_of(query.text), *[value_of(one) for one in query.values()])
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise _failure(error, query.name) from None
        return [tuple(record) for record in records]

    async def undo(self, error: BaseException) -> None:
        """Bring the transaction back to where it was before the procedure."""
        for way in self._savepoint.ways_back():
            try:
                await self._connection.execute(way)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                continue
            return
        error.add_note(NOT_UNDONE)


def _failure(error: Exception, statement: str) -> Failure:
    found = _judge(error, statement)
    found.add_note(f"in statement {statement}")
    return found


def _judge(error: Exception, statement: str) -> Failure:
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate is not None:
        if error.sqlstate == FAILED:
            return Failure(Kind.FINAL, transaction_failed())
        about = error.constraint_name or error.column_name
        routine = getattr(error, "server_source_function", None)
        return refused(
            error.sqlstate, statement, about=about, message=error.message, make=RuntimeError, routine=routine
        )
    if isinstance(error, TimeoutError):
        # The owner's command_timeout.
        return kept_waiting()
    if isinstance(error, asyncpg.DataError | asyncpg.InternalClientError) or (
        isinstance(error, asyncpg.InterfaceError) and "another operation" not in str(error)
    ):
        return Failure(Kind.FINAL, AssertionError(f"{type(error).__name__} in statement {statement}"))
    if isinstance(error, asyncpg.InterfaceError):
        return Failure(
            Kind.FINAL,
            Invalid(
                "another task is using this asyncpg connection at the same time; finish its statement first, or give "
                "each task a connection of its own",
                code="CANNOT_JOIN",
            ),
        )
    return lost()
