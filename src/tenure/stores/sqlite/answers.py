"""Answer the requests of a procedure on a SQLite connection."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from tenure.stores.runner import Answer, Requests
from tenure.stores.sqlite.clock import Instants
from tenure.stores.sqlite.failures import raise_typed
from tenure.stores.statements import Named
from tenure.yields import Each, Row, Rows, Statement

# What may hold a colon that is no parameter comes first.
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|:(?P<name>[A-Za-z_]\w*)", re.DOTALL)
_PLAIN = frozenset({int, str, float, bytes, bool, type(None)})


class _Part:
    """
    One SQL statement, ready to be bound.

    Where each name stands once in the SQL, values are bound by their places: that costs a third of binding by name
    (measured at 15 columns). A name that stands twice stays a name, because two places would be two parameters.

    Attributes:
        order: For each place the index of its value in the header, None for the store's own `:now`; None where values
            are bound by name.
        straight: True when a row of values in the header's order can be bound as it is.
        gives_rows: Known after the first execution; a statement that gives none is run by executemany.
    """

    __slots__ = ("gives_rows", "name", "order", "params", "sql", "straight", "wants_now")

    def __init__(self, named: Named, sql: str) -> None:
        names = [token["name"] for token in _TOKEN.finditer(sql) if token["name"]]
        for name in names:
            assert name == "now" or name in named.params, f"statement {named.name} uses :{name}, not in its header"
        self.name = named.name
        self.params = named.params
        self.wants_now = "now" in names and "now" not in named.params
        self.order: tuple[int | None, ...] | None = None
        self.sql = sql
        if len(names) == len(set(names)):
            self.order = tuple([named.params.index(name) if name in named.params else None for name in names])
            self.sql = _TOKEN.sub(lambda token: "?" if token["name"] else token[0], sql)
        self.straight = self.order == tuple(range(len(named.params)))
        self.gives_rows: bool | None = None

    def values(self, row: Row, instants: Instants) -> Row | dict[str, object]:
        """Arrange one row of values, in the header's order, for binding."""
        assert len(row) == len(self.params), f"statement {self.name} takes {self.params}"
        row = tuple([value if type(value) in _PLAIN else _column(value) for value in row])
        if self.straight:
            return row
        if self.order is not None:
            return tuple([instants.now() if place is None else row[place] for place in self.order])
        named = dict(zip(self.params, row, strict=True))
        if self.wants_now:
            named["now"] = instants.now()
        return named


def _column(value: object) -> object:
    # By hand, because adapters are global to the process and would change what the user's own code stores.
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, int | str | float | bytes):
        return value
    if isinstance(value, list | tuple):
        # Where the other database takes an array, the SQL here reads a JSON text with json_each.
        return json.dumps(value, default=str)  # ids
    raise AssertionError(f"a value of type {type(value).__name__} cannot be stored as it is")


class _Prepared:
    """
    One named statement: one SQL statement or a few of them.

    What the other database writes in one statement with several parts is several statements here, each run for all
    rows before the next one. Nobody comes between: the transaction has the only write lock. The answer is that of the
    last one that gives rows.
    """

    __slots__ = ("each", "name", "params", "parts")

    def __init__(self, named: Named) -> None:
        self.name = named.name
        self.params = named.params
        self.each = named.each
        self.parts = [_Part(named, sql) for sql in named.sql.split(";\n")]


class Answers:
    """The statements of a store, ready to be bound to a connection."""

    def __init__(self, statements: Mapping[str, Named]) -> None:
        self._prepared = {name: _Prepared(named) for name, named in statements.items()}

    def bind(self, cursor: sqlite3.Cursor, instants: Instants) -> Answer:
        """Give the function that answers requests on a cursor whose row factory is unset."""

        def answer(requests: Requests) -> list[Rows]:
            return [self._one(cursor, instants, request) for request in requests]

        return answer

    def _one(self, cursor: sqlite3.Cursor, instants: Instants, request: Statement | Each) -> Rows:
        prepared = self._prepared.get(request.name)
        assert prepared is not None, f"no statement is called {request.name}"
        assert prepared.each == isinstance(request, Each), f"{request.name} was asked in the wrong way, once or each"
        try:
            if isinstance(request, Each):
                rows = request.rows
            else:
                assert request.params.keys() == set(prepared.params), f"{request.name} takes {prepared.params}"
                rows = (tuple([request.params[name] for name in prepared.params]),)
            found: Rows = []
            for part in prepared.parts:
                given = _each(cursor, part, (part.values(row, instants) for row in rows))
                found = given if part.gives_rows else found
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            error.add_note(f"in statement {request.name}")
            raise_typed(error)
        return found


def _each(cursor: sqlite3.Cursor, part: _Part, rows: Iterable[Row | dict[str, object]]) -> Rows:
    found: Rows = []
    if part.gives_rows is None:
        for row in rows:  # the first row only: it tells whether the statement gives rows
            found = cursor.execute(part.sql, row).fetchall()
            part.gives_rows = cursor.description is not None
            break
    if part.gives_rows:
        execute: Callable[..., sqlite3.Cursor] = cursor.execute
        for row in rows:
            found += execute(part.sql, row).fetchall()
    else:
        cursor.executemany(part.sql, rows)
    return found
