"""
A transaction of a caller's own, on the store's connection or on the caller's.

On the store's connection it has a deadline, because it keeps everybody else waiting. When the time is over the writer
thread rolls it back although the caller's code still runs; that code then holds a connection that refuses every write.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import IllegalMove, Invalid, Refused, TenureError, Unavailable
from tenure.stores.runner import Requests, asked, drive
from tenure.stores.sqlite.answers import Answers
from tenure.stores.sqlite.clock import HostClock, Instants, ReplacedClock
from tenure.stores.sqlite.connect import plain_text
from tenure.stores.sqlite.failures import code_of, raise_typed
from tenure.stores.sqlite.keep_off import keep_off, refers
from tenure.yields import AfterCommit, Procedure, Rows

if TYPE_CHECKING:
    from tenure.stores.sqlite.engine import Engine

T = TypeVar("T")

# Changes nothing, and is a write all the same.
_TAKE_LOCK = "DELETE FROM tenure_meta WHERE false"


def run_inside(
    connection: sqlite3.Connection,
    procedure: Procedure[T],
    answers: Answers,
    clock: HostClock | ReplacedClock,
    using: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    deferred: bool = False,
) -> T | AfterCommit:
    """
    Run a procedure in a transaction that is open already; one that fails leaves nothing behind and the rest usable.

    Args:
        using: Entered around every use of the connection.
        deferred: The transaction may not have the write lock yet: it is asked for first. Whoever decides by what it has
            read without it may find at its first write that somebody else has written, and then can only roll back.
    """
    # A plain cursor: the connection's own may have the caller's row factory.
    cursor = sqlite3.Cursor(connection)

    @contextmanager
    def ours() -> Iterator[None]:
        try:
            with using(), plain_text(connection):
                yield
        except sqlite3.Error as error:
            raise_typed(error)

    def answer(requests: Requests) -> list[Rows]:
        with ours():
            return statements(requests)

    with ours():
        cursor.execute("SAVEPOINT tenure_step")
    try:
        instants = Instants(clock, connection)
        statements = answers.bind(cursor, instants)
        if deferred and not procedure.reads:
            with ours():
                cursor.execute(_TAKE_LOCK)
        value = drive(procedure, answer)
        with ours():
            instants.keep()
            cursor.execute("RELEASE tenure_step")
    except BaseException:
        with ours():
            if connection.in_transaction:  # a full disk may have ended the whole transaction
                cursor.execute("ROLLBACK TO tenure_step")
                cursor.execute("RELEASE tenure_step")
        raise
    return value


def _kept_off() -> Refused:
    return Refused(
        "in a store that was opened with a role or a tenant the tables of tenure are written through procedures alone, "
        "not by SQL, and a block leaves what would stand before them or hang on them, names of tables and the settings "
        "of the connection as they are; run the procedure, or open a store without either",
        code="ROLE_DENIED",
    )


class Turn:
    """
    A transaction on the writer connection; see `contract.Transaction`.

    Attributes:
        ends: When the deadline is over, monotonic.
        owner: The thread that opened it.
    """

    def __init__(self, engine: Engine, connection: sqlite3.Connection, limit: float) -> None:
        self.connection = connection
        self.ends = time.monotonic() + limit
        self.owner = threading.get_ident()
        self._pid = os.getpid()
        self._engine = engine
        self._limit = limit
        self._over: str | None = None
        self._after: TenureError | None = None
        self._trouble: sqlite3.Error | None = None
        self._state = threading.Lock()
        self._use = threading.Lock()
        self._rolled_back = threading.Event()

    def run(self, procedure: Procedure[T]) -> T:
        """See `contract.Transaction.run`; an `AfterCommit` is given back here and raised when the block has ended."""
        with asked(procedure, self._engine.allows):
            value = run_inside(self.connection, procedure, self._engine.answers, self._engine.clock, self._using)
        if isinstance(value, AfterCommit) and self._after is None:
            self._after = value.error
        return value  # type: ignore[return-value]  # an AfterCommit only where the procedure says so itself

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Run the caller's own SQL, `?` or `:name`, and give the driver's cursor."""
        with self._using():
            if self._engine.allows is None:
                return self.connection.execute(sql, params)
            # Our tables are written by procedures alone, and those are judged. Asked when a statement is prepared.
            if refers(self.connection, sql, params):
                raise _kept_off()
            self.connection.set_authorizer(keep_off)
            try:
                return self.connection.execute(sql, params)
            except sqlite3.DatabaseError as error:
                if "not authorized" not in str(error) and "prohibited" not in str(error):
                    raise
                raise _kept_off() from None
            finally:
                self.connection.set_authorizer(None)

    @contextmanager
    def _using(self) -> Iterator[None]:
        self._check_process()
        with self._use:
            if self._over is not None:
                raise self._refusal()
            yield

    def _refusal(self) -> TenureError:
        if self._over == "expired":
            late = Unavailable(
                f"this transaction lasted longer than its deadline of {self._limit:g} seconds and was rolled back; "
                "do less in it, or run it again",
                code="TRANSACTION_TIMEOUT",
            )
            if self._trouble is not None:
                late.add_note(f"the rollback met {type(self._trouble).__name__}; the connection was given up")
            return late
        return IllegalMove("this transaction has ended", code="TRANSACTION_ENDED")

    def _finish_as(self, how: str) -> bool:
        # Exactly one of the caller and the writer thread ends the transaction.
        with self._state:
            if self._over is not None:
                return False
            self._over = how
            return True

    def commit(self) -> None:
        """Commit, let go of the line, and raise what was to be raised after the commit."""
        self._check_process()
        if time.monotonic() >= self.ends:
            self.expire()
        if not self._finish_as("ended"):
            self._bury()
            raise self._refusal()
        try:
            if not self._still_open():
                raise IllegalMove(
                    "the transaction was ended inside its block; leave commit and rollback to the block",
                    code="TRANSACTION_ENDED",
                )
            self._engine.commit(self.connection)
        except sqlite3.Error as error:
            self._engine.writer.roll_back()
            if code_of(error) == sqlite3.SQLITE_IOERR:
                self._engine.writer.discard()
            raise_typed(error)
        finally:
            self._let_go()
        if self._after is not None:
            raise self._after

    def roll_back(self, error: BaseException) -> None:
        """Roll back and let go of the line after an error in the block; a passed deadline is the error to report."""
        if self._pid != os.getpid():
            return  # the transaction is the parent's
        if not self._finish_as("ended"):
            self._bury()
            if isinstance(error, Exception):
                raise self._refusal() from error
            return
        self._let_go()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Invalid(
                "this transaction belongs to the process that opened it; a forked child cannot use it",
                code="FORKED",
            )

    def expire(self) -> None:
        """Roll back because the deadline is over; called by the writer thread while the caller may still be at work."""
        if not self._finish_as("expired"):
            return
        engine, connection = self._engine, self.connection
        try:
            # Whatever statement runs now is stopped; one that begins between two tries is stopped by the next.
            while not self._use.acquire(timeout=0.005):
                connection.interrupt()
            try:
                connection.interrupt()
                if not engine.place.in_memory:
                    # The caller may hold the connection itself: from here on it can change nothing.
                    connection.execute("PRAGMA query_only=ON")
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._use.release()
        except sqlite3.Error as error:
            # Closed by the caller, which ended the transaction too; or the rollback failed, and closing the connection
            # does it instead. Nothing of it is committed either way, and the caller is told.
            self._trouble = error
        finally:
            if not engine.place.in_memory:
                engine.writer.forget()
            elif self._trouble is not None:
                engine.writer.roll_back()
            self._rolled_back.set()
            engine.line.release()

    def _still_open(self) -> bool:
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:  # closed by the caller
            return False

    def _let_go(self) -> None:
        engine, connection = self._engine, self.connection
        try:
            if self._still_open():
                engine.writer.roll_back()
            # What a caller may have changed for itself.
            connection.isolation_level = None
            connection.row_factory = None
            connection.text_factory = str
        except sqlite3.ProgrammingError:
            engine.writer.forget()
        finally:
            engine.line.release()

    def _bury(self) -> None:
        # An expired connection is closed by the thread that used it: closing it under a running statement is not safe.
        self._rolled_back.wait()
        if not self._engine.place.in_memory:
            self.connection.close()
