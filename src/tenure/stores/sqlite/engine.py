"""
One SQLite database, one writer connection, many callers.

A commit is one fsync, so its price is shared: the writer thread runs all procedures that wait, each in a savepoint of
its own, in one transaction. One that raises rolls back alone. Nobody gets a result, not even a refusal, before the
commit: a refusal may rest on what a neighbour wrote in the same transaction. Where the transaction is lost (a full
disk, a failed write) every procedure of the batch is run again alone. A procedure that was committed although the
commit seemed to fail answers itself on the second run, because its value carries the id of its command.

A caller that finds nobody before it does all this in its own thread: waking another thread costs more than the work.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tenure.errors import IllegalMove, Invalid, TenureError, Unavailable
from tenure.stores.contract import Allows
from tenure.stores.migrate import Migration
from tenure.stores.runner import drive, pauses
from tenure.stores.sqlite.anchor import Anchor
from tenure.stores.sqlite.answers import Answers
from tenure.stores.sqlite.clock import HostClock, Instants, ReplacedClock
from tenure.stores.sqlite.connect import Place
from tenure.stores.sqlite.failures import busy, closed, code_of, is_busy, raise_typed
from tenure.stores.sqlite.fork import leave_open, watch_forks
from tenure.stores.sqlite.line import PATIENCE, Line, Ticket, hand_out
from tenure.stores.sqlite.readers import CONNECTIONS_MAX, Readers
from tenure.stores.sqlite.turn import Turn
from tenure.stores.sqlite.writer import PAUSE_FIRST, PAUSE_LONGEST, Writer
from tenure.stores.statements import Named
from tenure.yields import AfterCommit, Procedure

T = TypeVar("T")

# A batch ends at either bound, so that other processes and open transactions get their turn.
BATCH_MAX = 150
BATCH_S = 0.020

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
        allows: Allows | None = None,
    ) -> None:
        self.place = place
        # Of everyone who uses this engine: its stores were made of one another.
        self.allows = allows
        self.known = list(migrations)
        self.answers = Answers(statements)
        self.clock = clock
        self.anchor = Anchor(place)
        self._users = 0
        self._start()
        watch_forks(self)

    def _start(self) -> None:
        # Everything that belongs to one process; a forked child calls it again.
        self.pid = os.getpid()
        self.line = Line()
        self.anchor.renew_lock()
        self.writer = Writer(self.place, self.known, self.anchor)
        self.readers = Readers(partial(self.writer.open, reader=True))
        self._thread: threading.Thread | None = None
        # What went wrong in the writer thread and is nobody's answer; the next caller hears of it.
        self._mishap: Exception | None = None
        self.lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self.stranded = ""
        self.clock.renew_lock()

    # One transaction, by whoever holds the line.

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit the holder's transaction; every commit of a procedure or a block comes through here."""
        self.writer.commit(connection)

    def _alone(self, procedure: Procedure[T], until: float) -> T | AfterCommit:
        # A transaction for one procedure.
        try:
            return self._once(procedure, until)
        except _Undecided:
            # The disk failed during the commit and leaves open whether it holds. The same value is run again on a
            # fresh connection; it recognises its own command.
            self.writer.discard()
        try:
            return self._once(procedure, time.monotonic() + PATIENCE)
        except _Undecided as undecided:
            self.writer.discard()
            raise_typed(undecided.error)

    def _once(self, procedure: Procedure[T], until: float) -> T | AfterCommit:
        try:
            connection = self.writer.begin(until)
            instants = Instants(self.clock, connection)
            value = drive(procedure, self.answers.bind(sqlite3.Cursor(connection), instants))
            self._finish(connection, instants)
        except BaseException:
            self.writer.roll_back()
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
        if self._mishap is not None:
            mishap, self._mishap = self._mishap, None
            raise Unavailable(
                f"the writer thread of this SQLite store met an unexpected {type(mishap).__name__}, a mistake of "
                "tenure's own; this call did nothing and may be made again; please report the error that caused this",
                code="WRITER_FAILED",
            ) from mishap

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
        self.anchor.check()
        for pause in pauses(PATIENCE, first=PAUSE_FIRST, longest=PAUSE_LONGEST):
            try:
                with self.readers.connection() as connection:
                    connection.execute("BEGIN")
                    self.writer.check_schema(connection)
                    cursor = sqlite3.Cursor(connection)
                    return drive(procedure, self.answers.bind(cursor, Instants(self.clock, connection)))
            except (sqlite3.Error, TenureError) as error:
                cause = error if isinstance(error, sqlite3.Error) else error.__cause__
                if cause is not None and code_of(cause) == sqlite3.SQLITE_READONLY:
                    raise AssertionError(f"{procedure!r} is marked as reading only, and writes") from error
                if cause is None or not is_busy(cause):
                    raise_typed(error)
            time.sleep(pause)  # somebody is writing; the schedule is bounded by the patience
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
            connection = self.writer.begin(time.monotonic() + PATIENCE)
            turn = Turn(self, connection, limit)
            self.line.watch(turn)
            self._need_thread()
        except BaseException:
            self.writer.roll_back()
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
            except Exception as error:  # noqa: BLE001 - told to the next caller; others must still be served
                # A mistake of ours, in no caller's own work. Every task lets go of the line by itself.
                self._mishap = self._mishap or error

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
        wants: list[Ticket] = []
        progress = True
        try:
            self._run_batch(served, wants)
        except BaseException as error:  # noqa: BLE001 - told to every caller; the thread goes on for the next ones
            progress = False
            self.writer.roll_back()
            if isinstance(error, Unavailable) and error.code == "STORE_BUSY":
                with self.line.changed:
                    served += self.line.give_up()
            for ticket in served:
                ticket.error = _again(error)
        granted = [ticket for ticket in wants if self.line.grant(ticket)]
        if not granted:
            self.line.release(progress=progress)
        hand_out(served + granted)

    def _run_batch(self, served: list[Ticket], wants: list[Ticket]) -> None:
        # Puts those it serves into `served`, and into `wants` one that is to have the line itself after the commit.
        ticket = self._pop(served, wants)
        if ticket is None:
            return
        connection = self.writer.begin(max(ticket.since + PATIENCE, time.monotonic() + 0.1))
        instants = Instants(self.clock, connection)
        answer = self.answers.bind(sqlite3.Cursor(connection), instants)
        end = time.monotonic() + BATCH_S
        whole = True
        while ticket is not None:
            whole = self._step(connection, ticket, answer)
            if not whole or len(served) >= BATCH_MAX or time.monotonic() >= end:
                break
            ticket = self._pop(served, wants)
        if whole:
            try:
                self._finish(connection, instants)
            except _Undecided:
                self.writer.roll_back()
                self.writer.discard()
                whole = False
            except (sqlite3.Error, TenureError):
                whole = False
        if not whole:
            self.writer.roll_back()
            for lost in served:
                self._once_more(lost)

    def _pop(self, served: list[Ticket], wants: list[Ticket]) -> Ticket | None:
        ticket = self.line.pop()
        if ticket is None:
            return None
        if ticket.procedure is None:
            wants.append(ticket)
            return None
        served.append(ticket)
        return ticket

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

    def _once_more(self, ticket: Ticket) -> None:
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

    def last_user(self) -> bool:
        """Tell whether only one store uses this engine."""
        return self._users == 1

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
                raise IllegalMove(
                    "a transaction of this store is open here; end it before closing the store",
                    code="INSIDE_TRANSACTION",
                )
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
        self.writer.close()

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
        self.writer.discard()
        return True

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.line.resume()
        self.readers.resume()

    def after_fork(self, *, quiet: bool) -> None:
        """Start anew in a child: other locks, no threads, no connection of the parent."""
        writer = self.writer.connection
        leave_open([*([] if writer is None else [writer]), *self.readers.idle, *self.readers.out])
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
        ticket.error = _again(error)
    hand_out(tickets)


def _again(error: BaseException) -> BaseException:
    # One for each caller: an error that is raised in many threads would collect all their tracebacks.
    one = copy.copy(error)
    one.__cause__ = error.__cause__
    return one
