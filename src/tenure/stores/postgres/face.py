"""What the blocking and the awaiting store share: everything but waiting."""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tenure.errors import Invalid, Unavailable, Uncertain
from tenure.guard import refuse_inside, refuse_other
from tenure.stores import migrate
from tenure.stores.contract import Allows, Clock
from tenure.stores.migrate import Migration
from tenure.stores.postgres import schema
from tenure.stores.postgres.address import read_address
from tenure.stores.postgres.connection import AwaitingConnection, BlockingConnection
from tenure.stores.postgres.transactions import Block, Host
from tenure.stores.postgres.trouble import Failure, Kind, connect_failure, connection_lost
from tenure.stores.postgres.unit import BEGIN, BLOCK_PLANS, READ_PLANS, Savepoint, Unit, settings
from tenure.stores.postgres.values import Catalogue, Query, plain
from tenure.stores.postgres.wake import NOTIFY, Listener, Pace
from tenure.stores.statements import Named, load
from tenure.yields import Procedure, Rows

POOL_SIZE = 8
# Renewals find a connection also while handlers hold all the others.
URGENT_SIZE = 2
# Seconds: how long an opener waits for a server that does not answer, and `migrate` for other processes.
_OPENING = 3.0
MIGRATING = 60.0

INSIDE = (
    "a transaction of this store is open here, and another one could wait for its locks; use the transaction's own run"
)
# Known from the start, so that the fate of a commit whose reply is lost can be asked for.
_OWN_ID = plain("own_id", "SELECT pg_current_xact_id()::text")
# What the caller may have set on the connection goes with the block.
TIDY = (Query("tidy", b"RESET ALL"), Query("tidy", b"RESET SESSION AUTHORIZATION"))


