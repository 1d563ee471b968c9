"""
What a store that is bound to one tenant refuses.

A service that is bound narrows what a call leaves open. A store does not: it is handed procedures that say whose rows
they are about, and one that does not say so, or says another, is not run.
"""

from __future__ import annotations

from collections.abc import Collection

from tenure.errors import Invalid, Refused, echo
from tenure.rules.creation import check_text

# What a consumer says about itself is nobody's row.
_OF_NOBODY = frozenset({"declare_consumer"})


def check_bound(bound: str, procedure: str, tenants: Collection[str | None]) -> None:
    """
    Refuse what is not about the bound tenant alone.

    Args:
        tenants: Whose rows the procedure is about; None among them where it does not say.
    Raises:
        Refused: TENANT_BOUND.
    """
    others = sorted(one for one in tenants if one is not None and one != bound)
    if others:
        raise Refused(
            f"this store is bound to tenant {echo(bound)}, and {echo(procedure)} was asked for tenant "
            f"{echo(others[0])}; use a store that is opened with that tenant=, or with none",
            code="TENANT_BOUND",
        )
    if None in tenants and procedure not in _OF_NOBODY:
        raise Refused(
            f"this store is bound to tenant {echo(bound)}, and {echo(procedure)} is about every tenant or does not say "
            "which; name the tenant, or use a store that is opened without tenant=",
            code="TENANT_BOUND",
        )


def agree_bound(bound: str | None, asked: str | None) -> str | None:
    """
    Give the tenant of what is made on a store: the store's own, where it has one.

    Raises:
        Invalid: TENANT_MISMATCH, another one was asked for; and what is no name of a tenant.
    """
    if asked is not None:
        check_text("tenant", asked)
    if bound is not None and asked not in {None, bound}:
        raise Invalid(
            f"the tenants differ: the store is bound to {echo(bound)}, and tenant={echo(asked)} was given; leave it "
            "out, or open a store for that tenant",
            code="TENANT_MISMATCH",
        )
    return asked if bound is None else bound
