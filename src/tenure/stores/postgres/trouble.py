"""
What went wrong between us and PostgreSQL, as a value: whether to try again, and what to tell the caller.

The driver's own errors do not leave this package: their details repeat values ("Failing row contains ..."), and a
traceback ends up in a log. A failure keeps the SQLSTATE and the names of statement and constraint.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable
from typing import TypeAlias

import psycopg
from psycopg import pq

from tenure.errors import Invalid, Refused, TenureError, Unavailable
from tenure.stores.migrate import schema_missing
from tenure.stores.postgres.address import Address


class Silence(psycopg.OperationalError):
    """The server did not answer before the deadline of the call; the connection is of no use any more."""


class Kind(enum.Enum):
    """What a store may do after a failure."""

    CONTENTION = "run again, a few times: serialization failure, deadlock, a forgotten statement"
    LOST = "run again on another connection: nobody knows what the server did"
    BUSY = "run again while time is left"
    FINAL = "tell the caller"


class Failure(Exception):
    """
    An error of the driver without its values.

    Attributes:
        kind: What the store may do now.
        error: What the caller gets when the store does no more.
    """

    def __init__(self, kind: Kind, error: Exception) -> None:
        super().__init__(str(error))
        self.kind = kind
        self.error = error

    def told(self) -> Exception:
        """Give the caller's error, with what was noted on the way."""
        for note in getattr(self, "__notes__", ()):
            self.error.add_note(note)
        return self.error


# A prepared statement that is not there.
FORGOTTEN = "26000"
# Nothing but a rollback is listened to.
FAILED = "25P02"
# The name of the statement that takes on the store's role.
ROLE = "role"
# And of the script that makes the five.
ROLES = "roles"
# And of the one that keeps tenants apart.
ROW_SECURITY = "row_security"
# The server's routine that refuses a row which no policy admits; its words depend on its language.
_POLICIES = "ExecWithCheckOptions"
# A plan prepared before a change of the schema; preparing anew on a fresh connection is the cure.
_STALE_PLAN = "0A000"

_LOST = (
    Kind.LOST,
    Unavailable("the connection to PostgreSQL was lost; the same call may be made again", code="CONNECTION_LOST"),
)
_BUSY = (
    Kind.BUSY,
    Unavailable(
        "the database kept this waiting too long, for a lock or for its turn; run the same call again later",
        code="STORE_BUSY",
    ),
)
_CROWDED = (
    Kind.BUSY,
    Unavailable(
        "PostgreSQL has no free connection for this store; give it a smaller pool, or raise max_connections",
        code="TOO_MANY_CONNECTIONS",
    ),
)
_STORAGE = (
    Kind.FINAL,
    Unavailable(
        "the database has no room or no access to its own files; look at the server's log", code="STORAGE_FAILED"
    ),
)
_CREDENTIALS = (
    Kind.FINAL,
    Invalid(
        "PostgreSQL did not accept this store's user or password; check both in the store URL, and pg_hba.conf",
        code="AUTHENTICATION",
    ),
)
_NO_DATABASE = (
    Kind.FINAL,
    Invalid(
        "the server has no database of the name in the store URL; create it, then run `tenure migrate --store URL`",
        code="DATABASE_MISSING",
    ),
)
_POOLER = (
    Kind.CONTENTION,
    Invalid(
        "a prepared statement is not where it was left, as behind a transaction-mode pooler; set tenure_prepare=off",
        code="POOLER",
    ),
)
_NO_ROLE = (
    Kind.FINAL,
    Invalid(
        "the server has no role of the name given to the store as role=; for one of tenure's five run `tenure migrate "
        "--roles`, create any other, or use another name",
        code="UNKNOWN_ROLE",
    ),
)
_ROLE_NOT_TAKEN = (
    Kind.FINAL,
    Refused(
        "the database user of this store may not take on the role given to it as role=; let an administrator run "
        'GRANT <role> TO <user> (tenure_worker for role="worker"), or connect as another user',
        code="ROLE_NOT_GRANTED",
    ),
)
_ROLES_NOT_MADE = (
    Kind.FINAL,
    Refused(
        "making the database roles takes the owner of the schema tenure with CREATEROLE, and this user is not; let an "
        "administrator run what `tenure migrate --roles --sql` prints, as that owner or a superuser",
        code="ROLES_NOT_MADE",
    ),
)
_OTHER_TENANT = (
    Kind.FINAL,
    Refused(
        "row security keeps this transaction from rows of a tenant that it does not name; open the store with tenant=, "
        "and in a transaction of your own run SELECT set_config('tenure.tenant', <tenant>, true) first",
        code="ROW_SECURITY",
    ),
)
# What the server says of a statement that takes on a role.
_ROLE_MEANINGS = {"22023": _NO_ROLE, "42501": _ROLE_NOT_TAKEN}
# Two jobs marked under one key, or two claims made under one claim id, at the same moment: the next run sees the other.
_KEY_INDEXES = {"effect_key", "claim_pkey"}
_KEY_BUSY = (
    Kind.CONTENTION,
    Unavailable(
        "another transaction used the same key or claim id at the same time; run the same call again to learn whose it "
        "is",
        code="KEY_BUSY",
    ),
)
_NO_SCHEMA = (Kind.FINAL, schema_missing())

