"""
What may be stored as JSON, and how it is written and read back.

Theory of operation. A payload, result, request or receipt is a plain JSON value: dict, list, str, int, float, bool or
None, and a tuple, which is written as a list. Everything that some database, browser or other language would refuse or
change is refused here, before anything is written, with a code and the path inside the value (rules/survey.py):

    NON_FINITE_NUMBER  NUL_CHARACTER  INVALID_UNICODE  NON_STRING_KEY  DUPLICATE_KEY  UNSUPPORTED_TYPE
    NUMBER_TOO_LONG  TOO_DEEP  CYCLE  PAYLOAD_TOO_LARGE

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
from collections.abc import Callable, Iterable
from typing import NoReturn

from tenure.errors import Invalid
from tenure.rules.outcome import Json
from tenure.rules.survey import (
    CHUNK_DIGITS,
    DEPTH_MAX,
    DIGITS_MAX,
    LONG_INTEGER,
    SPLIT_CHARACTER,
    TOO_LONG,
    Repeated,
    joined,
    mended,
    named,
    path,
    survey,
    too_long,
)

# Written only by typed inputs; a raw payload that has one of them is refused (rules/envelope/).
RESERVED_KEYS = frozenset({"execution", "governance"})

PAYLOAD_BYTES_MAX = 1 << 20
RESULT_BYTES_MAX = 1 << 20
ERROR_TEXT_BYTES_MAX = 8192

_CHUNK: int = 10**CHUNK_DIGITS

# Writes a surveyed text as JSON.
quoted: Callable[[str], str] = json.encoder.encode_basestring  # without ensure_ascii


def writer(*, sort_keys: bool = False) -> Callable[[Json], str]:
    """
    Make the function that writes a surveyed value as JSON, with nothing between its parts.

    The library's own `encode` builds a new encoder in C at each call, which for a small payload takes twice as long as
    the writing (1.5 against 0.6 us): here it is built once.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":")
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the library's part in C
        return encoder.encode
    pieces = make(None, encoder.default, quoted, None, ":", ",", sort_keys, False, False)  # noqa: FBT003 - it takes no names
    return lambda value: "".join(pieces(value, 0))


_write_json = writer()


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
        Invalid: PAYLOAD_INVALID, or one of the codes of `check_json`.
    """
    check_object(payload)
    return encode(payload)


def check_object(payload: Json) -> None:
    """Refuse a payload that is not a JSON object."""
    if type(payload) is not dict:
        raise Invalid(f"the payload is {named(payload)}; it must be a dict", code="PAYLOAD_INVALID")


def encode(value: Json, *, max_bytes: int | None = PAYLOAD_BYTES_MAX) -> str:
    """
    Write the JSON text that is stored; what cannot be stored is refused as by `check_json`.

    Args:
        max_bytes: Largest size of the text in UTF-8. None for a value whose parts were tested one by one.
    """
    return encode_surveyed(value, survey(value, max_bytes=max_bytes), max_bytes=max_bytes)


def encode_result(result: Json) -> str:
    """Write what a handler returned; see `encode`."""
    return "null" if result is None else encode(result, max_bytes=RESULT_BYTES_MAX)


def encode_surveyed(value: Json, traits: int, *, max_bytes: int | None = PAYLOAD_BYTES_MAX) -> str:
    """See `encode`, for a value that `survey` has looked at and found to have these traits."""
    text = write(value, members=dict.items, number=repr) if traits & LONG_INTEGER else _write_json(value)
    if traits & SPLIT_CHARACTER:
        # Quotes stand between the strings of the text, so a pair never forms across two of them.
        text = joined(text)
    if max_bytes is not None:
        check_size(text, max_bytes)
    return text


def check_size(text: str, max_bytes: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse a written text that is too large, by its size in UTF-8."""
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise _too_large(size, max_bytes)


def encode_again(value: Json) -> str:
    """Write what `decode` gave: it was tested when it was stored, so only its long integers need care."""
    try:
        return _write_json(value)
    except ValueError:
        return encode(value, max_bytes=None)


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
        raise _too_large(size, max_bytes)
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
        pieces.append(f"{low:0{CHUNK_DIGITS}d}")
    return sign + str(rest) + "".join(reversed(pieces))


def _integer(text: str) -> int:
    """Read an integer of any permitted length; a longer one becomes a number that `check_json` refuses."""
    digits = text.removeprefix("-")
    if len(digits) > DIGITS_MAX:
        return TOO_LONG
    number = 0
    for start in range(0, len(digits), CHUNK_DIGITS):
        piece = digits[start : start + CHUNK_DIGITS]
        number = number * int("1" + "0" * len(piece)) + int(piece)
    return -number if text.startswith("-") else number


def _marked_object(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Repeated(_first_repeated(pairs))


def _stored_object(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        where = path("$", [_first_repeated(pairs)])
        raise Invalid(f"the key {where} is there twice in one object of the stored text", code="DUPLICATE_KEY")
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
    if too_long(number):
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


def _too_large(size: int, max_bytes: int) -> Invalid:
    text = f"$ has {size} bytes, the limit is {max_bytes}; store it elsewhere and pass a reference"
    return Invalid(text, code="PAYLOAD_TOO_LARGE")
