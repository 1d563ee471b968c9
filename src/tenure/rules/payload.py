"""
What may be stored as JSON, and how it is written and read back.

Theory of operation. A payload, result, request or receipt is a plain JSON value: dict, list, str, int, float, bool or
None, and a tuple, which is written as a list. Only these very types pass: a subclass (an enum's member, an ordered
dict) writes itself in a way that reading does not undo. Everything that some database, browser or other language would
refuse or change is refused here, before anything is written, with a code and the path inside the value:

    NON_FINITE_NUMBER  NUL_CHARACTER  INVALID_UNICODE  NON_STRING_KEY  DUPLICATE_KEY  UNSUPPORTED_TYPE
    NUMBER_TOO_LONG  TOO_DEEP  CYCLE  PAYLOAD_TOO_LARGE

`survey` looks at a value twice at most, level by level and without recursion. The first look keeps no paths and ends at
the first thing that is not plainly right; only then the second goes the same way again, keeps the paths and says what
is wrong. So a good value pays nothing for the report a bad one gets. Both are bounded: a container of itself, and a
small value that refers to its parts so often that its text would never end, are refused in little time.

The text that is stored keeps what was sent: order of keys, all digits, floats as Python writes them. One thing is
mended: two surrogates in a `str` that together are one character are written as that character, because that is what
the same escapes in a JSON text mean.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeAlias

from tenure.errors import Invalid
from tenure.rules.outcome import Json

# Written only by typed inputs; a raw payload that has one of them is refused (rules/envelope.py).
RESERVED_KEYS = frozenset({"execution", "governance"})

DEPTH_MAX = 100  # containers around a value, the outermost counted
DIGITS_MAX = 4000  # of an integer; Python itself stops at 4,300
PAYLOAD_BYTES_MAX = 1 << 20
RESULT_BYTES_MAX = 1 << 20
ERROR_TEXT_BYTES_MAX = 8192

# What `survey` found in a good value, for those that choose a faster or a slower way to write it.
ODD_FLOAT = 1  # Python and RFC 8785 write this float differently (1.0 and 1)
WIDE_KEY = 2  # a key beyond U+D7FF: code points and UTF-16 code units may sort differently
BIG_INTEGER = 4  # beyond +-(2^53 - 1)
LONG_INTEGER = 8  # so long that a lowered limit of the interpreter could refuse to write it
SPLIT_CHARACTER = 16  # a character given as two surrogates

_UNFIT, _TOO_LARGE = -1, -2
_STEPS_MAX = 10_000

SAFE_INTEGER = 2**53 - 1
_ODDLY_SMALL, _ODDLY_LARGE = 1e-4, 1e16  # Python's repr uses an exponent outside of these
_TOO_LONG: int = 10**DIGITS_MAX
_TOO_LONG_BITS = _TOO_LONG.bit_length()  # a number with fewer bits is surely shorter
_CHUNK_DIGITS = 500  # below 640, the least limit an interpreter accepts
_CHUNK: int = 10**_CHUNK_DIGITS
_LONG_BITS = _CHUNK.bit_length()

_PATH_CHARACTERS_MAX = 160
_KEY_CHARACTERS_MAX = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

_CYCLE = ("CYCLE", "contains itself")

# Where a value stands: its parent's index in the level above, the step from there, and the value.
_Place: TypeAlias = tuple[int, str | int, Json]
# Code, text, and the key that is to be named where the path ends at its object.
_Problem: TypeAlias = tuple[str, str] | tuple[str, str, str]

_write_json = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode


def check_json(
    value: Json, *, root: str = "$", max_depth: int = DEPTH_MAX, max_bytes: int | None = PAYLOAD_BYTES_MAX
) -> None:
    """
    Refuse a value that cannot be stored and read back as it is.

    Args:
        root: What the path in the error's text starts with.
        max_bytes: Refuses what is surely longer; the exact size is tested by `encode`. None: no limit.
    Raises:
        Invalid: With the codes named at the head of this file.
    """
    survey(value, root=root, max_depth=max_depth, max_bytes=max_bytes)


def check_payload(payload: Json) -> str:
    """
    Refuse a payload that is not a JSON object or cannot be stored.

    Returns:
        The text as it will be stored, since the size is known only from it.
    Raises:
        Invalid: PAYLOAD_NOT_AN_OBJECT, or one of the codes of `check_json`.
    """
    if type(payload) is not dict:
        raise Invalid(f"the payload is {_named(payload)}; it must be a dict", code="PAYLOAD_NOT_AN_OBJECT")
    return encode(payload)


def encode(value: Json, *, max_bytes: int | None = PAYLOAD_BYTES_MAX) -> str:
    """
    Write the JSON text that is stored; what cannot be stored is refused as by `check_json`.

    Args:
        max_bytes: Largest size of the text in UTF-8. None for a value whose parts were tested one by one.
    """
    traits = survey(value, max_bytes=max_bytes)
    text = write(value, members=dict.items, number=repr) if traits & LONG_INTEGER else _write_json(value)
    if traits & SPLIT_CHARACTER:
        # Quotes stand between the strings of the text, so a pair never forms across two of them.
        text = _joined(text)
    if max_bytes is not None:
        size = len(text) if text.isascii() else len(text.encode())
        if size > max_bytes:
            raise _too_large("$", size, max_bytes)
    return text


def decode(text: str | bytes) -> Json:
    """
    Read a stored text back.

    It was written by `encode`, but a row can be edited by hand: what JSON does not allow is refused all the same, and a
    text that is nested too deeply is refused before the parser sees it.

    Raises:
        Invalid: NOT_JSON, or one of the codes of `check_json`.
    """
    text = _text(text)
    _check_nesting(text)
    try:
        # Only a longer text can hold an integer over the limit; looking at each costs a call of Python per integer.
        value = _stored(text) if len(text) <= DIGITS_MAX else _stored_long(text)
    except json.JSONDecodeError as problem:
        raise _not_json(problem) from None
    except ValueError:
        # The interpreter has a lower limit than ours: read the integer in pieces.
        value = _stored_long(text)
    if "\\u" in text:
        # Half characters and NUL come in as escapes only; `encode` writes few, so this costs little.
        survey(value, max_bytes=None)
    return value


def parse(text: str | bytes, *, max_bytes: int = PAYLOAD_BYTES_MAX) -> Json:
    """
    Read JSON text from outside: a command line, a file, a request's body.

    What it returns has passed `check_json`. Keys may not repeat, and numbers that Python would read as infinite are
    refused where they stand.

    Raises:
        Invalid: NOT_JSON, or one of the codes of `check_json`, with the path.
    """
    size = len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise _too_large("$", size, max_bytes)
    text = _text(text)
    _check_nesting(text)
    try:
        value = _foreign(text)
    except json.JSONDecodeError as problem:
        raise _not_json(problem) from None
    traits = survey(value, max_bytes=None)
    return mended(value) if traits & SPLIT_CHARACTER else value


def clean_text(text: str, limit_bytes: int = ERROR_TEXT_BYTES_MAX) -> tuple[str, bool]:
    """
    Make a text storable that nobody checked: the message of an exception, a reason.

    NUL and lone surrogates become U+FFFD; a longer text is cut between two characters and ends in a mark.

    Args:
        limit_bytes: Largest size in UTF-8, the mark included.
    Returns:
        The text, and whether it differs from what was given.
    """
    # No character is shorter than a byte, so the rest of a very long text need not be looked at.
    kept = text[: limit_bytes + 1].replace("\0", "\ufffd")
    if not kept.isascii():
        kept = kept.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    data = kept.encode()
    if len(data) > limit_bytes:
        mark = f" [cut from {len(text)} characters]"
        room = limit_bytes - len(mark)
        if room < 0:  # a limit too small for the mark
            mark, room = "", limit_bytes
        kept = data[:room].decode("utf-8", "ignore") + mark
    return kept, kept != text


# --- looking at a value -----------------------------------------------------------------------------------------------


def survey(
    value: Json, *, root: str = "$", max_depth: int = DEPTH_MAX, max_bytes: int | None = PAYLOAD_BYTES_MAX
) -> int:
    """
    Check a value as `check_json` does and say what it holds.

    Returns:
        A sum of ODD_FLOAT, WIDE_KEY, BIG_INTEGER, LONG_INTEGER and SPLIT_CHARACTER.
    """
    traits = _glance(value, max_depth, max_bytes)
    if traits < 0:
        trail = _loop(value) if traits == _TOO_LARGE else None
        if trail is not None:
            raise _refusal(root, trail, *_CYCLE)
        raise _too_large(root, None, max_bytes) if traits == _TOO_LARGE else _reason(value, root, max_depth)
    return traits


def _glance(value: Json, max_depth: int, max_bytes: int | None) -> int:  # noqa: C901, PLR0912 - one branch per type
    """Give the traits of a good value, _TOO_LARGE, or _UNFIT without the reason."""
    traits = 0
    # What is counted is never more than the text will have: its punctuation, a byte for every value, the characters of
    # strings. It ends the walk through a small value that refers to its parts again and again.
    room = math.inf if max_bytes is None else max_bytes
    level: list[Json] = [value]
    for depth in range(max_depth + 1):
        below: list[Json] = []
        room -= len(level)
        for node in level:
            kind = type(node)
            if kind is str:
                if "\0" in node:
                    return _UNFIT
                if not node.isascii():
                    try:
                        node.encode()
                    except UnicodeEncodeError:
                        if _join(node) is None:
                            return _UNFIT
                        traits |= SPLIT_CHARACTER
                room -= len(node) + 1
            elif kind is int:
                if not -SAFE_INTEGER <= node <= SAFE_INTEGER:
                    if _too_long(node):
                        return _UNFIT
                    traits |= BIG_INTEGER if node.bit_length() < _LONG_BITS else BIG_INTEGER | LONG_INTEGER
            elif kind is dict:
                if depth == max_depth:
                    return _UNFIT
                found = 0
                for key in node:
                    if type(key) is not str or "\0" in key:
                        return _UNFIT
                    if not key.isascii():
                        found |= _key_traits(key)
                    room -= len(key)
                if found:
                    if found < 0 or (found & SPLIT_CHARACTER and _repeated(node) is not None):
                        return _UNFIT
                    traits |= found
                room -= 4 * len(node)
                if room < 0:
                    return _TOO_LARGE
                below.extend(node.values())
            elif kind is list or kind is tuple:
                if depth == max_depth:
                    return _UNFIT
                room -= len(node)
                if room < 0:
                    return _TOO_LARGE
                below.extend(node)
            elif kind is float:
                if node.is_integer():
                    traits |= ODD_FLOAT
                elif not _ODDLY_SMALL <= abs(node) < _ODDLY_LARGE:
                    if not math.isfinite(node):
                        return _UNFIT
                    traits |= ODD_FLOAT
            elif node is not None and kind is not bool:
                return _UNFIT
            if room < 0:
                return _TOO_LARGE
        if not below:
            break
        level = below
    return traits


def _key_traits(key: str) -> int:
    try:
        key.encode()
    except UnicodeEncodeError:
        # _UNFIT is -1, every bit set: whatever the other keys add, it stays.
        return _UNFIT if _join(key) is None else SPLIT_CHARACTER | WIDE_KEY
    return WIDE_KEY if max(key) >= "\ud800" else 0


def _reason(value: Json, root: str, max_depth: int) -> Invalid:
    """Say what made `_glance` stop: the same walk in the same order, so it ends as soon, but with the paths kept."""
    levels: list[list[_Place]] = [[(0, 0, value)]]
    while levels[-1]:
        below: list[_Place] = []
        for index, (_, _, node) in enumerate(levels[-1]):
            kind = type(node)
            if kind is dict or kind is list or kind is tuple:
                if len(levels) > max_depth:
                    return _too_deep(root, _chain(levels, index))
                problem = _key_problem(node) if kind is dict else None
                below.extend((index, step, child) for step, child in _children(node))
            else:
                problem = _scalar_problem(node)
            if problem is not None:
                code, text, *key = problem
                return _refusal(root, [*(step for step, _ in _chain(levels, index)[1:]), *key], code, text)
        levels.append(below)
    return Invalid(f"{root} changed while it was being read; pass a copy", code="UNSUPPORTED_TYPE")


def _children(node: Json) -> Iterable[tuple[str | int, Json]]:
    return node.items() if type(node) is dict else enumerate(node)


def _chain(levels: list[list[_Place]], index: int) -> list[tuple[str | int, Json]]:
    """Give the way from the outermost value to a place of the last level: each step, and what stands there."""
    chain = []
    for level in reversed(levels):
        index, step, node = level[index]
        chain.append((step, node))
    return chain[::-1]


def _too_deep(root: str, chain: list[tuple[str | int, Json]]) -> Invalid:
    """Tell a value that contains itself, which has no end, from one that is only deep."""
    trail = [step for step, _ in chain[1:]]
    seen: set[int] = set()
    for length, (_, node) in enumerate(chain):
        if id(node) in seen:
            return _refusal(root, trail[:length], *_CYCLE)
        seen.add(id(node))
    return _refusal(root, trail, "TOO_DEEP", f"is nested more than {len(trail)} levels deep")


def _loop(value: Json) -> list[str | int] | None:
    """
    Find the path at which a value that is too large contains itself.

    Given up after some steps: it may be too large to ever walk through, and a loop shows early.
    """
    trail: list[str | int] = []
    outer: list[int] = []
    rest: list[Iterator[tuple[str | int, Json]]] = []
    node = value
    for _ in range(_STEPS_MAX):
        if type(node) in {dict, list, tuple}:
            if id(node) in outer:
                return trail
            outer.append(id(node))
            rest.append(iter(_children(node)))
            trail.append(0)
        step = None
        while rest and (step := next(rest[-1], None)) is None:
            for stack in (rest, outer, trail):
                stack.pop()
        if step is None:
            break
        trail[-1], node = step
    return None


def _key_problem(node: dict[Any, Json]) -> _Problem | None:
    for key in node:
        if type(key) is not str:
            return "NON_STRING_KEY", f"has a key that is {_named(key)}; keys must be str"
        problem = _string_problem(key, "is a key that")
        if problem is not None:
            return *problem, key
    repeated = _repeated(node)
    return None if repeated is None else ("DUPLICATE_KEY", "is there twice, once as two surrogates", repeated)


def _scalar_problem(node: Json) -> _Problem | None:
    kind = type(node)
    if kind is str:
        return _string_problem(node, "is text that")
    if kind is float:
        return None if math.isfinite(node) else ("NON_FINITE_NUMBER", "is NaN or infinite, which JSON does not have")
    if kind is int:
        return ("NUMBER_TOO_LONG", f"is an integer of more than {DIGITS_MAX} digits") if _too_long(node) else None
    if kind is _Repeated:
        return "DUPLICATE_KEY", "is there twice", node.key
    if node is None or kind is bool:
        return None
    return "UNSUPPORTED_TYPE", f"is {_named(node)}; convert it to a plain JSON value first"


def _string_problem(text: str, what: str) -> tuple[str, str] | None:
    if "\0" in text:
        return "NUL_CHARACTER", f"{what} holds a NUL character, which databases refuse"
    if _join(text) is None:
        return "INVALID_UNICODE", f"{what} holds half of a character (a lone surrogate)"
    return None


def _repeated(node: dict[str, Json]) -> str | None:
    """Give a key that stands in the text twice because one of its spellings is made of surrogates."""
    seen: set[str] = set()
    for key in node:
        whole = _join(key)
        if whole is not None and whole in seen:
            return whole
        seen.add(key if whole is None else whole)
    return None


def _too_long(number: int) -> bool:
    # Bits first: comparing two numbers of a million digits takes longer than asking for their size.
    bits = number.bit_length()
    return bits > _TOO_LONG_BITS or (bits == _TOO_LONG_BITS and not -_TOO_LONG < number < _TOO_LONG)


# --- characters -------------------------------------------------------------------------------------------------------


def _join(text: str) -> str | None:
    """Turn each pair of surrogates into its character; None if one is left alone."""
    if text.isascii():
        return text
    try:
        return _joined(text)
    except UnicodeDecodeError:
        return None


def _joined(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def mended(value: Json) -> Json:
    """Copy a surveyed value, with every split character joined."""
    if type(value) is str:
        return _joined(value)
    if type(value) is dict:
        return {_joined(key): mended(child) for key, child in value.items()}
    if type(value) in {list, tuple}:
        return [mended(child) for child in value]
    return value


# --- writing and reading ----------------------------------------------------------------------------------------------


def write(
    value: Json,
    *,
    members: Callable[[dict[str, Json]], Iterable[tuple[str, Json]]],
    number: Callable[[float], str],
) -> str:
    """
    Write a surveyed value in Python: slower than the library, free in what it lets the caller choose.

    Args:
        members: Gives the members of an object in the order in which they are written.
        number: Writes a float.
    """
    kind = type(value)
    if kind is dict:
        inner = (f"{_write_json(key)}:{write(child, members=members, number=number)}" for key, child in members(value))
        return "{" + ",".join(inner) + "}"
    if kind is list or kind is tuple:
        return "[" + ",".join(write(child, members=members, number=number) for child in value) + "]"
    if kind is float:
        return number(value)
    if kind is int:
        return _digits(value)
    return _write_json(value)


def _digits(number: int) -> str:
    """Write an integer in pieces that no limit of the interpreter refuses."""
    if -_CHUNK < number < _CHUNK:
        return str(number)
    sign, rest, pieces = "-" if number < 0 else "", abs(number), []
    while rest >= _CHUNK:
        rest, low = divmod(rest, _CHUNK)
        pieces.append(f"{low:0{_CHUNK_DIGITS}d}")
    return sign + str(rest) + "".join(reversed(pieces))


def _integer(text: str) -> int:
    """Read an integer of any permitted length; a longer one becomes a number that `check_json` refuses."""
    digits = text.removeprefix("-")
    if len(digits) > DIGITS_MAX:
        return _TOO_LONG
    number = 0
    for start in range(0, len(digits), _CHUNK_DIGITS):
        piece = digits[start : start + _CHUNK_DIGITS]
        number = number * int("1" + "0" * len(piece)) + int(piece)
    return -number if text.startswith("-") else number


class _Repeated:
    """Stands, while a text is parsed, for an object with a repeated key: only the walk knows its path."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