# The error is a pattern: each caller gets one of its own.
_Meaning: TypeAlias = tuple[Kind, TenureError]
# By SQLSTATE, or by its class, the first two characters.
_MEANINGS: dict[str, _Meaning] = {
    "40001": (
        Kind.CONTENTION,
        Unavailable(
            "the transaction was in the way of others again and again (serialization failure); run it again later",
            code="SERIALIZATION",
        ),
    ),
    "40P01": (
        Kind.CONTENTION,
        Unavailable(
            "the transaction and others waited for each other again and again (deadlock); run it again later",
            code="DEADLOCK",
        ),
    ),
    "08": _LOST,
    "57P01": _LOST,  # the server is shut down, or this connection was ended
    "57P02": _LOST,  # another process of the server crashed
    "57P03": _LOST,  # it is starting
    "57P05": _LOST,  # an idle session was ended
    "25P03": _LOST,  # an idle transaction was ended
    "25P04": _LOST,  # the server's limit of a transaction
    "55P03": _BUSY,  # lock_timeout
    "57014": _BUSY,  # statement_timeout, or an operator
    "53300": _CROWDED,
    "53100": (
        Kind.FINAL,
        Unavailable(
            "the database's disk is full; nothing was written, free some space there and run the same call again",
            code="STORAGE_FULL",
        ),
    ),
    "53": _STORAGE,
    "58": _STORAGE,
    "25006": (
        Kind.FINAL,
        Unavailable(
            "the database accepts no writes now; use the primary, or ask about default_transaction_read_only",
            code="STORE_READ_ONLY",
        ),
    ),
    "42501": (
        Kind.FINAL,
        Refused(
            "the database role of this store may not do this; ask its owner for the grant, or use another role",
            code="PRIVILEGE",
        ),
    ),
    "28": _CREDENTIALS,
    "3D000": _NO_DATABASE,
    FORGOTTEN: _POOLER,
    "42P05": _POOLER,
    "42P01": _NO_SCHEMA,
    "3F000": _NO_SCHEMA,
    "22": (Kind.FINAL, Invalid("PostgreSQL cannot store a value of this call", code="VALUE_REFUSED")),
    "54": (Kind.FINAL, Invalid("a value of this call is larger than PostgreSQL can hold there", code="VALUE_REFUSED")),
}


def _as_failure(meaning: _Meaning, state: str | None = None) -> Failure:
    kind, pattern = meaning
    text = f"{pattern} (SQLSTATE {state})" if state else str(pattern)
    return Failure(kind, type(pattern)(text, code=pattern.code))


def connection_lost() -> Unavailable:
    """Make the error for a connection that broke before anything was committed."""
    _, pattern = _LOST
    return Unavailable(str(pattern), code=pattern.code)


def failure(error: psycopg.Error, statement: str, pgconn: pq.abc.PGconn) -> Failure:
    """Judge an error of a statement."""
    found = _judge(error, statement, pgconn)
    found.add_note(f"in statement {statement}")
    return found


