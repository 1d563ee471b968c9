"""
Statements and their values in PostgreSQL's binary form.

The type of a parameter is read from the cast behind it in the SQL, `%(ids)b::uuid[]`, never from the value: a driver
that looks at values sends 3 as a smallint and 70000 as an integer, and None without a type, so that one statement of
twenty parameters would be prepared in thousands of variants. A parameter without any cast is typed by its value, whole
numbers always as bigint.

Results come in binary as well. `json` and `jsonb` come as the text that was stored, for a parser of the caller's own:
what a parser does with 1e400 is not a store's business.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import pq
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.postgres import register_default_adapters, types
from psycopg.types.array import register_all_arrays

from tenure.errors import Invalid
from tenure.stores.statements import Named
from tenure.yields import Each, Statement


class Query(NamedTuple):
    """
    One statement as it goes to the server.

    Attributes:
        name: For error texts.
        params: Packed values for $1, $2, ..., or None where the text takes none.
        script: Several statements in one text; cannot be part of a round trip with others.
        spare: What follows a commit and may fail: its error is nobody's.
        given, order: The values as they were given, and their names in the order of $1, $2, ... where they have names.
    """

    name: str
    text: bytes
    params: Sequence[Any] | None = None
    script: bool = False
    spare: bool = False
    given: Any = ()
    order: Sequence[str] = ()

    def values(self) -> list[Any]:
        """Give the values as they were given, for a driver that packs them itself."""
        return [self.given[name] for name in self.order] if self.order else list(self.given)


class _Packed(bytes):
    """
    A value in binary form; each type has a class of its own.

    Attributes:
        oid: The type's number on the wire.
    """

    __slots__ = ()
    oid = 0


class _Null:
    """NULL with a type."""

    __slots__ = ()
    oid = 0


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    oid: int
    pack: Callable[[Any], bytes]
    pack_many: Callable[[Sequence[Any]], list[bytes]]
    packed: type[_Packed]
    null: _Null
    packed_array: type[_Packed]
    null_array: _Null


_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
_LENGTH = struct.Struct(">i")
_ARRAY = struct.Struct(">iiIii")
_NULL_ITEM = _LENGTH.pack(-1)


def _pack_uuid(value: UUID) -> bytes:
    return value.int.to_bytes(16, "big")


def _pack_uuids(values: Sequence[UUID]) -> list[bytes]:
    return [value.int.to_bytes(16, "big") for value in values]


def _pack_text(value: str) -> bytes:
    data = value.encode()
    if b"\0" in data:
        raise ValueError("a NUL character")
    return data


def _pack_texts(values: Sequence[str]) -> list[bytes]:
    # As _pack_text for each, with one search for all.
    packed = [*map(str.encode, values)]
    if b"\0" in b"".join(packed):
        raise ValueError("a NUL character")
    return packed


def _pack_jsonb(value: str) -> bytes:
    return b"\1" + _pack_text(value)


def _pack_bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("not bytes")
    return value


def _pack_bool(value: bool) -> bytes:  # noqa: FBT001 - a value, not a switch
    if not isinstance(value, bool):
        raise TypeError("not a bool")
    return b"\1" if value else b"\0"


# Filled below and then only read. Our own map, because a caller may have changed how the driver reads and writes types,
# for everything or on the connection that we join.
adapters = AdaptersMap(types=types)
register_default_adapters(adapters)
register_all_arrays(adapters)


def _holder(base: type, name: str, oid: int, dump: Callable[[Any, Any], Any]) -> type:
    holder = type(name, (base,), {"__slots__": (), "oid": oid})
    dumper: type[Dumper] = type(name, (Dumper,), {"oid": oid, "format": pq.Format.BINARY, "dump": dump})
    adapters.register_dumper(holder, dumper)
    return holder


def _type(
    name: str,
    oid: int,
    array_oid: int,
    pack: Callable[[Any], bytes],
    pack_many: Callable[[Sequence[Any]], list[bytes]] | None = None,
) -> _Type:
    def as_it_is(_: Dumper, value: bytes) -> bytes:
        return value

    def nothing(_: Dumper, __: _Null) -> None:
        return None

    return _Type(
        name,
        oid,
        pack,
        pack_many or (lambda values: [*map(pack, values)]),
        _holder(_Packed, name, oid, as_it_is),
        _holder(_Null, f"{name}_null", oid, nothing)(),
        _holder(_Packed, f"{name}_array", array_oid, as_it_is),
        _holder(_Null, f"{name}_array_null", array_oid, nothing)(),
    )


# The numbers are fixed in PostgreSQL's catalogue (pg_type).
_UUID = _type("uuid", 2950, 2951, _pack_uuid, _pack_uuids)
_SMALLINT = _type("smallint", 21, 1005, _SHORT.pack)
_INTEGER = _type("integer", 23, 1007, _INT.pack)
_BIGINT = _type("bigint", 20, 1016, _LONG.pack)
_TEXT = _type("text", 25, 1009, _pack_text, _pack_texts)
_BOOLEAN = _type("boolean", 16, 1000, _pack_bool)
_FLOAT = _type("double precision", 701, 1022, _DOUBLE.pack)
_BYTEA = _type("bytea", 17, 1001, _pack_bytes)
_JSON = _type("json", 114, 199, _pack_text, _pack_texts)
_JSONB = _type("jsonb", 3802, 3807, _pack_jsonb)

_BY_CAST = {
    **{one.name: one for one in (_UUID, _SMALLINT, _INTEGER, _BIGINT, _TEXT, _BOOLEAN, _FLOAT, _BYTEA, _JSON, _JSONB)},
    "int": _INTEGER,
    "int2": _SMALLINT,
    "int4": _INTEGER,
    "int8": _BIGINT,
    "bool": _BOOLEAN,
    "float8": _FLOAT,
}
_BY_VALUE: dict[type, _Type] = {
    UUID: _UUID,
    int: _BIGINT,
    str: _TEXT,
    bool: _BOOLEAN,
    float: _FLOAT,
    bytes: _BYTEA,
}


class _TextLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class _JsonbLoader(_TextLoader):
    def load(self, data: Any) -> str:
        return bytes(data)[1:].decode()  # the first byte is the format's version


adapters.register_loader("json", _TextLoader)
adapters.register_loader("jsonb", _JsonbLoader)


def _one(kind: _Type, value: Any) -> _Packed | _Null:
    return kind.null if value is None else kind.packed(kind.pack(value))


def _array(kind: _Type, values: Any) -> _Packed | _Null:
    if values is None:
        return kind.null_array
    if not isinstance(values, list | tuple):
        values = tuple(values)
    if not values:
        return kind.packed_array(_ARRAY.pack(0, 0, kind.oid, 0, 1)[:12])
    has_null, items = _items(kind, values)
    return kind.packed_array(_ARRAY.pack(1, has_null, kind.oid, len(values), 1) + items)


def _items(kind: _Type, values: Sequence[Any]) -> tuple[bool, bytes]:
    """
    Pack the items of an array, each behind its length; say whether one is NULL.

    A batch is sent as one array for each column, tens of them for every job: item by item they took a fifth of the
    processor time of a bulk creation (14 us a job; 3 us now). Most columns hold one value again and again.
    """
    first = values[0]
    if len(values) == 1:
        return first is None, _item(kind, first)
    # The last one first: ids compare slowly. With the types, because True is equal to 1; and not for floats, where
    # -0.0 is equal to 0.0.
    if (
        first == values[-1]
        and kind is not _FLOAT
        and values.count(first) == len(values)
        and len(set(map(type, values))) == 1
    ):
        return first is None, _item(kind, first) * len(values)
    try:
        packed = kind.pack_many(values)
    except (TypeError, AttributeError, struct.error):
        if None not in values:
            raise
        return True, b"".join([_item(kind, value) for value in values])
    sizes = [*map(len, packed)]
    if sizes.count(sizes[0]) == len(sizes):
        # Of one size, as ids, numbers and digests are.
        size = _LENGTH.pack(sizes[0])
        return False, size + size.join(packed)
    return False, b"".join(itertools.chain.from_iterable(zip(map(_LENGTH.pack, sizes), packed, strict=True)))


def _item(kind: _Type, value: Any) -> bytes:
    if value is None:
        return _NULL_ITEM
    data = kind.pack(value)
    return _LENGTH.pack(len(data)) + data


def _by_value(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        first = next((one for one in value if one is not None), "")
        return _array(_BY_VALUE[type(first)], value)
    return _one(_BY_VALUE[type(value)], value)


@dataclass(frozen=True, slots=True)
class _Slot:
    param: str
    pack: Callable[[Any], Any]


_PLACE = re.compile(
    r"%\((?P<param>\w+)\)[bst]"
    r"(?:\s*::\s*(?P<type>double\s+precision|[a-z_][a-z_0-9]*)(?P<array>\[\])?)?"
    r"|%%",
    re.IGNORECASE,
)


class _Compiled:
    """A named statement with numbered parameters, each packed for the type that its cast names."""

    __slots__ = ("named", "order", "slots", "text")

    def __init__(self, named: Named) -> None:
        self.named = named
        order: list[str] = []
        casts: dict[str, Callable[[Any], Any]] = {}

        def number(place: re.Match[str]) -> str:
            param = place["param"]
            if param is None:
                return "%"
            assert param in named.params, f"statement {named.name} uses {param}, which is not in its header"
            if param not in order:
                order.append(param)
            cast = " ".join((place["type"] or "").lower().split())
            if cast in _BY_CAST:
                casts.setdefault(param, _packer(_BY_CAST[cast], array=bool(place["array"]) or named.each))
            written = place[0]
            return f"${order.index(param) + 1}" + written[written.index(")") + 2 :]

        self.text = _PLACE.sub(number, named.sql).encode()
        untyped = _by_value
        self.slots = tuple(_Slot(param, casts.get(param, untyped)) for param in order)
        self.order = tuple(order)

    def query(self, request: Statement | Each) -> Query:
        named = self.named
        assert named.each == isinstance(request, Each), f"{named.name} was asked in the wrong way, once or each"
        values: Mapping[str, Any]
        if isinstance(request, Each):
            assert set(map(len, request.rows)) <= {len(named.params)}, f"{named.name} takes {named.params}"
            columns = list(zip(*request.rows, strict=True))
            values = dict(zip(named.params, columns, strict=True))
        else:
            values = request.params
            assert values.keys() == set(named.params), f"statement {named.name} takes {named.params}"
        packed = []
        for slot in self.slots:
            try:
                packed.append(slot.pack(values[slot.param]))
            except (ValueError, TypeError, AttributeError, KeyError, OverflowError, struct.error):
                raise self._refuse(slot.param) from None
        return Query(named.name, self.text, packed, given=values, order=self.order)

    def _refuse(self, param: str) -> Invalid:
        # The value itself is not repeated: it may be a payload.
        return Invalid(
            f"a value for {param} cannot be stored: whole numbers have at most 64 bits (32 where the column says so), "
            f"texts are valid Unicode without NUL (statement {self.named.name})",
            code="VALUE_REFUSED",
        )


def _packer(kind: _Type, *, array: bool) -> Callable[[Any], Any]:
    if array:
        return lambda values: _array(kind, values)
    return lambda value: _one(kind, value)


class Catalogue:
    """All statements of a store, ready to be filled with values."""

    def __init__(self, statements: Mapping[str, Named]) -> None:
        self._compiled = {name: _Compiled(named) for name, named in statements.items()}

    def query(self, request: Statement | Each) -> Query:
        """
        Turn a request into a query.

        Raises:
            Invalid: A value does not fit the type.
        """
        compiled = self._compiled.get(request.name)
        assert compiled is not None, f"no statement is called {request.name}"
        return compiled.query(request)


def plain(name: str, text: str, *values: Any) -> Query:
    """Make a query of the store's own, its values typed as they are."""
    return Query(name, text.encode(), [_by_value(value) for value in values], given=values)


def script(name: str, text: str) -> Query:
    """Make a query of several statements."""
    return Query(name, text.encode(), None, script=True)
