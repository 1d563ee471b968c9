"""
One SQLite database, one writer connection, many callers.

A commit is one fsync, so its price is shared: the writer thread runs all procedures that wait, each in a savepoint of
its own, in one transaction. One that raises rolls back alone. Nobody gets a result, not even a refusal, before the
commit: a refusal may rest on what a neighbour wrote in the same transaction. Where the transaction is lost (a full
disk, a failed write) every procedure of the batch is run again alone. A procedure that was committed although the
commit seemed to fail answers itself on the second run, because its value carries the id of its command.

A caller that finds nobody before it does all this in its own thread: waking another thread costs more than the work.

Between processes SQLite's write lock is taken by whoever asks at the right moment. Tries are short and jittered, and a
process that has used the lock for a while, where others want it too, leaves a gap that is longer than their pauses.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tenure.errors import IllegalMove, Invalid, TenureError, Unavailable
from tenure.stores.migrate import Migration, check_version
from tenure.stores.runner import drive, pauses
from tenure.stores.sqlite.answers import Answers
from tenure.stores.sqlite.clock import HostClock, Instants, ReplacedClock
from tenure.stores.sqlite.connect import Place, connect
from tenure.stores.sqlite.failures import busy, closed, code_of, is_busy, raise_typed
from tenure.stores.sqlite.fork import leave_open, watch_forks
from tenure.stores.sqlite.line import PATIENCE, Line, Ticket, hand_out
from tenure.stores.sqlite.readers import CONNECTIONS_MAX, Readers
from tenure.stores.sqlite.turn import Turn
from tenure.stores.statements import Named
from tenure.yields import AfterCommit, Procedure

log = logging.getLogger("tenure.store")

T = TypeVar("T")

# A batch ends at either bound, so that other processes and open transactions get their turn.
BATCH_MAX = 150
BATCH_S = 0.020

# Seconds. A gap must be longer than the longest pause between two tries of another process.
_PAUSE_FIRST = 0.0005
_PAUSE_LONGEST = 0.003
_GAP = 0.004
_SLICE = 0.020
# A lone process leaves a gap this often all the same, or it would never learn that others wait.
_SLICE_ALONE = 0.5
_CONTENDED = 1.0
# How long a fork waits for those who are in a transaction.
_FORK_PATIENCE = 1.0


class _Undecided(Exception):
    """A commit failed in a way that does not tell whether it holds."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__()
        self.error = error