def _judge(error: psycopg.Error, statement: str, pgconn: pq.abc.PGconn) -> Failure:
    state = error.sqlstate
    if pgconn.status != pq.ConnStatus.OK or (state is None and isinstance(error, psycopg.OperationalError)):
        # Without a word of the server: it was silent too long, or a conversation broke off in the middle.
        return _as_failure(_LOST)
    if state is None:
        # Misuse found by the driver itself: a mistake of ours.
        return Failure(Kind.FINAL, AssertionError(f"{type(error).__name__} in statement {statement}"))
    if state == _STALE_PLAN and "cached plan" in str(error):
        pgconn.finish()
        return _as_failure(_LOST)
    told = error.diag
    about = told.constraint_name or told.column_name
    return refused(
        state,
        statement,
        about=about,
        message=told.message_primary,
        make=type(error),
        routine=told.source_function,
    )


def refused(
    state: str,
    statement: str,
    *,
    about: str | None,
    message: str | None,
    make: Callable[[str], Exception],
    routine: str | None,
) -> Failure:
    """
    Judge what the server said, whichever driver heard it.

    Args:
        state: The SQLSTATE.
        about: The constraint or column it names.
        make: Makes an error of the driver's from a text of ours.
        routine: Of the server's, in which it was found.
    """
    meaning = _MEANINGS.get(state) or _MEANINGS.get(state[:2])
    if statement == ROLE:
        meaning = _ROLE_MEANINGS.get(state, meaning)
    if statement in {ROLES, ROW_SECURITY} and state == "42501":
        meaning = _ROLES_NOT_MADE
    elif routine == _POLICIES and state == "42501":
        meaning = _OTHER_TENANT
    if meaning is not None:
        return _as_failure(meaning, state)
    if state == "23505" and about in _KEY_INDEXES:
        return _as_failure(_KEY_BUSY, state)
    if state.startswith("23"):
        # The second statement of a rule that must have refused before: a mistake of ours, told by name only.
        text = f"constraint {about} refused statement {statement} (SQLSTATE {state})"
        return Failure(Kind.FINAL, make(text))
    return Failure(Kind.FINAL, make(f"PostgreSQL refused statement {statement}: SQLSTATE {state}, {message}"))


def lost() -> Failure:
    """Make the failure of a connection that broke."""
    return _as_failure(_LOST)


def kept_waiting() -> Failure:
    """Make the failure of a call that took longer than its caller allows."""
    return _as_failure(_BUSY)


# libpq tells why a connection failed in words only. A server that answers in another language is "unreachable".
_NOT_ACCEPTED = ("authentication failed", "no password supplied", "pg_hba.conf", "not permitted to log in")
_NO_ROOM = ("too many", "connection slots")


def connect_failure(error: Exception, address: Address) -> Failure:
    """Judge an attempt to connect: wrong credentials and names stay wrong, all else may pass."""
    text = " ".join(str(error).split())
    low = text.lower()
    missing = "does not exist" in low
    if any(words in low for words in _NOT_ACCEPTED) or (missing and "role" in low):
        return _as_failure(_CREDENTIALS)
    if (missing and "database" in low) or "no such database" in low:
        return _as_failure(_NO_DATABASE)
    if any(words in low for words in _NO_ROOM):
        return _as_failure(_CROWDED)
    return Failure(
        Kind.LOST,
        Unavailable(
            f"PostgreSQL at {address.url} cannot be reached: {address.scrub(text)}; check the address, and that the "
            "server runs",
            code="UNREACHABLE",
        ),
    )


class Attempts:
    """
    How often one call is tried: a few times after contention, on new connections while time is left.

    Attributes:
        deadline: Monotonic; no try begins after it and none lasts much longer.
    """

    contentions_max = 5

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._contentions = 0
        self._tries = 0

    def after(self, failure: Failure) -> float:
        """
        Give the seconds to wait before the next try.

        Raises:
            TenureError: There is no next try.
        """
        self._tries += 1
        if failure.kind is Kind.CONTENTION:
            self._contentions += 1
            if self._contentions > self.contentions_max:
                raise failure.told() from None
        if failure.kind is Kind.FINAL or time.monotonic() >= self.deadline:
            raise failure.told() from None
        if failure.kind is Kind.LOST and self._tries == 1:
            # A connection that died in the pool tells nothing about the server.
            return 0.0
        ceiling = min(0.5, 0.005 * 2.0 ** min(self._tries, 10))
        pause = random.uniform(ceiling / 4, ceiling)  # noqa: S311 - spreads load, guards nothing
        return min(pause, max(0.0, self.deadline - time.monotonic()))
