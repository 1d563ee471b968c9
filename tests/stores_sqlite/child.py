"""Programs for child processes: `python -m tests.stores_sqlite.child NAME ARGUMENTS`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import sys
import threading
import time

from tenure.errors import TenureError, Unavailable
from tenure.stores.sqlite.store import SqliteStore
from tenure.yields import Each, Script, procedure
from tests.stores_sqlite.support import Background, wait_for_line
from tests.stores_sqlite.toy import async_toy_store, count, count_aside, keys_aside, put, toy_store


def say(*words: object) -> None:
    print(*words, flush=True)


def wait() -> None:
    sys.stdin.readline()


def failing_disk(url: str, mode: str) -> None:
    store = toy_store(url)
    store.migrate()
    store.run(put("before"))
    runs: list[int] = []

    @procedure
    def large() -> Script[None]:
        runs.append(1)
        yield Each("put", [("large", "x", "x" * 400_000)])

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        if mode == "alone":
            store.run(large())
        elif mode == "batch":
            with store.transaction():
                call = Background(store.run, large())
                wait_for_line(store, 1)
            call.result()
        else:
            with store.transaction() as tx:
                tx.run(large())
        say("nothing failed")
    except Unavailable as error:
        say(error.code, "twice" if len(runs) >= 2 else "once")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.run(put("after"))
    say("recovered", store.run(keys_aside()))
    store.close()


def _meet(store: SqliteStore, who: str) -> None:
    """Let all four processes begin together, however slowly some of them were started."""
    store.run(put(f"{who}-start"))
    while len([key for key in store.run(keys_aside()) if key.endswith("-start")]) < 4:
        pass


def put_in_turn(url: str, who: str, number: str) -> None:
    """Many small procedures of one blocking caller; says the longest wait in seconds."""
    store = toy_store(url)
    _meet(store, who)
    longest = 0.0
    for one in range(int(number)):
        began = time.monotonic()
        store.run(put(f"{who}-{one}", who=who))
        longest = max(longest, time.monotonic() - began)
    store.close()
    say(longest)


def put_together(url: str, who: str, number: str) -> None:
    """The same by many tasks at once."""

    async def main() -> None:
        longest = 0.0
        async with async_toy_store(url) as store:

            async def lane(keys: range) -> None:
                nonlocal longest
                for one in keys:
                    began = time.monotonic()
                    await store.run(put(f"{who}-{one}", who=who))
                    longest = max(longest, time.monotonic() - began)

            with store.blocking() as blocking:
                _meet(blocking, who)
            await asyncio.gather(*[lane(range(start, int(number), 20)) for start in range(20)])
        say(longest)

    asyncio.run(main())


def migrate(url: str) -> None:
    store = toy_store(url)
    say("ready")
    wait()
    say(",".join(store.migrate()))
    store.close()


def killed_migrations(folder: str) -> None:
    """Migrate again and again, killed before the first statement, before the second, until none is left."""
    number = 0
    while True:
        url = f"sqlite:///{folder}/killed_{number}.db"
        pid = os.fork()
        if pid == 0:
            _migrate_until(url, number)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != -signal.SIGKILL:
            say("done" if code == 0 else code)
            return
        with toy_store(url) as store:
            before = store.pending_migrations()
            store.migrate()
            say(f"killed with {before} pending, then {store.pending_migrations()} pending")
        number += 1


def _migrate_until(url: str, left: int) -> None:
    def trace(_statement: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    store = toy_store(url)
    connect = store._engine.writer.open

    def traced(**settings: bool) -> sqlite3.Connection:
        connection = connect(**settings)
        connection.set_trace_callback(trace)
        return connection

    store._engine.writer.open = traced  # type: ignore[method-assign]
    store.migrate()


def as_nobody(url: str) -> None:
    """Use a database that this user may read and not write."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    store = toy_store(url)
    try:
        store.run(put("a"))
    except TenureError as error:
        say(error.code)
    else:
        say("written")
    store.close()


