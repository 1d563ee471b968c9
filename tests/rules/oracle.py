"""
Canonical bytes written a second time, from the standards' own words and with nothing of the product or its library.

Numbers follow Number::toString of ECMA-262 from the digits and the exponent of a decimal; names are compared as lists
of UTF-16 code units; strings are written character by character.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

SHORT = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}


def oracle(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(Decimal(value))  # a Decimal knows no limit of digits
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, dict):
        names = sorted(value, key=units)
        return "{" + ",".join(f"{string(name)}:{oracle(value[name])}" for name in names) + "}"
    return "[" + ",".join(map(oracle, value)) + "]"


def number(value: float) -> str:
    sign, figures, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, figures))
    if not digits.strip("0"):
        return "0"
    k, n = len(digits), len(digits) + exponent
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        power = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + power
    return "-" * sign + text


def string(value: str) -> str:
    written = []
    for character in value:
        code = ord(character)
        written.append(SHORT.get(code) or (f"\\u{code:04x}" if code < 0x20 else character))
    return '"' + "".join(written) + '"'


def units(name: str) -> list[int]:
    found = []
    for character in name:
        code = ord(character)
        if code > 0xFFFF:
            found += [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
        else:
            found.append(code)
    return found
