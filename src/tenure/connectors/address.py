"""Where a message goes within a broker: a template such as `orders.{tenant}.{type}`, filled for each message."""

from __future__ import annotations

import string
from collections.abc import Callable

from tenure.errors import Invalid, echo
from tenure.rules.message import Message

PLACES = ("tenant", "type", "version", "subject", "destination")


class NoAddress(Exception):
    """A message has no address by this template; the text says why."""


class Address:
    """
    A template and how the broker spells what is put into it.

    Args:
        what: The argument's name, for the texts.
        spell: Writes a value so that it cannot be mistaken for a part of the address.
        bytes_max: The broker's limit.
    """

    def __init__(self, template: str, *, what: str, spell: Callable[[str, str], str], bytes_max: int) -> None:
        self.template = template
        self._spell = spell
        self._what = what
        self._bytes_max = bytes_max
        self._parts = _parts(template, what)

    @property
    def fixed(self) -> str:
        """The part before the first place; the whole of a template without one."""
        return self._parts[0][0] if self._parts else ""

    @property
    def is_fixed(self) -> bool:
        """Whether every message has the same address."""
        return all(place is None for _, place in self._parts)

    def of(self, message: Message) -> str:
        """
        Fill the template.

        Raises:
            NoAddress: The message has no subject where the template asks for it, or the address is too long.
        """
        filled = "".join(f"{text}{self._value(place, message)}" for text, place in self._parts)
        if len(filled.encode()) > self._bytes_max:
            raise NoAddress(f"its {self._what} has more than {self._bytes_max} bytes")
        return filled

    def _value(self, place: str | None, message: Message) -> str:
        if place is None:
            return ""
        value = getattr(message, place)
        if value is None:
            raise NoAddress(f"it has no subject, and the {self._what} asks for one")
        return self._spell(place, str(value))


def _parts(template: object, what: str) -> list[tuple[str, str | None]]:
    known = ", ".join(f"{{{place}}}" for place in PLACES)
    if not isinstance(template, str) or not template or not template.isprintable():
        raise Invalid(f"{what} is a text that may hold {known}", code="BAD_ARGUMENT")
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise Invalid(f"{what} holds a brace that is not closed: {echo(template)}", code="BAD_ARGUMENT") from None
    for _, place, spec, conversion in parts:
        if place is not None and (place not in PLACES or spec or conversion):
            raise Invalid(f"{what} may hold {known}, and nothing else in braces", code="BAD_ARGUMENT")
    return [(text, place) for text, place, _, _ in parts]
