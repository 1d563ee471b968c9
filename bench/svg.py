"""A bar chart as SVG, small enough to be written by hand: a bar for the median, a whisker for the range."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from bench.results import Spread

_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _TOP = 720, 150, 130, 22, 12, 40
_OURS, _THEIRS, _INK = "#2f6f4f", "#9aa5ae", "#333"


@dataclass(frozen=True, slots=True)
class Bar:
    """One system; ours is dark."""

    name: str
    spread: Spread
    ours: bool = False


def bars(title: str, unit: str, shown: list[Bar]) -> str:
    """Draw horizontal bars in the order given, all from zero on one scale."""
    longest = max((bar.spread.high for bar in shown), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + len(shown) * (_BAR + _GAP)
    view = f'viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif" font-size="13" role="img">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="22" font-size="14" fill="{_INK}">{escape(title)}</text>',
    ]
    for number, bar in enumerate(shown):
        top = _TOP + number * (_BAR + _GAP)
        base, middle = f"{top + _BAR / 2 + 4:.1f}", top + _BAR / 2
        low, median, high = (_LEFT + scale * value for value in (bar.spread.low, bar.spread.median, bar.spread.high))
        colour = _OURS if bar.ours else _THEIRS
        whisker = f"M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 5:.1f}v10M{high:.1f} {middle - 5:.1f}v10"
        value = f"{number_text(bar.spread.median)} {escape(unit)}"
        lines += [
            f'<text x="{_LEFT - 8}" y="{base}" text-anchor="end" fill="{_INK}">{escape(bar.name)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{median - _LEFT:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<path d="{whisker}" stroke="{_INK}" fill="none"/>',
            f'<text x="{high + 8:.1f}" y="{base}" fill="{_INK}">{value}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def number_text(value: float) -> str:
    """Write a number as people read it: no decimals where they say nothing."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