def forked(url: str, mode: str) -> None:
    store = SqliteStore(url) if mode == "shipped" else toy_store(url)
    store.migrate()
    FORKS[mode](store)
    store.close()
    say("parent", sqlite3.connect(url.removeprefix("sqlite:///")).execute("PRAGMA integrity_check").fetchone()[0])


def _child_of(work: object) -> str:
    """Run something in a forked child and give what it returned or raised, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            text = str(work())  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - told to the parent
            text = f"{getattr(error, 'code', type(error).__name__)}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _pid, status = os.waitpid(pid, 0)
    return f"{text} {os.waitstatus_to_exitcode(status)}"


def _fork_use(store: SqliteStore) -> None:
    store.run(put("parent"))
    store.run(count_aside())
    say(_child_of(lambda: [store.run(put("child")), store.run(count_aside()), store.run(count())]))
    say(store.run(keys_aside()))


def _fork_exit(store: SqliteStore) -> None:
    # A child that uses the store and ends like any program, with all that Python does at its end.
    store.run(put("parent"))
    pid = os.fork()
    if pid == 0:
        store.run(put("child"))
        sys.exit(0)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    store.run(put("later"))
    say(store.run(keys_aside()))


def _fork_unused(store: SqliteStore) -> None:
    # A child that never uses the store must not harm it when it ends.
    store.run(put("parent"))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    store.run(put("later"))
    say(store.run(keys_aside()))


def _fork_outlives(store: SqliteStore) -> None:
    # The parent closes its store, and with it the last connection it has, while the child goes on writing.
    store.run(put("parent"))
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        store.run(put("child 1"))
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        store.run(put("child 2"))
        os._exit(0)  # without closing
    os.read(ready[0], 1)
    store.close()
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    with toy_store(store.url) as other:
        say(other.run(keys_aside()))


def _fork_in_block(store: SqliteStore) -> None:
    with store.transaction() as tx:
        tx.run(put("parent"))
        say(_child_of(lambda: tx.run(put("child"))))
        say(_child_of(lambda: store.run(count_aside())))
    pid = -1
    try:
        with store.transaction() as tx:
            tx.run(put("both"))
            pid = os.fork()
    except TenureError as error:
        # The child leaves the block, and may not commit what is the parent's.
        os._exit(7 if pid == 0 and error.code == "FORKED" else 8)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    say(store.run(keys_aside()))


def _fork_busy(store: SqliteStore) -> None:
    # Threads that write and read all the time, and many forks in between.
    end = threading.Event()

    def work(who: int) -> int:
        number = 0
        while not end.is_set():
            store.run(put(f"{who}-{number}"))
            store.run(count_aside())
            number += 1
        return number

    calls = [Background(work, who) for who in range(4)]
    said = [_child_of(lambda one=one: store.run(put(f"child {one}"))) for one in range(25)]
    end.set()
    total = sum(call.result() for call in calls)
    say(set(said) == {f"child {one} 0" for one in range(25)}, store.run(count_aside()) == total + 25, total > 0)


def _fork_closed(store: SqliteStore) -> None:
    store.close()
    say(_child_of(lambda: store.run(count_aside())))


FORKS = {
    "use": _fork_use,
    "exit": _fork_exit,
    "unused": _fork_unused,
    "outlives": _fork_outlives,
    "block": _fork_in_block,
    "busy": _fork_busy,
    "closed": _fork_closed,
}


def forked_memory() -> None:
    store = toy_store("sqlite:///:memory:")
    store.migrate()
    store.run(put("a"))
    say(_child_of(lambda: store.run(count())))
    say(store.run(count()))
    store.close()


def forked_async(url: str) -> None:
    async def main() -> None:
        store = async_toy_store(url)
        await store.migrate()
        await store.run(put("parent"))
        await store.run(count_aside())
        pid = os.fork()
        if pid == 0:
            # The parent's loop is not the child's: a fresh one uses the same store.
            code = 1
            try:
                code = asyncio.new_event_loop().run_until_complete(store.run(put("child"))) != "child"
            finally:
                os._exit(code)
        _pid, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, pid, 0)
        say(os.waitstatus_to_exitcode(status))
        await store.run(put("later"))
        say(await store.run(keys_aside()))
        await store.close()

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
