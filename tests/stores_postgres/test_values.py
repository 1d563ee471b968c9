"""Values come back as they went in, whatever their mixture, and a statement is prepared in one form only."""

from __future__ import annotations

import enum
import struct
import traceback
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.stores.postgres.values import Catalogue
from tenure.stores.statements import parse
from tenure.yields import Each, Script, Statement, procedure
from tests.stores_postgres.conftest import Maker
from tests.stores_postgres.toy import STATEMENTS, Blocking, ask, count, put, raised

U = UUID("0190a0b0-0000-7000-8000-000000000001")
FULL = (U, 2**31 - 1, 2**63 - 1, -(2**15), "é\t'\"\\ 𝄞", -0.5, b"\x00\xff", '{"a": 1e2}', '{"b":[1]}', True)
SCALARS: dict[str, Any] = {
    "u": U,
    "i": -(2**31),
    "t": "x%s%%$1:y",
    "f": 1e308,
    "y": b"",
    "k": "[]",
    "n": False,
    "a": ["p", None, "q,{}\"'"],
    "untyped": 2**62,
}


@procedure
def everything(*rows: tuple[Any, ...]) -> Script[list[Any]]:
    return (yield Each("everything", rows))


def test_every_kind_of_value_comes_back(make: Maker, database: str) -> None:
    store = make(database)
    nothing = (None,) * len(FULL)
    small = (uuid4(), 3, 3, 3, "", 0.0, b"", "1", "2", False)
    # jsonb writes a document anew, json keeps it as it was.
    shown = [(*row[:8], row[8] and row[8].replace(":[", ": ["), row[9]) for row in (FULL, nothing, small)]
    assert store.run(everything(FULL, nothing, small)) == shown
    assert store.run(everything(nothing)) == [nothing]
    assert store.run(everything(FULL))[0][7] == '{"a": 1e2}'


def test_single_values_come_back(make: Maker, database: str) -> None:
    store = make(database)
    expected = (*SCALARS.values(), 3, SCALARS["t"])
    assert store.run(ask("scalars", **SCALARS)) == [expected]
    assert store.run(ask("scalars", **dict.fromkeys(SCALARS))) == [(None,) * 9 + (3, None)]
    assert store.run(ask("scalars", **(SCALARS | {"a": []})))[0][7] == []


def test_a_statement_is_prepared_once_whatever_its_values(database: str) -> None:
    made = Blocking(database)
    columns = list(zip(FULL, (None,) * len(FULL), strict=True))
    for mask in range(40):
        row = tuple(pair[mask >> bit & 1] for bit, pair in enumerate(columns))
        made.run(everything(row, FULL) if mask % 3 else everything(row))
    with made.transaction() as tx:
        prepared = tx.execute("SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%unnest%'").fetchall()
    made.close()
    assert len(prepared) == 1


MISFITS = [
    ("untyped", 2**63, 2**63 - 1),
    ("untyped", -(2**63) - 1, -(2**63)),
    ("i", 2**31, 2**31 - 1),
    ("t", "secret\0", "secret"),
    ("t", "\ud800secret", "\U0001d11esecret"),
    ("u", "secret", U),
    ("n", 1, True),
    ("y", "secret", b"secret"),
    ("f", "secret", 2.5),
    ("k", "secret\0", '"secret"'),
    ("a", ["secret", 1], ["secret", "1"]),
]


def test_a_value_that_does_not_fit_is_refused_without_being_repeated(make: Maker, database: str) -> None:
    store = make(database)
    for param, bad, good in MISFITS:
        refusal = raised(Invalid, store.run, ask("scalars", **(SCALARS | {param: bad})))
        assert "secret" not in "".join([str(refusal), *getattr(refusal, "__notes__", ())])
        assert refusal.__cause__ is None
        assert store.run(ask("scalars", **(SCALARS | {param: good})))[0][list(SCALARS).index(param)] == good


def test_a_document_that_is_none_is_refused_by_the_server_without_being_repeated(make: Maker, database: str) -> None:
    store = make(database)
    refusal = raised(Invalid, store.run, ask("scalars", **(SCALARS | {"k": "secret"})))
    assert refusal.code == "VALUE_REFUSED"
    assert "secret" not in "".join(traceback.format_exception(refusal))
    assert store.run(ask("scalars", **SCALARS))


def test_a_refused_value_leaves_a_transaction_as_it_was(make: Maker, database: str) -> None:
    store = make(database)
    with store.transaction() as tx:
        tx.run(put((uuid4(), "first", 1)))
        with pytest.raises(Invalid):
            tx.run(put((uuid4(), "second", 2**63)))
        tx.run(put((uuid4(), "third", 3)))
    assert store.run(count()) == 2


def test_answers_keep_their_order_and_what_is_empty_is_not_sent(make: Maker, database: str) -> None:
    store = make(database)
    ids = [uuid4() for _ in range(4)]

    @procedure
    def many() -> Script[Any]:
        first = yield [
            Each("note_put", []),
            Each("note_put", [(ids[0], "a", 1), (ids[1], None, 2)]),
            Statement("note_count"),
            Each("note_put", ((ids[2], "c", 3),)),
            Statement("note_count"),
        ]
        nothing = yield []
        empty = yield Each("note_put", [])
        return first, nothing, empty

    first, nothing, empty = store.run(many())
    assert first == [[], [(ids[0],), (ids[1],)], [(2,)], [(ids[2],)], [(3,)]]
    assert nothing == []
    assert empty == []


