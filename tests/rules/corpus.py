"""
Payload values that must be accepted and come back as they were, and values that must be refused, with code and path.

Every value is made by a function: some are too odd to exist when this file is imported, and no test may see what
another has changed.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import pathlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Flag(enum.IntFlag):
    ON = 1


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Bag(dict[str, Any]):
    pass


class Row(list[Any]):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Record:
    x: int = 1


def nested(depth: int, core: Any = 0) -> Any:
    """Put `depth` lists around a value."""
    for _ in range(depth):
        core = [core]
    return core


def nested_objects(depth: int, core: Any = 0) -> Any:
    for _ in range(depth):
        core = {"a": core}
    return core


def _ring() -> Any:
    ring: list[Any] = [1]
    ring.append(ring)
    return ring


def _object_ring() -> Any:
    ring: dict[str, Any] = {"a": [1, {}]}
    ring["a"][1]["back"] = ring
    return ring


def _wide_ring() -> Any:
    ring: list[Any] = []
    ring.extend([ring] * 50)
    return ring


def _endless() -> Any:
    """Give a small value whose text would have 10^60 members."""
    value: Any = 1
    for _ in range(60):
        value = [value] * 10
    return value


def _shared() -> Any:
    part = {"a": [1, 2]}
    return [part, part, {"again": part}]


ACCEPTED: dict[str, Callable[[], Any]] = {
    # Scalars.
    "null": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "zero": lambda: 0,
    "one": lambda: 1,
    "minus_one": lambda: -1,
    "float_zero": lambda: 0.0,
    "negative_zero": lambda: -0.0,
    "one_float": lambda: 1.0,
    "half": lambda: 0.5,
    "tenth": lambda: 0.1,
    "third": lambda: 1 / 3,
    "sum_of_tenths": lambda: 0.1 + 0.2,
    "hundred_by_exponent": lambda: 1e2,
    "ten_thousandth": lambda: 1e-4,
    "below_ten_thousandth": lambda: 9.999e-5,
    "millionth": lambda: 1e-6,
    "below_millionth": lambda: 1e-7,
    "repr_exponent_starts": lambda: 1e16,
    "repr_exponent_before": lambda: 9999999999999998.0,
    "es_exponent_before": lambda: 1e20,
    "es_exponent_starts": lambda: 1e21,
    "es_exponent_digits": lambda: 1.2345678901234567e21,
    "largest_float": lambda: 1.7976931348623157e308,
    "smallest_float": lambda: 5e-324,
    "smallest_normal": lambda: 2.2250738585072014e-308,
    "negative_smallest": lambda: -5e-324,
    "safe_integer": lambda: 2**53 - 1,
    "beyond_safe": lambda: 2**53,
    "beyond_safe_odd": lambda: 2**53 + 1,
    "negative_beyond_safe": lambda: -(2**53) - 1,
    "float_beyond_safe": lambda: float(2**53),
    "int64_max": lambda: 2**63 - 1,
    "int64_over": lambda: 2**63,
    "int64_min": lambda: -(2**63),
    "int64_under": lambda: -(2**63) - 1,
    "uint64_over": lambda: 2**64,
    "googol": lambda: 10**100,
    "ten_to_the_400": lambda: 10**400,
    "six_hundred_digits": lambda: 10**600 - 1,
    "digits_at_the_limit": lambda: 10**4000 - 1,
    "negative_digits_at_the_limit": lambda: -(10**4000) + 1,
    # Text.
    "empty_text": lambda: "",
    "space": lambda: " ",
    "quote": lambda: '"',
    "backslash": lambda: "\\",
    "solidus": lambda: "/",
    "control_characters": lambda: "".join(map(chr, range(1, 32))),
    "delete": lambda: "\x7f",
    "high_controls": lambda: "\x80\x9f",
    "byte_order_mark": lambda: "\ufeffa",
    "line_separators": lambda: "\u2028\u2029",
    "noncharacter": lambda: "\ufffe\uffff",
    "last_before_surrogates": lambda: "\ud7ff",
    "private_use": lambda: "\ue000",
    "composed": lambda: "\u00e9",
    "decomposed": lambda: "e\u0301",
    "emoji": lambda: "\U0001f600",
    "emoji_family": lambda: "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "last_character": lambda: "\U0010ffff",
    "right_to_left": lambda: "\u202eabc\u05d0\u05d1",
    "zalgo": lambda: "a" + "\u0300" * 100,
    "markup": lambda: "<script>alert(1)</script>",
    "sql": lambda: "'; DROP TABLE job; --",
    "template": lambda: "{{7*7}}${7*7}%s%(x)s",
    "terminal": lambda: "\x1b[31mred\x1b[0m",
    "escape_as_text": lambda: "\\u0000\\ud800",
    "nan_as_text": lambda: "NaN",
    "number_as_text": lambda: "1E400",
    "long_text": lambda: "x" * 100_000,
    "long_wide_text": lambda: "\U0001f600" * 20_000,
    # Containers.
    "empty_list": list,
    "empty_object": dict,
    "empty_in_empty": lambda: {"a": {}, "b": [], "c": [[], {}]},
    "tuple": lambda: (1, ("a", ()), [2]),
    "mixed": lambda: [None, True, 1, 1.5, "a", [], {}],
    "equal_numbers": lambda: [1, 1.0, True, "1"],
    "shared_parts": _shared,
    "depth_at_the_limit": lambda: nested(100),
    "object_depth_at_the_limit": lambda: nested_objects(100),
    "empty_at_the_limit": lambda: nested(99, {}),
    "thousand_members": lambda: {f"k{i}": i for i in range(1000)},
    "thousand_items": lambda: list(range(1000)),
    "many_brackets": lambda: [[] for _ in range(5000)],
    "brackets_in_text": lambda: ["[" * 500, '{"' * 500, "]" * 500, '\\"[' * 500],
    # Keys.
    "empty_key": lambda: {"": 1},
    "key_order": lambda: {"b": 1, "a": 2, "C": 3, "1": 4},
    "numeric_keys": lambda: {"10": 1, "9": 2, "01": 3},
    "key_with_quote": lambda: {'a"b': 1, "a\\b": 2, "a\nb": 3},
    "key_with_dot": lambda: {"a.b": 1, "a": {"b": 2}},
    "keys_of_javascript": lambda: {"__proto__": {"x": 1}, "constructor": 2, "toString": 3},
    "composed_keys": lambda: {"\u00e9": 1, "e\u0301": 2},
    "keys_around_surrogates": lambda: {"\ud7ff": 1, "\ue000": 2, "\uffff": 3, "\U00010000": 4, "\U0010ffff": 5},
    "wide_key_and_big_integer": lambda: {"\U0001f600": 2**63, "\ufb33": 1.0, "a": 1e21},
    "big_integer_and_floats": lambda: [2**53, 1.0, -0.0, 1e-7, {"x": 10**30}],
    "rfc_keys": lambda: {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7},
    "prefix_keys": lambda: {"a": 1, "aa": 2, "a\U0001f600": 3, "a\ue000": 4},
    "typed_json_lookalike": lambda: {"__type__": "os.system", "args": ["true"]},
    "class_lookalike": lambda: {"py/object": "os.system", "$ref": "#", "@class": "x"},
    "nested_reserved_words": lambda: {"data": {"execution": 1, "governance": 2}},
    # What people send.
    "order": lambda: {"quote": 17, "to": "a@b.example", "total": 12.5, "lines": [{"sku": "x", "n": 2}], "note": None},
    "ids": lambda: {"id": 9007199254740993, "n": 9223372036854775808},
    "coordinates": lambda: {"lat": 52.520008, "lon": 13.404954, "alt": -1.5e-10},
    "tool_call": lambda: {"tool": "charge", "arguments": '{"amount": 10}', "temperature": 0.7},
}

# A character given as two surrogates is the character; what comes back is the second value.
MENDED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "text": lambda: ("\ud83d\ude00", "\U0001f600"),
    "inside_text": lambda: (["a\ud83d\ude00b\ud83d\ude00"], ["a\U0001f600b\U0001f600"]),
    "beside_real_one": lambda: ("\U0001f600\ud83d\ude00", "\U0001f600\U0001f600"),
    "key": lambda: ({"\ud83d\ude00": 1, "\ufb33": 1.0}, {"\U0001f600": 1, "\ufb33": 1.0}),
    "with_big_integer": lambda: ({"\ud83d\ude00": 2**80, "b": 1e21}, {"\U0001f600": 2**80, "b": 1e21}),
    "with_long_integer": lambda: (["\ud83d\ude00", 10**700], ["\U0001f600", 10**700]),
}

REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    # Numbers.
    "nan": (lambda: {"v": float("nan")}, "NON_FINITE_NUMBER", "$.v"),
    "infinity": (lambda: {"v": float("inf")}, "NON_FINITE_NUMBER", "$.v"),
    "negative_infinity": (lambda: {"v": float("-inf")}, "NON_FINITE_NUMBER", "$.v"),
    "overflowing_literal": (lambda: {"v": 1e400}, "NON_FINITE_NUMBER", "$.v"),
    "bare_nan": (lambda: float("nan"), "NON_FINITE_NUMBER", "$ "),
    "nan_in_list": (lambda: {"v": [1, [float("nan")]]}, "NON_FINITE_NUMBER", "$.v[1][0]"),
    "nan_in_tuple": (lambda: {"v": (1, float("nan"))}, "NON_FINITE_NUMBER", "$.v[1]"),
    "nan_in_the_deep": (lambda: nested(100, float("nan")), "NON_FINITE_NUMBER", "$[0][0]"),
    "digits_over_the_limit": (lambda: {"n": [10**4000]}, "NUMBER_TOO_LONG", "$.n[0]"),
    "negative_digits_over_the_limit": (lambda: {"n": -(10**4000)}, "NUMBER_TOO_LONG", "$.n"),
    "five_thousand_digits": (lambda: {"n": 10**4999}, "NUMBER_TOO_LONG", "$.n"),
    "million_digits": (lambda: {"n": 1 << 3_400_000}, "NUMBER_TOO_LONG", "$.n"),
    # Text.
    "nul": (lambda: {"x": "a\0b"}, "NUL_CHARACTER", "$.x"),
    "nul_alone": (lambda: ["\0"], "NUL_CHARACTER", "$[0]"),
    "nul_in_key": (lambda: {"o": {"a\0b": 1}}, "NUL_CHARACTER", '$.o["a\\u0000b"]'),
    "nul_in_wide_key": (lambda: {"\u00e9\0": 1}, "NUL_CHARACTER", '$["\\u00e9\\u0000"]'),
    "high_surrogate": (lambda: {"t": "\ud83d"}, "INVALID_UNICODE", "$.t"),
    "low_surrogate": (lambda: {"t": "\ude00"}, "INVALID_UNICODE", "$.t"),
    "surrogates_reversed": (lambda: {"t": "\ude00\ud83d"}, "INVALID_UNICODE", "$.t"),
    "surrogate_after_emoji": (lambda: {"t": "\U0001f600\ud83d"}, "INVALID_UNICODE", "$.t"),
    "three_surrogates": (lambda: {"t": "\ud83d\ude00\ude00"}, "INVALID_UNICODE", "$.t"),
    "halves_side_by_side": (lambda: ["\ud83d", "\ude00"], "INVALID_UNICODE", "$[0]"),
    "surrogate_in_key": (lambda: {"a": {"\ud83d": 1}}, "INVALID_UNICODE", '$.a["\\ud83d"]'),
    "surrogateescape": (lambda: [b"\xff".decode("utf-8", "surrogateescape")], "INVALID_UNICODE", "$[0]"),
    # Keys.
    "integer_key": (lambda: {"a": {1: 2}}, "NON_STRING_KEY", "$.a "),
    "integer_key_beside_text": (lambda: {1: "a", "1": "b"}, "NON_STRING_KEY", "$ "),
    "null_key": (lambda: {None: 1}, "NON_STRING_KEY", "$ "),
    "boolean_key": (lambda: [{True: 1}], "NON_STRING_KEY", "$[0] "),
    "float_key": (lambda: {1.5: 1}, "NON_STRING_KEY", "$ "),
    "bytes_key": (lambda: {b"a": 1}, "NON_STRING_KEY", "$ "),
    "tuple_key": (lambda: {("a", "b"): 1}, "NON_STRING_KEY", "$ "),
    "enum_key": (lambda: {Colour.RED: 1}, "NON_STRING_KEY", "$ "),
    "subclass_key": (lambda: {"x": [{Text("a"): 1}]}, "NON_STRING_KEY", "$.x[0] "),
    "two_spellings_of_a_key": (
        lambda: {"\U0001f600": 1, "\ud83d\ude00": 2},
        "DUPLICATE_KEY",
        '$["\\ud83d\\ude00"]',
    ),
    "two_half_mended_keys": (
        lambda: {"\U0001f600\ud83d\ude00": 1, "\ud83d\ude00\U0001f600": 2},
        "DUPLICATE_KEY",
        '$["\\ud83d\\ude00\\ud83d\\ude00"]',
    ),
    # Types.
    "datetime": (lambda: {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, "UNSUPPORTED_TYPE", "$.at"),
    "date": (lambda: {"at": dt.date(2026, 1, 1)}, "UNSUPPORTED_TYPE", "$.at"),
    "timedelta": (lambda: {"d": dt.timedelta(1)}, "UNSUPPORTED_TYPE", "$.d"),
    "decimal": (lambda: {"amt": decimal.Decimal("1.10")}, "UNSUPPORTED_TYPE", "$.amt"),
    "fraction": (lambda: {"f": fractions.Fraction(1, 3)}, "UNSUPPORTED_TYPE", "$.f"),
    "bytes": (lambda: {"b": b"\x00\xff"}, "UNSUPPORTED_TYPE", "$.b"),
    "bytearray": (lambda: {"b": bytearray(b"a")}, "UNSUPPORTED_TYPE", "$.b"),
    "uuid": (lambda: {"u": uuid.UUID(int=1)}, "UNSUPPORTED_TYPE", "$.u"),
    "path": (lambda: {"p": pathlib.PurePosixPath("/a")}, "UNSUPPORTED_TYPE", "$.p"),
    "set": (lambda: {"s": {1, 2}}, "UNSUPPORTED_TYPE", "$.s"),
    "frozenset": (lambda: [frozenset()], "UNSUPPORTED_TYPE", "$[0]"),
    "complex": (lambda: [1j], "UNSUPPORTED_TYPE", "$[0]"),
    "range": (lambda: {"r": range(3)}, "UNSUPPORTED_TYPE", "$.r"),
    "generator": (lambda: {"g": (i for i in ())}, "UNSUPPORTED_TYPE", "$.g"),
    "object": (lambda: {"o": object()}, "UNSUPPORTED_TYPE", "$.o"),
    "class": (lambda: {"o": int}, "UNSUPPORTED_TYPE", "$.o"),
    "dataclass": (lambda: {"o": Record()}, "UNSUPPORTED_TYPE", "$.o"),
    "ellipsis": (lambda: [...], "UNSUPPORTED_TYPE", "$[0]"),
    "text_enum": (lambda: {"c": Colour.RED}, "UNSUPPORTED_TYPE", "$.c"),
    "integer_enum": (lambda: {"c": Level.LOW}, "UNSUPPORTED_TYPE", "$.c"),
    "integer_flag": (lambda: {"c": Flag.ON}, "UNSUPPORTED_TYPE", "$.c"),
    "text_subclass": (lambda: {"c": Text("a")}, "UNSUPPORTED_TYPE", "$.c"),
    "integer_subclass": (lambda: {"c": Whole(1)}, "UNSUPPORTED_TYPE", "$.c"),
    "float_subclass": (lambda: {"c": Real(1.5)}, "UNSUPPORTED_TYPE", "$.c"),
    "dict_subclass": (lambda: {"c": Bag(a=1)}, "UNSUPPORTED_TYPE", "$.c"),
    "ordered_dict": (lambda: {"c": collections.OrderedDict(a=1)}, "UNSUPPORTED_TYPE", "$.c"),
    "list_subclass": (lambda: {"c": Row([1])}, "UNSUPPORTED_TYPE", "$.c"),
    "named_tuple": (lambda: {"c": Point(1, 2)}, "UNSUPPORTED_TYPE", "$.c"),
    "deque": (lambda: {"c": collections.deque([1])}, "UNSUPPORTED_TYPE", "$.c"),
    # Shape.
    "depth_over_the_limit": (lambda: nested(101), "TOO_DEEP", "$[0][0]"),
    "empty_over_the_limit": (lambda: nested(100, {}), "TOO_DEEP", "$[0][0]"),
    "object_depth_over_the_limit": (lambda: nested_objects(101), "TOO_DEEP", "$.a.a"),
    "depth_of_a_bomb": (lambda: nested(200_000), "TOO_DEEP", "$[0][0]"),
    "depth_beside_good_values": (lambda: {"ok": 1, "v": [2, nested(99)]}, "TOO_DEEP", "$.v[1][0]"),
    "ring": (_ring, "CYCLE", "$[1] "),
    "object_ring": (_object_ring, "CYCLE", "$.a[1].back "),
    "wide_ring": (_wide_ring, "CYCLE", "$[0] "),
    "endless": (_endless, "PAYLOAD_TOO_LARGE", "$ "),
    "too_large_text": (lambda: {"t": "x" * (1 << 20)}, "PAYLOAD_TOO_LARGE", "$ "),
    "too_many_items": (lambda: [0] * (1 << 20), "PAYLOAD_TOO_LARGE", "$ "),
    # Paths.
    "odd_key_in_path": (lambda: {'a "b"': {"x": b""}}, "UNSUPPORTED_TYPE", '$["a \\"b\\""].x'),
    "digit_key_in_path": (lambda: {"1": [b""]}, "UNSUPPORTED_TYPE", '$["1"][0]'),
    "long_key_in_path": (lambda: {"k" * 1000: b""}, "UNSUPPORTED_TYPE", '$["' + "k" * 40 + '..."]'),
    "wide_key_in_path": (lambda: {"\u00e9": b""}, "UNSUPPORTED_TYPE", '$["\\u00e9"]'),
}

# Texts from outside: refused with this code, and with this in the message.
REFUSED_TEXTS: dict[str, tuple[str | bytes, str, str]] = {
    "nan": ('{"v": NaN}', "NON_FINITE_NUMBER", "$.v "),
    "infinity": (b'{"v": Infinity}', "NON_FINITE_NUMBER", "$.v "),
    "negative_infinity": ('{"v": [-Infinity]}', "NON_FINITE_NUMBER", "$.v[0] "),
    "overflow": ('{"v": 1E400}', "NON_FINITE_NUMBER", "$.v "),
    "negative_overflow": ('{"v": -1e999}', "NON_FINITE_NUMBER", "$.v "),
    "long_overflow": ('{"v": ' + "9" * 400 + ".0}", "NON_FINITE_NUMBER", "$.v "),
    "half_character": ('{"t": "\\ud83d"}', "INVALID_UNICODE", "$.t "),
    "half_character_in_key": ('{"\\ude00": 1}', "INVALID_UNICODE", '$["\\ude00"] '),
    "halves_reversed": ('{"t": "\\ude00\\ud83d"}', "INVALID_UNICODE", "$.t "),
    "raw_half_character": ('{"t": "\ud83d"}', "INVALID_UNICODE", "$.t "),
    "nul": ('{"t": "a\\u0000b"}', "NUL_CHARACTER", "$.t "),
    "nul_in_key": ('{"\\u0000": 1}', "NUL_CHARACTER", '$["\\u0000"] '),
    "raw_nul": ('{"t": "a\0b"}', "NOT_JSON", "line 1"),
    "raw_newline": ('{"t": "a\nb"}', "NOT_JSON", "line 1"),
    "repeated_key": ('{"a": [{"b": 1, "c": 2, "b": 3}]}', "DUPLICATE_KEY", "$.a[0].b "),
    "repeated_key_by_escape": ('{"a": 1, "\\u0061": 2}', "DUPLICATE_KEY", "$.a "),
    "repeated_key_by_surrogates": ('{"\U0001f600": 1, "\\ud83d\\ude00": 2}', "DUPLICATE_KEY", '$["'),
    "repeated_key_by_raw_surrogates": ('{"\U0001f600": 1, "\ud83d\ude00": 2}', "DUPLICATE_KEY", '$["'),
    "repeated_reserved_key": ('{"execution": 1, "execution": 2}', "DUPLICATE_KEY", "$.execution "),
    "long_integer": ('{"n": ' + "1" * 4001 + "}", "NUMBER_TOO_LONG", "$.n "),
    "negative_long_integer": ('{"n": [-' + "1" * 5000 + "]}", "NUMBER_TOO_LONG", "$.n[0] "),
    "million_digits": ("1" * 1_000_000, "NUMBER_TOO_LONG", "$ "),
    "lists_without_end": ("[" * 200_000, "TOO_DEEP", "$ "),
    "closed_lists": ("[" * 101 + "]" * 101, "TOO_DEEP", "$ "),
    "objects_without_end": ('{"a":' * 150_000, "TOO_DEEP", "$ "),
    "depth_after_text": ('["\\"[[[", ' + "[" * 100, "TOO_DEEP", "$ "),
    "depth_after_width": ("[" + "[]," * 1000 + "[" * 100, "TOO_DEEP", "$ "),
    "too_large": ('"' + "x" * (1 << 20) + '"', "PAYLOAD_TOO_LARGE", "$ "),
    "too_large_bytes": (b" " * ((1 << 20) + 1), "PAYLOAD_TOO_LARGE", "$ "),
    "too_large_wide": ('"' + "\U0001f600" * (1 << 18) + '"', "PAYLOAD_TOO_LARGE", "$ "),
    "not_utf8": (b'{"a": "\xff"}', "INVALID_UNICODE", "byte 7"),
    "overlong_utf8": (b'"\xc0\x80"', "INVALID_UNICODE", "byte 1"),
    "surrogate_in_utf8": (b'"\xed\xa0\xbd"', "INVALID_UNICODE", "byte 1"),
    "utf16": ('{"a": 1}'.encode("utf-16"), "INVALID_UNICODE", "byte 0"),
    "byte_order_mark": ("\ufeff{}", "NOT_JSON", "line 1, column 1"),
    "empty": ("", "NOT_JSON", "line 1, column 1"),
    "blank": (b" \n ", "NOT_JSON", "line 2"),
    "two_values": ("1 2", "NOT_JSON", "column 3"),
    "unfinished": ('{"a": ', "NOT_JSON", "column 7"),
    "unfinished_text": ('"abc', "NOT_JSON", "column 1"),
    "many_quotes_unfinished": ('["' + '\\"' * 200_000 + "[" * 200, "NOT_JSON", "column 2"),
    "trailing_comma": ("[1,]", "NOT_JSON", "line 1"),
    "single_quotes": ("{'a': 1}", "NOT_JSON", "column 2"),
    "bare_key": ("{a: 1}", "NOT_JSON", "column 2"),
    "comment": ("/* */ 1", "NOT_JSON", "column 1"),
    "leading_zero": ("01", "NOT_JSON", "column 2"),
    "plus": ("+1", "NOT_JSON", "column 1"),
    "bare_point": ("1.", "NOT_JSON", "column 2"),
    "hexadecimal": ("0x10", "NOT_JSON", "column 2"),
    "arabic_digits": ("\u0661", "NOT_JSON", "column 1"),
    "python_words": ("None", "NOT_JSON", "column 1"),
    "bad_escape": ('"\\x41"', "NOT_JSON", "line 1"),
}


def same(left: Any, right: Any) -> bool:
    """Say whether two values are equal in type too, so that 1, 1.0 and True differ, and 0.0 and -0.0 do."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return repr(left) == repr(right) if isinstance(left, float) else bool(left == right)
