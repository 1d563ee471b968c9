"""Whom to ask what became of an effect: the provider whose name it keeps, or the caller for a bare mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from tenure.connectors.provider import Provider, ask_bounded, lookup_bounded
from tenure.rules.effect import Effect
from tenure.rules.job import Job
from tenure.rules.outcome import Evidence, NoAnswer


async def ask_about(
    job: Job,
    effect: Effect,
    providers: Mapping[str, Provider],
    *,
    lookup: Callable[..., Any] | None,
    lookup_timeout: timedelta,
) -> Evidence:
    """
    Ask about one effect; whoever cannot be asked gives no answer, with its reason.

    Args:
        providers: By the name stored with effects.
        lookup: Asked as `lookup(operation_key, job)` about bare marks, which name no provider.
        lookup_timeout: How long `lookup` may take; providers have their own timeout.
    """
    if effect.provider is None:
        if lookup is None:
            return NoAnswer("a bare mark names no provider, and no look-up was given")
        return await ask_bounded(lookup, (effect.operation_key, job), lookup_timeout)
    provider = providers.get(effect.provider)
    if provider is None:
        return NoAnswer(f"provider {effect.provider!r} is not registered in this process")
    return await lookup_bounded(provider, effect.operation_key, provider.timeout)