def _marked_object(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(_first_repeated(pairs))


def _stored_object(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _refusal("$", [_first_repeated(pairs)], "DUPLICATE_KEY", "is there twice in one object")
    return found


def _first_repeated(pairs: list[tuple[str, Json]]) -> str:
    counts = collections.Counter(key for key, _ in pairs)
    return next(key for key, count in counts.items() if count > 1)


def _stored_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Invalid("the stored text holds a number beyond every float", code="NON_FINITE_NUMBER")
    return number


def _stored_constant(name: str) -> NoReturn:
    raise Invalid(f"the stored text holds {name}, which JSON does not have", code="NON_FINITE_NUMBER")


def _stored_integer(text: str) -> int:
    number = _integer(text)
    if _too_long(number):
        raise Invalid(f"the stored text holds an integer of more than {DIGITS_MAX} digits", code="NUMBER_TOO_LONG")
    return number


# Infinite numbers, repeated keys and overlong integers become things that `survey` refuses with their path.
_foreign = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_marked_object).decode
_stored = json.JSONDecoder(
    parse_float=_stored_float, parse_constant=_stored_constant, object_pairs_hook=_stored_object
).decode
_stored_long = json.JSONDecoder(
    parse_float=_stored_float,
    parse_constant=_stored_constant,
    parse_int=_stored_integer,
    object_pairs_hook=_stored_object,
).decode

# An unfinished string reaches to the end: with a closing quote required, the search would start again at every quote
# inside it and take time in the square of the length.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKET = re.compile(r"[^\[\]{}]+")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def _check_nesting(text: str) -> None:
    """Refuse a text that is nested too deeply before a recursive parser sees it."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    brackets = _NOT_BRACKET.sub("", _STRING.sub("", text))
    for depth in itertools.accumulate(map(_STEP.__getitem__, brackets)):
        if depth > DEPTH_MAX:
            raise Invalid(f"$ is nested more than {DEPTH_MAX} levels deep", code="TOO_DEEP")


def _text(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        raise Invalid(f"the text is not UTF-8 at byte {problem.start}", code="INVALID_UNICODE") from None


def _not_json(problem: json.JSONDecodeError) -> Invalid:
    where = f"line {problem.lineno}, column {problem.colno}"
    return Invalid(f"the text is not JSON at {where}: {problem.msg}", code="NOT_JSON")


# --- what an error says -----------------------------------------------------------------------------------------------


def _refusal(root: str, trail: Iterable[str | int], code: str, text: str) -> Invalid:
    return Invalid(f"{_path(root, trail)} {text}", code=code)


def _too_large(root: str, size: int | None, max_bytes: int | None) -> Invalid:
    has = f"has {size} bytes" if size is not None else "is too large"
    text = f"{root} {has}, the limit is {max_bytes}; store it elsewhere and pass a reference"
    return Invalid(text, code="PAYLOAD_TOO_LARGE")


def _path(root: str, trail: Iterable[str | int]) -> str:
    """Write a path such as `$.lines[3]["odd key"]`, in ASCII and never long."""
    path = root + "".join(map(_element, trail))
    return path if len(path) <= _PATH_CHARACTERS_MAX else path[:_PATH_CHARACTERS_MAX] + "..."


def _element(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f".{step}"
    cut = step if len(step) <= _KEY_CHARACTERS_MAX else step[:_KEY_CHARACTERS_MAX] + "..."
    return f"[{json.dumps(cut)}]"


def _named(value: object) -> str:
    """Say what type a value has, and what it pretends to be."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    for plain in (str, int, float, dict, list, tuple):
        if isinstance(value, plain) and kind is not plain:
            return f"of type {name}, not a plain {plain.__name__}"
    return f"of type {name}"
