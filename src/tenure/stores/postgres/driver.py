"""
The only place that looks for the driver: whoever needs psycopg imports it from here.

It is an extra of the package, so a program without it gets told what to install, not an ImportError.
"""

from __future__ import annotations

from tenure.errors import Invalid

try:
    import psycopg
    import psycopg_pool
except ImportError as error:
    # Also where psycopg is there and libpq is not; its text says which of the two.
    raise Invalid(
        f"a PostgreSQL store needs psycopg with its pool ({error}); run pip install 'tenure[postgres]'",
        code="MISSING_EXTRA",
    ) from None

__all__ = ["psycopg", "psycopg_pool"]