class Engine:
    """The machinery behind a SQLite store; the blocking and the awaiting store are two faces of it."""

    def __init__(
        self,
        place: Place,
        statements: Mapping[str, Named],
        migrations: Sequence[Migration],
        clock: HostClock | ReplacedClock,
    ) -> None:
        self.place = place
        self.known = list(migrations)
        self.answers = Answers(statements)
        self.clock = clock
        self._users = 0
        # How many stores use it; the last one to close ends it.
        self.faces = 0
        self._start()
        watch_forks(self)

    def _start(self) -> None:
        # Everything that belongs to one process; a forked child calls it again.
        self.pid = os.getpid()
        self.line = Line()
        self.readers = Readers(lambda: self.connect(reader=True))
        self.writer: sqlite3.Connection | None = None
        self.fits = False
        self._thread: threading.Thread | None = None
        self.lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._contended_until = 0.0
        self._slice_began = 0.0
        self._let_go = 0.0
        self.stranded = ""
        self.clock.renew_lock()

    # Connections.

    def connect(self, *, reader: bool = False, create: bool = False) -> sqlite3.Connection:
        """Open a connection; a busy database raises the driver's error, everything else a typed one."""
        try:
            return connect(self.place, reader=reader, create=create)
        except sqlite3.Error as error:
            path = None if self.place.path is None else Path(self.place.path)
            if code_of(error) == sqlite3.SQLITE_CANTOPEN and path is not None:
                raise_unopened(path, error)
            if is_busy(error):
                raise
            raise_typed(error)

    def discard_writer(self) -> None:
        """Close the writer connection; the next user opens another one and looks at the schema again."""
        if self.writer is not None and not self.place.in_memory:
            connection, self.writer = self.writer, None
            self.fits = False
            connection.close()

    def look(self) -> sqlite3.Connection:
        """Open the writer connection where it is not open yet, and give it; waits for others as `begin` does."""
        for pause in pauses(PATIENCE, first=_PAUSE_FIRST, longest=_PAUSE_LONGEST):
            try:
                if self.writer is None:
                    self.writer = self.connect()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise_typed(error)
                time.sleep(pause)
            else:
                return self.writer
        raise busy()

    def check_schema(self, connection: sqlite3.Connection) -> None:
        """Refuse a schema that is missing, older or newer; looked at once for each opening."""
        if not self.fits:
            check_version(applied_version(connection), self.known)
            self.fits = True

    # One transaction, by whoever holds the line.

    def begin(self, until: float, *, create: bool = False) -> sqlite3.Connection:
        """
        Open a write transaction on the writer connection.

        Args:
            until: When to give up, monotonic.
            create: Make the file where there is none, and accept any schema.
        """
        self._leave_gap()
        waited = False
        for pause in pauses(max(until - time.monotonic(), 0.001), first=_PAUSE_FIRST, longest=_PAUSE_LONGEST):
            try:
                if self.writer is None:
                    self.writer = self.connect(create=create)
                self.writer.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise_typed(error)
                waited = True
                self._contended_until = time.monotonic() + _CONTENDED
                time.sleep(pause)
            else:
                if waited:
                    self._slice_began = time.monotonic()
                if not create:
                    self._check_or_roll_back(self.writer)
                return self.writer
        raise busy()

    def _check_or_roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            self.check_schema(connection)
        except BaseException:
            self.roll_back()
            raise

    def _leave_gap(self) -> None:
        if self.place.in_memory:
            return
        now = time.monotonic()
        if now - self._let_go > _GAP:  # there was a gap of its own accord
            self._slice_began = now
            return
        allowed = _SLICE if now < self._contended_until else _SLICE_ALONE
        if now - self._slice_began > allowed:
            time.sleep(_GAP * random.uniform(1.0, 1.5))  # noqa: S311 - spreads load, guards nothing
            self._slice_began = time.monotonic()

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit; the driver's error passes through."""
        connection.execute("COMMIT")
        self._let_go = time.monotonic()

    def roll_back(self) -> None:
        """End whatever transaction is open on the writer connection; one that cannot be ended is thrown away."""
        connection = self.writer
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.discard_writer()
        self._let_go = time.monotonic()

    def _alone(self, procedure: Procedure[T], until: float) -> T | AfterCommit:
        # A transaction for one procedure.
        try:
            return self._once(procedure, until)
        except _Undecided:
            # The disk failed during the commit and leaves open whether it holds. The same value is run again on a
            # fresh connection; it recognises its own command.
            self.discard_writer()
        try:
            return self._once(procedure, time.monotonic() + PATIENCE)
        except _Undecided as undecided:
            self.discard_writer()
            raise_typed(undecided.error)

    def _once(self, procedure: Procedure[T], until: float) -> T | AfterCommit:
        try:
            connection = self.begin(until)
            instants = Instants(self.clock, connection)
            value = drive(procedure, self.answers.bind(sqlite3.Cursor(connection), instants))
            self._finish(connection, instants)
        except BaseException:
            self.roll_back()
            raise
        return value

    def _finish(self, connection: sqlite3.Connection, instants: Instants) -> None:
        try:
            instants.keep()
            self.commit(connection)
        except sqlite3.Error as error:
            if code_of(error) == sqlite3.SQLITE_IOERR:
                raise _Undecided(error) from error
            raise_typed(error)

    # Callers.

    def check_process(self) -> None:
        """Refuse a store that was closed or cannot be used in this process; costs one system call."""
        if self.pid != os.getpid():
            self.after_fork(quiet=False)
        if self.stranded:
            raise Invalid(f"{self.stranded}; open the store anew in a fresh process", code="FORKED")

    def run(self, procedure: Procedure[T]) -> T | AfterCommit:
        """Run and commit one procedure, in this thread where nobody is before it."""
        self.check_process()
        if procedure.reads and not self.place.in_memory:
            return self.read(procedure)
        if self.line.take():
            try:
                return self._alone(procedure, time.monotonic() + PATIENCE)
            finally:
                self.line.release()
        ticket = Ticket(procedure)
        self._enter(ticket)
        value: T | AfterCommit = ticket.wait()
        return value

    async def run_async(self, procedure: Procedure[T]) -> T | AfterCommit:
        """Run and commit one procedure on the writer thread; a read goes to a reader's thread."""
        self.check_process()
        loop = asyncio.get_running_loop()
        if procedure.reads and not self.place.in_memory:
            pool = self.pool("reader", CONNECTIONS_MAX)
            return await loop.run_in_executor(pool, self.read, procedure)
        ticket = Ticket(procedure, loop)
        self._enter(ticket)
        assert ticket.future is not None
        value: T | AfterCommit = await ticket.future
        return value

    def read(self, procedure: Procedure[T]) -> T | AfterCommit:
        """Run a procedure that only reads, on a snapshot; again from its start where a lock was in the way."""
        for pause in pauses(PATIENCE, first=_PAUSE_FIRST, longest=_PAUSE_LONGEST):
            try:
                with self.readers.connection() as connection:
                    connection.execute("BEGIN")
                    self.check_schema(connection)
                    cursor = sqlite3.Cursor(connection)
                    return drive(procedure, self.answers.bind(cursor, Instants(self.clock, connection)))
            except (sqlite3.Error, TenureError) as error:
                cause = error if isinstance(error, sqlite3.Error) else error.__cause__
                if cause is not None and code_of(cause) == sqlite3.SQLITE_READONLY:
                    raise AssertionError(f"{procedure!r} is marked as reading only, and writes") from error
                if cause is None or not is_busy(cause):
                    raise_typed(error)
            time.sleep(pause)
        raise busy()

    def _enter(self, ticket: Ticket) -> None:
        # The thread first: a store that is being closed waits for its thread, and so for this ticket.
        self._need_thread()
        self.line.enter(ticket)

    def pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        """Give the threads that keep an event loop from blocking, started when first needed."""
        with self.lock:
            pool = self._pools.get(name)
            if pool is None:
                if self.line.closed:
                    raise closed()
                pool = self._pools[name] = ThreadPoolExecutor(threads, thread_name_prefix=f"tenure-sqlite-{name}")
            return pool

    # Transactions of a caller's own.

    def lend(self, limit: float) -> Turn:
        """Wait for the line, blocking, and open a transaction that its caller must end."""
        self.check_process()
        self._take_line()
        return self.open_turn(limit)

    def _take_line(self) -> None:
        if self.line.take():
            return
        ticket = Ticket(None)
        self._enter(ticket)
        try:
            ticket.wait()
        except TenureError:
            raise
        except BaseException:  # interrupted while waiting
            self.line.leave(ticket)
            raise

    async def line_async(self) -> None:
        """Wait for the line, awaiting."""
        self.check_process()
        if self.line.take():
            return
        ticket = Ticket(None, asyncio.get_running_loop())
        self._enter(ticket)
        assert ticket.future is not None
        try:
            await ticket.future
        except asyncio.CancelledError:
            self.line.leave(ticket)
            raise

    def open_turn(self, limit: float) -> Turn:
        """Begin a transaction for the holder of the line, who has it until the turn ends or the limit is over."""
        try:
            connection = self.begin(time.monotonic() + PATIENCE)
            turn = Turn(self, connection, limit)
            self.line.watch(turn)
            self._need_thread()
        except BaseException:
            self.roll_back()
            self.line.release()
            raise
        return turn

    def exclusively(self, work: Callable[[], T]) -> T:
        """Do something with the writer connection while nobody else does, without a deadline."""
        self.check_process()
        self._take_line()
        try:
            return work()
        finally:
            self.line.release()

    # The writer thread.

    def _need_thread(self) -> None:
        if self._thread is not None:
            return
        with self.lock:
            if self.line.closed:
                raise closed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tenure-sqlite-writer", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception:
                # A mistake of ours. Every task lets go of the line by itself; others must still be served.
                log.exception("the writer thread of a SQLite store met an unexpected error")

    def _next_task(self) -> Callable[[], None] | None:
        line = self.line
        with line.changed:
            while True:
                if not line.held and not line.paused and line.waits():
                    line.held = True
                    return self._serve_batch
                if line.closed and not line.held and not line.waits():
                    return None
                now = time.monotonic()
                wake: float | None = None
                holder = line.watched
                if holder is not None:
                    if holder.ends <= now:
                        line.watched = None
                        return holder.expire
                    wake = holder.ends
                if line.waits():
                    if gone := line.give_up():
                        return partial(_refuse, gone, busy())
                    wake = min(line.patience(), wake or line.patience())
                line.changed.wait(None if wake is None else max(0.0, wake - now))

    def _serve_batch(self) -> None:
        served: list[Ticket] = []
        turn: Ticket | None = None
        progress = True
        try:
            turn = self._run_batch(served)
        except BaseException as error:  # noqa: BLE001 - told to every caller; the thread goes on for the next ones
            progress = False
            self.roll_back()
            if isinstance(error, Unavailable) and error.code == "STORE_BUSY":
                with self.line.changed:
                    served += self.line.give_up()
            for ticket in served:
                ticket.error = copy.copy(error)
        if turn is not None and self.line.grant(turn):
            served.append(turn)
        else:
            self.line.release(progress=progress)
        hand_out(served)

    def _run_batch(self, served: list[Ticket]) -> Ticket | None:
        # Serves tickets into `served`; gives back one that wants the line itself, after the commit of those before it.
        ticket = self.line.pop()
        if ticket is None or ticket.procedure is None:
            return ticket
        served.append(ticket)
        until = ticket.since + PATIENCE
        connection = self.begin(max(until, time.monotonic() + 0.1))
        instants = Instants(self.clock, connection)
        answer = self.answers.bind(sqlite3.Cursor(connection), instants)
        end = time.monotonic() + BATCH_S
        turn: Ticket | None = None
        whole = self._step(connection, ticket, answer)
        while whole and len(served) < BATCH_MAX and time.monotonic() < end:
            ticket = self.line.pop()
            if ticket is None or ticket.procedure is None:
                turn = ticket
                break
            served.append(ticket)
            whole = self._step(connection, ticket, answer)
        if whole:
            try:
                self._finish(connection, instants)
            except _Undecided:
                self.roll_back()
                self.discard_writer()
                whole = False
            except (sqlite3.Error, TenureError):
                whole = False
        if not whole:
            self.roll_back()
            for ticket in served:
                self._again(ticket)
        return turn

    def _step(self, connection: sqlite3.Connection, ticket: Ticket, answer: Any) -> bool:
        # One procedure in its savepoint; False when the whole transaction is gone.
        procedure = ticket.procedure
        assert procedure is not None
        try:
            connection.execute("SAVEPOINT tenure_step")
            ticket.value = drive(procedure, answer)
            connection.execute("RELEASE tenure_step")
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller who waits for this ticket
            ticket.error = error
            if not connection.in_transaction:
                return False
            try:
                connection.execute("ROLLBACK TO tenure_step")
                connection.execute("RELEASE tenure_step")
            except sqlite3.Error:
                return False
        return True

    def _again(self, ticket: Ticket) -> None:
        assert ticket.procedure is not None
        ticket.value = ticket.error = None
        try:
            ticket.value = self._alone(ticket.procedure, time.monotonic() + PATIENCE)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller who waits for this ticket
            ticket.error = error

    # The end, and forks.

    def use(self) -> None:
        """Count one more store that uses this engine."""
        with self.lock:
            self._users += 1

    def leave(self) -> None:
        """Count one store less; the last one ends the engine."""
        with self.lock:
            self._users -= 1
            last = self._users == 0
        if last:
            try:
                self.close()
            except IllegalMove:
                self.use()
                raise

    def close(self) -> None:
        """Serve those who wait, then end every thread and close every file."""
        if self.pid != os.getpid():
            self.after_fork(quiet=False)
        with self.line.changed:
            holder = self.line.watched
            if holder is not None and holder.owner == threading.get_ident():
                raise IllegalMove("a transaction of this store is open here; end it before closing the store")
            self.line.closed = True
            self.line.changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with self.line.changed:
            self.line.changed.wait_for(lambda: not self.line.held)
        with self.lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=True)
        self.readers.close()
        connection, self.writer = self.writer, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> bool:
        """
        Close every file, so that a child inherits none; they are opened again when next used.

        SQLite keeps one table of file locks for the whole process. A child that inherits an open database inherits that
        table, and with it locks that it does not have: it could lose commits without any error.

        Returns:
            False where somebody was in a transaction and did not end it soon: the child must not use the database.
        """
        if self.place.in_memory or self.line.closed:
            return False
        holder = self.line.watched
        if holder is not None and holder.owner == threading.get_ident():
            return False
        if not (self.line.pause(_FORK_PATIENCE) and self.readers.pause(_FORK_PATIENCE)):
            return False
        self.discard_writer()
        return True

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.line.resume()
        self.readers.resume()

    def after_fork(self, *, quiet: bool) -> None:
        """Start anew in a child: other locks, no threads, no connection of the parent."""
        leave_open([*([self.writer] if self.writer is not None else []), *self.readers.idle, *self.readers.out])
        closed_before = self.line.closed
        self._start()
        if closed_before:
            self.line.closed = True
            self.readers.close()
        elif not quiet:
            self.stranded = (
                "a database in memory stays with the process that opened it"
                if self.place.in_memory
                else "this process was forked while a transaction of the store was open"
            )


def _refuse(tickets: list[Ticket], error: TenureError) -> None:
    for ticket in tickets:
        ticket.error = copy.copy(error)
    hand_out(tickets)


def raise_unopened(path: Path, error: sqlite3.Error) -> NoReturn:
    """Say why a file could not be opened."""
    if not path.parent.is_dir():
        raise Invalid(
            "the folder of the SQLite database does not exist; make it, or correct the store URL",
            code="CANNOT_OPEN",
        ) from error
    if not path.exists():
        raise Invalid(
            "there is no database file at the store URL yet; run `tenure migrate --store URL`",
            code="SCHEMA_MISSING",
        ) from error
    raise_typed(error)


def applied_version(connection: sqlite3.Connection) -> int | None:
    """Give the highest migration applied, None where there was never one."""
    cursor = sqlite3.Cursor(connection)
    try:
        (version,) = cursor.execute("SELECT max(version) FROM tenure_migration").fetchone()
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return None
        raise_typed(error)
    return None if version is None else int(version)
