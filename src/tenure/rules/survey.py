"""
Look at a JSON value: is it one that can be stored, what does it hold, and what exactly is wrong with it.

A value is looked at twice at most, level by level and without recursion. The first look keeps no paths and ends at the
first thing that is not plainly right; only then the second goes the same way again, keeps the paths and says what is
wrong. So a good value pays nothing for the report a bad one gets. Both are bounded: a container of itself, and a small
value that refers to its parts so often that its text would never end, are refused in little time.

Only the plain types pass, never a subclass: an enum's member or an ordered dict writes itself in a way that reading
does not undo.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from tenure.errors import Invalid
from tenure.rules.outcome import Json

DEPTH_MAX = 100  # containers around a value, the outermost counted
DIGITS_MAX = 4000  # of an integer; Python itself stops at 4,300
CHUNK_DIGITS = 500  # a piece of a long integer; below 640, the least limit an interpreter accepts
SAFE_INTEGER = 2**53 - 1

# What `survey` found in a good value, for those that choose a faster or a slower way to write it.
ODD_FLOAT = 1  # Python and RFC 8785 write this float differently (1.0 and 1)
WIDE_KEY = 2  # a key beyond U+FFFF: code points and UTF-16 code units may sort differently
BIG_INTEGER = 4  # beyond +-(2^53 - 1)
LONG_INTEGER = 8  # so long that a lowered limit of the interpreter could refuse to write it
SPLIT_CHARACTER = 16  # a character given as two surrogates

TOO_LONG: int = 10**DIGITS_MAX  # the least integer that is refused
_TOO_LONG_BITS = TOO_LONG.bit_length()  # a number with fewer bits is surely shorter
_LONG_BITS = (10**CHUNK_DIGITS).bit_length()
_ODDLY_SMALL = 1e-4  # below it Python's repr has an exponent; what is not whole is never so large that it has one

_UNFIT, _TOO_LARGE = -1, -2
_STEPS_MAX = 10_000

_PATH_CHARACTERS_MAX = 160
_KEY_CHARACTERS_MAX = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

# Where a value stands: its parent's index in the level above, the step from there, and the value.
_Place: TypeAlias = tuple[int, str | int, Json]
# Writes the path of the value at hand, or of one of its keys.
_At: TypeAlias = Callable[..., str]


class Repeated:
    """Stands, while a text is parsed, for an object with a repeated key: only the walk knows its path."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


def survey(value: Json, *, root: str = "$", max_depth: int = DEPTH_MAX, max_bytes: int | None) -> int:
    """
    Refuse a value that cannot be stored and read back as it is; say what a good one holds.

    Args:
        root: What the path in the error's text starts with.
        max_bytes: Refuses what is surely longer; the exact size is known only from the text. None: no limit.
    Returns:
        A sum of ODD_FLOAT, WIDE_KEY, BIG_INTEGER, LONG_INTEGER and SPLIT_CHARACTER.
    Raises:
        Invalid: With a code for what is wrong, and the path.
    """
    traits = _glance(value, max_depth, max_bytes)
    if traits >= 0:
        return traits
    if traits == _UNFIT:
        raise _reason(value, root, max_depth)
    trail = _loop(value)
    if trail is None:
        text = f"{root} has more bytes than the limit of {max_bytes}; store it elsewhere and pass a reference"
        raise Invalid(text, code="PAYLOAD_TOO_LARGE")
    raise _cycle(path(root, trail))


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
                        if join(node) is None:
                            return _UNFIT
                        traits |= SPLIT_CHARACTER
                room -= len(node) + 1
            elif kind is int:
                if not -SAFE_INTEGER <= node <= SAFE_INTEGER:
                    if too_long(node):
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
                elif not _ODDLY_SMALL <= abs(node) < math.inf:
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
        return _UNFIT if join(key) is None else SPLIT_CHARACTER | WIDE_KEY
    return WIDE_KEY if max(key) > "\uffff" else 0


def _reason(value: Json, root: str, max_depth: int) -> Invalid:
    """Say what made `_glance` stop: the same walk in the same order, so it ends as soon, but with the paths kept."""
    levels: list[list[_Place]] = [[(0, 0, value)]]
    while levels[-1]:
        below: list[_Place] = []
        for index, (_, _, node) in enumerate(levels[-1]):

            def at(*key: str, index: int = index) -> str:
                return path(root, [*(step for step, _ in _chain(levels, index)[1:]), *key])

            if type(node) in {dict, list, tuple}:
                if len(levels) > max_depth:
                    return _too_deep(root, _chain(levels, index))
                problem = _key_problem(node, at) if type(node) is dict else None
                below.extend((index, step, child) for step, child in _children(node))
            else:
                problem = _scalar_problem(node, at)
            if problem is not None:
                return problem
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
            return _cycle(path(root, trail[:length]))
        seen.add(id(node))
    return Invalid(f"{path(root, trail)} is nested more than {len(trail)} levels deep", code="TOO_DEEP")


