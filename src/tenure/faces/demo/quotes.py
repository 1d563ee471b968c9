"""Read the quotes: JSON lines, checked to the last one before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenure.errors import Invalid
from tenure.rules.payload import parse

QUOTES_MAX = 200
PACKAGED = "quotes.jsonl"
SHAPE = '{"id": "Q-1001", "to": "buyer@example.org", "item": "Oak table", "total": "1240.00"}'


class Quote(BaseModel):
    """One offer to one customer; other fields of a line are left alone."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Annotated[str, Field(min_length=1, max_length=100)]
    to: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=200)]
    item: Annotated[str, Field(min_length=1, max_length=500)]
    total: Annotated[Decimal, Field(ge=0, max_digits=14, decimal_places=2)]


def read_quotes(path: Path | None) -> list[Quote]:
    """
    Read a file of quotes, or the packaged one.

    Raises:
        Invalid: BAD_FILE, BAD_QUOTE with the number of the line, NO_QUOTES, TOO_MANY_QUOTES.
    """
    if path is None:
        text = resources.files("tenure.faces.demo").joinpath(PACKAGED).read_text(encoding="utf-8")
        return _quotes(PACKAGED, text.split("\n"))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path.name} cannot be read: {type(error).__name__}", code="BAD_FILE") from error
    return _quotes(path.name, text.split("\n"))


def _quotes(name: str, lines: Iterable[str]) -> list[Quote]:
    found: dict[str, int] = {}
    quotes: list[Quote] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        quote = _quote(name, number, line)
        if quote.id in found:
            raise Invalid(f"{name}, line {number}: its id is that of line {found[quote.id]}", code="BAD_QUOTE")
        found[quote.id] = number
        quotes.append(quote)
    if not quotes:
        raise Invalid(f"{name} holds no quotes; one line is {SHAPE}", code="NO_QUOTES")
    if len(quotes) > QUOTES_MAX:
        raise Invalid(
            f"{name} holds {len(quotes)} quotes; the demonstration takes up to {QUOTES_MAX}", code="TOO_MANY_QUOTES"
        )
    return quotes


def _quote(name: str, number: int, line: str) -> Quote:
    try:
        return Quote.model_validate(parse(line))
    except Invalid as problem:
        raise Invalid(f"{name}, line {number} is no JSON: {problem}", code="BAD_QUOTE") from None
    except ValidationError as problem:
        # Fields and kinds of mistake only: a line may hold what is nobody else's business.
        wrong = ", ".join(
            f"{'.'.join(map(str, one['loc'])) or 'the line'} ({one['type']})"
            for one in problem.errors(include_url=False, include_context=False, include_input=False)
        )
        raise Invalid(f"{name}, line {number}: {wrong}; one line is {SHAPE}", code="BAD_QUOTE") from None
