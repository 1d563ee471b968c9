"""The providers of an app: each known by its name, and called as its handlers need it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from tenure.connectors import provider as provider_calls
from tenure.connectors.provider import Provider, check_provider
from tenure.connectors.wire import json_value
from tenure.errors import Invalid, echo
from tenure.kinds import Kind
from tenure.rules.outcome import Evidence, Outcome, Terms


class AppProviders:
    """How an app's handlers call providers; see `handler.Providers`."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self.by_name: dict[str, Provider] = {}
        for provider in providers:
            check_provider(provider)
            if provider.name in self.by_name:
                raise Invalid(
                    f"two providers are called {echo(provider.name)}; a name stands for one", code="PROVIDER_TAKEN"
                )
            self.by_name[provider.name] = provider

    def check(self, kinds: Iterable[Kind]) -> None:
        """
        Refuse kinds that declare a provider which is not here.

        Raises:
            Invalid: UNKNOWN_PROVIDER.
        """
        for kind in kinds:
            for name in kind.options.providers:
                if name not in self.by_name:
                    registered = ", ".join(sorted(self.by_name)) or "none"
                    raise Invalid(
                        f"kind {echo(kind.name)} declares provider {echo(name)}, which this app does not have; pass it "
                        f"to Tenure(..., providers=[...]). Registered: {registered}",
                        code="UNKNOWN_PROVIDER",
                    )

    def terms(self, provider: Any) -> Terms:
        """See `handler.Providers.terms`; refuses a provider that a sweeper of this app could not ask."""
        if not isinstance(provider, Provider) or self.by_name.get(provider.name) is not provider:
            name = getattr(provider, "name", type(provider).__name__)
            raise Invalid(
                f"provider {echo(name)} is not one of this app's; pass it to Tenure(..., providers=[...]), so that the "
                f"sweeper can ask it",
                code="UNKNOWN_PROVIDER",
            )
        return provider_calls.terms(provider)

    def timeout(self, provider: Any) -> timedelta:
        """See `handler.Providers.timeout`."""
        limit: timedelta = provider.timeout
        return limit

    def encode(self, request: Any) -> Any:
        """See `handler.Providers.encode`."""
        return json_value(request)

    async def send(self, provider: Any, request: Any, operation_key: str, allowed: timedelta) -> Outcome:
        """See `handler.Providers.send`."""
        return await provider_calls.send_bounded(provider, request, operation_key, allowed)

    async def lookup(self, provider: Any, operation_key: str, allowed: timedelta) -> Evidence:
        """See `handler.Providers.lookup`."""
        return await provider_calls.lookup_bounded(provider, operation_key, allowed)