def _cycle(where: str) -> Invalid:
    return Invalid(f"{where} contains itself", code="CYCLE")


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


def _key_problem(node: dict[Any, Json], at: _At) -> Invalid | None:
    for key in node:
        if type(key) is not str:
            return Invalid(f"{at()} has a key that is {named(key)}; keys must be str", code="NON_STRING_KEY")
        problem = _string_problem(key, lambda key=key: f"{at(key)} is a key and")
        if problem is not None:
            return problem
    twice = _repeated(node)
    if twice is not None:
        return Invalid(f"{at(twice)} is there twice, once as two surrogates", code="DUPLICATE_KEY")
    return None


def _scalar_problem(node: Json, at: _At) -> Invalid | None:
    kind = type(node)
    if kind is str:
        return _string_problem(node, at)
    if kind is float and not math.isfinite(node):
        return Invalid(f"{at()} is NaN or infinite, which JSON does not have", code="NON_FINITE_NUMBER")
    if kind is int and too_long(node):
        return Invalid(f"{at()} is an integer of more than {DIGITS_MAX} digits", code="NUMBER_TOO_LONG")
    if kind is Repeated:
        return Invalid(f"{at(node.key)} is there twice", code="DUPLICATE_KEY")
    if node is None or kind in {bool, int, float}:
        return None
    return Invalid(f"{at()} is {named(node)}; convert it to a plain JSON value first", code="UNSUPPORTED_TYPE")


def _string_problem(text: str, at: _At) -> Invalid | None:
    if "\0" in text:
        return Invalid(f"{at()} holds a NUL character, which databases refuse", code="NUL_CHARACTER")
    if join(text) is None:
        return Invalid(f"{at()} holds half of a character (a lone surrogate)", code="INVALID_UNICODE")
    return None


def _repeated(node: dict[str, Json]) -> str | None:
    """Give a key that stands in the text twice because one of its spellings is made of surrogates."""
    seen: set[str] = set()
    for key in node:
        whole = join(key)
        if whole is not None and whole in seen:
            return whole
        seen.add(key if whole is None else whole)
    return None


def too_long(number: int) -> bool:
    """Say whether an integer has more digits than are kept."""
    # Bits first: comparing two numbers of a million digits takes longer than asking for their size.
    bits = number.bit_length()
    return bits > _TOO_LONG_BITS or (bits == _TOO_LONG_BITS and not -TOO_LONG < number < TOO_LONG)


# --- characters -------------------------------------------------------------------------------------------------------


def join(text: str) -> str | None:
    """Turn each pair of surrogates into its character; None if one is left alone."""
    if text.isascii():
        return text
    try:
        return joined(text)
    except UnicodeDecodeError:
        return None


def joined(text: str) -> str:
    """Turn each pair of surrogates into its character; UnicodeDecodeError if one is left alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def mended(value: Json) -> Json:
    """Copy a surveyed value, with every split character joined."""
    if type(value) is str:
        return joined(value)
    if type(value) is dict:
        return {joined(key): mended(child) for key, child in value.items()}
    if type(value) in {list, tuple}:
        return [mended(child) for child in value]
    return value


# --- what an error says -----------------------------------------------------------------------------------------------


def path(root: str, trail: Iterable[str | int]) -> str:
    """Write a path such as `$.lines[3]["odd key"]`, in ASCII and never long."""
    whole = root + "".join(map(_element, trail))
    return whole if len(whole) <= _PATH_CHARACTERS_MAX else whole[:_PATH_CHARACTERS_MAX] + "..."


def _element(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f".{step}"
    cut = step if len(step) <= _KEY_CHARACTERS_MAX else step[:_KEY_CHARACTERS_MAX] + "..."
    return f"[{json.dumps(cut)}]"


def named(value: object) -> str:
    """Say what type a value has, and what it pretends to be."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    for plain in (str, int, float, dict, list, tuple):
        if isinstance(value, plain) and kind is not plain:
            return f"of type {name}, not a plain {plain.__name__}"
    return f"of type {name}"