def test_mistakes_in_a_request_are_noticed() -> None:
    catalogue = Catalogue(STATEMENTS)
    catalogue.query(Statement("counter_lock", {"name": "n"}))
    for wrong in (
        Statement("counter_lock", {}),
        Statement("counter_lock", {"name": "n", "more": 1}),
        Statement("note_put", {"id": U, "label": "x", "amount": 1}),
        Statement("unheard_of"),
        Each("note_put", [(U, "x")]),
        Each("counter_lock", [("n",)]),
    ):
        with pytest.raises(AssertionError):
            catalogue.query(wrong)
    with pytest.raises(AssertionError, match="not in its header"):
        Catalogue(parse("-- name: a(x) once\nSELECT %(y)b"))


class _Word(enum.StrEnum):
    ACME = "acme"


_WIRE: dict[str, Callable[[Any], bytes]] = {
    "uuid": lambda value: value.bytes,
    "int": lambda value: value.to_bytes(4, "big", signed=True),
    "bigint": lambda value: value.to_bytes(8, "big", signed=True),
    "text": str.encode,
    "float": struct.Struct(">d").pack,
    "bytes": bytes,
    "json": str.encode,
    "jsonb": lambda value: b"\1" + value.encode(),
    "bool": lambda value: bytes([value]),
}
_OIDS = {"uuid": 2950, "int": 23, "bigint": 20, "text": 25, "float": 701, "bytes": 17, "json": 114, "jsonb": 3802}
_OIDS["bool"] = 16
_POOLS: dict[str, list[Any]] = {
    "uuid": [U, UUID(int=0), UUID(int=2**128 - 1)],
    "int": [0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, 2**63 - 1, -(2**63)],
    "text": ["", "a", "b", "é", "😀", "x" * 300, "acme", _Word.ACME],
    "float": [0.0, -0.0, 1.5, float("inf"), float("nan")],
    "bytes": [b"", b"\0", b"ab"],
    "json": ["1", "[]", '{"é":1}'],
    "jsonb": ["1", "[]"],
    "bool": [True, False],
}


@given(st.data())
def test_a_column_is_packed_item_by_item_whatever_shortcut_it_takes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*_POOLS]))
    pool = data.draw(st.lists(st.sampled_from([*_POOLS[name], None]), min_size=1, max_size=3))
    column = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=8))
    place = ["uuid", "int", "bigint", "_", "text", "float", "bytes", "json", "jsonb", "bool"].index(name)
    rows = [tuple(value if nth == place else None for nth in range(len(FULL))) for value in column]
    query = Catalogue(STATEMENTS).query(Each("everything", rows))
    assert query.params is not None
    packed = query.params[place]
    items = [
        b"\xff\xff\xff\xff" if one is None else len(raw := _WIRE[name](one)).to_bytes(4, "big") + raw for one in column
    ]
    assert packed[20:] == b"".join(items)
    assert packed[:20] == struct.pack(">iiIii", 1, None in column, _OIDS[name], len(column), 1)


@pytest.mark.parametrize(
    "place,good,bad",
    [
        (0, U, "secret"),
        (1, 1, 2**31),
        (1, 1, "secret"),
        (2, 1, 2**63),
        (2, 1, 1.5),
        (4, "a", "secret\0"),
        (4, "a", "secret\ud800"),
        (4, "a", 7),
        (4, "a", b"secret"),
        (5, 0.5, "secret"),
        (6, b"a", "secret"),
        (7, "1", "1\0"),
        (8, "1", "1\0"),
        (9, True, 1),
    ],
)
def test_one_misfit_in_a_column_is_refused_wherever_it_stands(place: int, good: Any, bad: Any) -> None:
    def column(*values: Any) -> Each:
        return Each("everything", [(None,) * place + (value,) + (None,) * (len(FULL) - place - 1) for value in values])

    catalogue = Catalogue(STATEMENTS)
    for values in ((bad,), (bad, bad), (good, bad), (good, bad, good), (None, bad), (bad, None), (None, good, bad)):
        with pytest.raises(Invalid) as caught:
            catalogue.query(column(*values))
        assert caught.value.code == "VALUE_REFUSED"
        assert "secret" not in str(caught.value)
    assert catalogue.query(column(good, None, good)).params


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=30))
def test_packed_arrays_are_what_the_driver_reads(numbers: list[int | None]) -> None:
    from psycopg import pq
    from psycopg.adapt import Transformer

    from tenure.stores.postgres.values import adapters

    (query,) = [Catalogue(STATEMENTS).query(Each("everything", [(None, None, n) + (None,) * 7 for n in numbers]))]
    assert query.params is not None
    read = Transformer(adapters).get_loader(1016, pq.Format.BINARY).load(bytes(query.params[2]))
    assert read == numbers