class Face(ABC):
    """
    The settings and rules of a store.

    Args:
        url: `postgresql://...`; see `address.read_address` for the parameters that are ours.
        role: A database role taken on in every transaction.
        tenant: Said in every transaction, for row security.
        allows: Asked before each procedure.
        clock: Replaces the clock; needs a schema made with `migrate(test_clock=True)`.
        patience: How long one call of `run` tries before it raises Unavailable.
        pool_size: Connections at most, beside two for urgent procedures and the one that listens.
        prepare: False behind a transaction-mode pooler.
        listen: False, or the server's own URL, behind such a pooler.
        statements: The package's own where left out.
        migrations: The package's own where left out.
    """

    dialect = "postgresql"
    block_max: timedelta | None = None
    ledger: Any = None
    # By the store that this one was made from, which closes it.
    ledger_is_lent = False

    def __init__(
        self,
        url: str,
        *,
        role: str | None = None,
        tenant: str | None = None,
        allows: Allows | None = None,
        clock: Clock | None = None,
        patience: timedelta = timedelta(seconds=10),
        pool_size: int | None = None,
        prepare: bool | None = None,
        listen: bool | str | None = None,
        statements: Mapping[str, Named] | None = None,
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        if patience <= timedelta(0):
            raise Invalid("patience is a positive duration", code="BAD_DURATION")
        if pool_size is not None and pool_size < 1:
            raise Invalid("pool_size is at least 1", code="BAD_ARGUMENT")
        # For a store of the other kind on the same database; a function, because the URL in it may hold a password.
        self._options: Callable[[], dict[str, Any]] = lambda: {
            "url": url,
            "role": role,
            "tenant": tenant,
            "allows": allows,
            "clock": clock,
            "patience": patience,
            "pool_size": pool_size,
            "prepare": prepare,
            "listen": listen,
            "statements": statements,
            "migrations": migrations,
        }
        self._address = read_address(url, prepare=prepare, listen=listen, pool_size=pool_size)
        self.url = self._address.url
        self._role = role
        self.tenant = tenant
        self.allows = allows
        self._clock = clock
        self._seconds = patience.total_seconds()
        self._catalogue = Catalogue(load(schema.PACKAGE) if statements is None else statements)
        self._known = migrate.load(schema.PACKAGE) if migrations is None else list(migrations)
        # Which installation of the schema this is, once a connection has told.
        self._installation: str | None = None
        # Why the last attempt to connect failed, None after one that did not.
        self._weather: Failure | None = None
        self._closed = False
        self._joined: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begin_anew()
        _watched.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @abstractmethod
    def _begin_anew(self) -> None:
        """Make what belongs to one process: locks, pools, threads."""
        self._pace = Pace()

    @abstractmethod
    def _leave_behind(self) -> object:
        """Give what a child of this process must never touch, nor collect."""

    def migration_sql(self) -> str:
        """See `contract.Store.migration_sql`."""
        return schema.whole(self._known)

    def roles_sql(self, *, row_security: bool = False) -> str:
        """See `contract.Store.roles_sql`."""
        return schema.roles(row_security=row_security)

    @contextmanager
    def listen(self, wake: Callable[[], None]) -> Iterator[bool]:
        """
        See `contract.Store.listen`: a thread with a connection of its own.

        Yields False where listening is switched off or the server could not be reached yet; in the second case it is
        tried again and again, and `wake` is called when it works.
        """
        self._check_open()
        if self._address.listen is None:
            yield False
            return
        listener = Listener(self._address.listen, wake).start()
        try:
            yield listener.heard
        except BaseException:
            listener.stop()
            raise
        error = listener.stop()
        if error is not None:
            raise error

    def file_identity(self) -> str | None:
        """See `contract.Store.file_identity`: the server says itself what tells it from a copy."""
        return None

    # What follows is for the two stores.

    def _pool_options(self, *, urgent: bool) -> dict[str, Any]:
        return {
            "kwargs": {
                "autocommit": True,
                # What the driver prepares it may also make the server forget, ours included.
                "prepare_threshold": None,
                "prepares": self._address.prepare,
                "report": self._report,
            },
            "min_size": 0,
            "max_size": URGENT_SIZE if urgent else (self._address.pool_size or POOL_SIZE),
            "num_workers": 1,
            # The pool does not go on trying by itself; whoever waits asks again, after at most a second.
            "reconnect_timeout": 0,
            "name": "tenure-urgent" if urgent else "tenure",
            "open": False,
        }

    def _report(self, error: Exception | None) -> None:
        self._weather = None if error is None else connect_failure(error, self._address)

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed()

    def _refuse(self, procedure: Procedure[Any] | None = None) -> None:
        # A read may run beside an open transaction, not inside a publish.
        beside = procedure is not None and procedure.reads
        refuse_inside(self, only="INSIDE_PUBLISH" if beside else None)
        self._check_open()

    def _after_waiting(self, left: float) -> None:
        # Nobody got a connection: is there a reason to stop waiting?
        weather = self._weather
        if weather is not None and weather.kind is Kind.FINAL:
            raise weather
        if left <= 0:
            raise weather or Failure(
                Kind.BUSY,
                Unavailable(
                    "all connections of this store are in use; give it a larger pool, or hold them for less time",
                    code="POOL_BUSY",
                ),
            )

    def _role_first(self) -> list[Query]:
        return settings(deadline=None, role=self._role, tenant=self.tenant)

    def _verify(self) -> schema.Steps[schema.Verified]:
        return schema.verify(self._known, clock=self._clock is not None, opening=self._role_first())

    def _note(self, connection: BlockingConnection | AwaitingConnection, found: schema.Verified) -> None:
        self._installation = found.installation
        connection.server_run = found.run
        connection.verified = True

    def _unit(self, procedure: Procedure[Any], deadline: float, *, tell: bool) -> Unit:
        if procedure.reads:
            return Unit(self._catalogue, self._clock, lambda: [*self._role_first(), READ_PLANS], repeated=True)
        after = [NOTIFY] if tell else []
        return Unit(self._catalogue, self._clock, lambda: self._begin(deadline, plans=True), commits=True, after=after)

    def _begin(self, deadline: float | None, *, plans: bool = False) -> list[Query]:
        return [BEGIN, *settings(deadline=deadline, role=self._role, tenant=self.tenant, plans=plans)]

    def _begin_block(self, ends: float | None) -> list[Query]:
        return [*self._begin(ends), BLOCK_PLANS, _OWN_ID]

    def _block(self, deadline: timedelta | None) -> OwnBlock:
        if deadline is None:
            return OwnBlock(self._catalogue, self._clock, None, self.allows)
        if deadline <= timedelta(0):
            raise Invalid("the deadline of a transaction is a positive duration", code="BAD_DURATION")
        return OwnBlock(self._catalogue, self._clock, deadline.total_seconds(), self.allows)

    def _check_join(self, connection: Any) -> None:
        self._check_open()
        refuse_other(self, connection)

    def _join_host(self, connection: Any) -> JoinHost:
        self._check_open()
        return JoinHost(self, connection)

    def _refuse_migrating(self) -> None:
        self._refuse()
        if self.allows is not None:
            self.allows("migrate", lambda: (None,))

    def _migrate(self, *, test_clock: bool, roles: bool, row_security: bool | None) -> schema.Steps[list[str]]:
        done = yield from schema.migrate(
            self._known, test_clock=test_clock, roles=roles, row_security=row_security, opening=self._role_first()
        )
        yield from self._look()
        return done

    def _pending(self) -> schema.Steps[list[str]]:
        return schema.waiting(self._known, opening=self._role_first())

    def _look(self) -> schema.Steps[None]:
        found = yield from schema.look(self._known, clock=self._clock is not None, opening=self._role_first())
        if found is not None:
            self._installation = found.installation

    def _opening_seconds(self) -> float:
        return min(self._seconds, _OPENING)


class OwnBlock(Block):
    """A block on a pooled connection."""

    def __init__(self, catalogue: Catalogue, clock: Clock | None, limit: float | None, allows: Allows | None) -> None:
        super().__init__(None if limit is None else time.monotonic() + limit, limit)
        self.allows = allows
        self._catalogue = catalogue
        self._clock = clock

    def unit(self) -> Unit:
        """See `Host.unit`; the server is told how much of the deadline is left."""
        return Unit(
            self._catalogue,
            self._clock,
            lambda: settings(deadline=self.ends, role=None),
            savepoint=Savepoint(),
        )


class JoinHost(Host):
    """A caller's connection; it is looked at in the round trip of its first statements."""

    def __init__(self, face: Face, connection: Any) -> None:
        self._face = face
        self._connection = connection
        self.allows = face.allows

    def unit(self) -> Unit:
        """See `Host.unit`."""
        face = self._face
        face._check_open()  # noqa: SLF001 - the other half of the store
        opening = [] if self._known else [schema.JOINED]
        return Unit(face._catalogue, face._clock, lambda: opening, savepoint=Savepoint())  # noqa: SLF001

    @property
    def _known(self) -> bool:
        return self._connection in self._face._joined  # noqa: SLF001

    def heard(self, results: list[Rows]) -> None:
        """See `Host.heard`."""
        face = self._face
        if not self._known:
            schema.check_joined(
                results[1],
                face._known,  # noqa: SLF001
                clock=face._clock is not None,  # noqa: SLF001
                installation=face._installation,  # noqa: SLF001
            )
            face._joined.add(self._connection)  # noqa: SLF001


# What the server may say of a transaction, besides committed and aborted.
IN_PROGRESS = "in progress"


def fate_query(own_id: str) -> Query:
    """Ask what became of a transaction."""
    return plain("fate", "SELECT pg_xact_status($1::text::xid8)", own_id)


def judge_fate(fate: str | None) -> None:
    """
    Tell what a lost commit was.

    Args:
        fate: What the server says; None where it is not the server that got the commit, or has forgotten.
    Raises:
        Unavailable: Nothing was written.
        Uncertain: Nobody knows.
    """
    if fate == "committed":
        return
    if fate == "aborted":
        raise connection_lost()
    raise commit_unknown()


def commit_unknown() -> Uncertain:
    """Make the error for a block of which nobody can say whether it was committed."""
    return Uncertain(
        "the reply to a commit was lost and the server cannot tell what became of it; look at what the block wrote",
        code="COMMIT_UNKNOWN",
    )


def store_closed() -> Invalid:
    """Make the error for a store that was closed."""
    return Invalid("this store is closed; open another one", code="STORE_CLOSED")


# Forks. A child gets copies of the parent's sockets, and one byte from it would break the parent's conversation.

_watched: weakref.WeakSet[Face] = weakref.WeakSet()
_left_behind: list[object] = []


def _in_child() -> None:
    for face in list(_watched):
        _left_behind.append(face._leave_behind())  # noqa: SLF001
        face._joined = weakref.WeakSet()  # noqa: SLF001
        face._begin_anew()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
