"""Whole numbers and durations within bounds, and one text for what is outside of them."""

from __future__ import annotations

from datetime import timedelta

from tenure.errors import Invalid, echo

ZERO = timedelta(0)


def check_whole(name: str, value: int, most: int | None = None, *, least: int = 1) -> int:
    """Require a whole number, which True and 1.0 are not; without `most` it has no upper bound."""
    if type(value) is int and least <= value and (most is None or value <= most):
        return value
    within = f"from {least}" if most is None else f"from {least} to {most}"
    raise Invalid(f"{name} must be a whole number {within}, not {echo(value)}", code="BAD_ARGUMENT")


def check_span(
    name: str, value: timedelta, *, least: timedelta | None = None, most: timedelta | None = None
) -> timedelta:
    """Require a duration: above zero, or of `least` and more; without `most` it has no upper bound."""
    if isinstance(value, timedelta):
        enough = value > ZERO if least is None else value >= least
        if enough and (most is None or value <= most):
            return value
    within = "above zero" if least is None else f"of {least or 'zero'} or more"
    if most is not None:
        within += f", at most {most}"
    raise Invalid(f"{name} is a timedelta {within}, not {echo(value)}", code="BAD_DURATION")
