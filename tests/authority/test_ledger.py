"""The ledger itself, on each of its three places: shared by many, compacted, damaged, full, gone."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.errors import Invalid, NotFound, Refused, Unavailable
from tenure.flows.drive import run_flow
from tenure.flows.look import first_look
from tenure.journal.ledger import COMPACT_BYTES, FileLog, LogLedger
from tenure.journal.mender import repair
from tenure.journal.storage import KernelStorage
from tenure.opening import open_ledger, open_store
from tenure.rules.ledger import (
    FROZEN,
    Book,
    Pending,
    confirmed,
    proposed,
    recovered,
    recovering,
    released,
    restricted,
    settled,
    ticked,
    withdrawn,
)
from tenure.stores import redacted as stores_redacted
from tests.support.postgres import Databases

STORE = "sqlite:////elsewhere/jobs.db"
BOOK = Book(store="s-1", identity="here", epochs={"acme": 3}, restrictions={("acme", FROZEN, ""): {}})
Make = Callable[[], LogLedger]


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Open the same ledger once more."""
    place = {
        "file": lambda: str(tmp_path / "ledger"),
        "sqlite": lambda: f"sqlite:///{tmp_path}/ledger.db",
        "postgresql": lambda: str(request.getfixturevalue("postgres_database")),
    }[request.param]()

    def opened() -> LogLedger:
        ledger = open_ledger(STORE, place)
        assert ledger is not None
        request.addfinalizer(ledger.close)
        return ledger

    return opened


def act(number: int, what: str = "rotated") -> Pending:
    return Pending(f"00000000-0000-0000-0000-{number:012d}", what, "acme", 3 + number, "op:1", "r")


def test_what_one_writes_another_reads(make: Make) -> None:
    one, two = make(), make()
    assert one.read() is None
    assert one.begin(BOOK) == BOOK
    assert two.begin(replace(BOOK, store="s-2")) == BOOK, "the first one stays"
    two.write(proposed(act(1)), proposed(act(2, FROZEN)), ticked(7, 70))
    found = one.read()
    assert found is not None
    assert (found.incarnation, found.ticked_at, sorted(found.pending)) == (7, 70, [act(1).id, act(2).id])
    assert found.reach("acme") == 5
    assert found.epochs["acme"] == 3, "what is pending is not yet so"
    one.write(
        confirmed(act(1).id),
        withdrawn(act(2).id),
        released("acme", FROZEN),
        restricted("acme", "approval", "a-1", {"expires_at": "2030-01-31T12:00:00+00:00"}),
    )
    one.write(confirmed(act(1).id), ticked(6, 60))  # said twice, and by a slow one
    found = two.read()
    assert found is not None
    assert (found.epochs["acme"], found.incarnation, dict(found.pending)) == (4, 7, {})
    assert found.restrictions == {("acme", "approval", "a-1"): {"expires_at": "2030-01-31T12:00:00+00:00"}}
    one.write(recovering("there"))
    assert two.write(recovered("there", 9, 90, {"acme": 5, "beta": 2})).identity == "there"
    found = one.write(settled("elsewhere"))
    assert (found.identity, found.recovering, found.incarnation, found.epochs) == (
        "elsewhere",
        None,
        9,
        {"acme": 5, "beta": 2},
    )


def test_many_writers_lose_nothing(make: Make) -> None:
    make().begin(BOOK)

    def write(first: int) -> None:
        ledger = make()
        for number in range(first, first + 15):
            ledger.write(proposed(act(number)))
        ledger.close()

    threads = [threading.Thread(target=write, args=(100 * nth,)) for nth in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = make().read()
    assert found is not None
    assert len(found.pending) == 60


def test_ticks_are_put_together_and_a_reader_that_slept_follows(make: Make, tmp_path: Path) -> None:
    writer, sleeper = make(), make()
    writer.begin(BOOK)
    assert sleeper.read() == BOOK
    for count in range(1, 702):
        writer.write(ticked(count, count))
    found = sleeper.read()
    assert found == replace(BOOK, incarnation=701, ticked_at=701)
    assert sleeper.write(ticked(702, 702)).incarnation == 702
    assert make().read() == writer.read()
    file = tmp_path / "ledger"
    assert not file.exists() or file.stat().st_size < COMPACT_BYTES + 200


def test_a_ledger_that_is_gone_is_missing_and_never_a_new_one(make: Make, tmp_path: Path) -> None:
    ledger = make()
    with pytest.raises(NotFound) as raised:
        ledger.write(ticked(1, 1))
    assert raised.value.code == "LEDGER_MISSING"
    ledger.begin(BOOK)
    assert ledger.write(ticked(1, 1)).incarnation == 1
    file = tmp_path / "ledger"
    if file.exists():
        file.unlink()
        with pytest.raises(NotFound):
            ledger.write(ticked(2, 2))
        assert ledger.read() is None
        assert not file.exists()


def test_an_unknown_entry_is_damage(make: Make) -> None:
    ledger = make()
    ledger.begin(BOOK)
    ledger.write(ticked(1, 1))
    ledger._log.append([b'{"what":"prophecy"}'], ledger._position)
    with pytest.raises(Refused) as raised:
        make().read()
    assert raised.value.code == "LEDGER_DAMAGED"


@pytest.mark.parametrize("damage", ["torn", "flipped", "garbage"])
def test_a_damaged_tail_stops_readers_and_writers_until_it_is_repaired(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger"
    ledger = LogLedger(FileLog(path))
    ledger.begin(BOOK)
    ledger.write(ticked(1, 1))
    whole = path.read_bytes()
    ledger.write(proposed(act(1)))
    after = path.read_bytes()
    path.write_bytes(
        {"torn": after[:-5], "flipped": after[:-3] + b"\0" + after[-2:], "garbage": after + b"xxx"}[damage]
    )
    for victim in (ledger, LogLedger(FileLog(path))):
        with pytest.raises(Refused) as raised:
            victim.write(ticked(2, 2))
        assert raised.value.code == "LEDGER_DAMAGED"
        assert "tenure journal repair" in str(raised.value)
        if victim is not ledger:
            with pytest.raises(Refused):
                victim.read()
    repair(path)
    assert path.read_bytes() == (after if damage == "garbage" else whole)
    found = LogLedger(FileLog(path)).write(ticked(2, 2))
    assert found.incarnation == 2
    assert len(found.pending) == (1 if damage == "garbage" else 0)


class Full(KernelStorage):
    """A disk that is full for as long as one says so."""

    full = False

    def sync(self, handle: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().sync(handle)


def test_what_a_full_disk_did_not_take_is_written_anew(tmp_path: Path) -> None:
    storage = Full()
    path = tmp_path / "ledger"
    ledger = LogLedger(FileLog(path, storage))
    ledger.begin(BOOK)
    ledger.write(ticked(1, 1))
    before = path.stat().st_ino
    storage.full = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            ledger.write(ticked(2, 2))
    storage.full = False
    assert ledger.write(ticked(3, 3)).incarnation == 3
    # Nobody knows what of the old file is on the disk: it was replaced whole.
    assert path.stat().st_ino != before
    assert LogLedger(FileLog(path)).read() == replace(BOOK, incarnation=3, ticked_at=3)


def test_a_server_that_does_not_answer_is_unavailable_and_its_password_unsaid() -> None:
    ledger = open_ledger(STORE, "postgresql://me:hunter2@127.0.0.1:1/ledger")
    assert ledger is not None
    with pytest.raises(Unavailable) as raised:
        ledger.read()
    assert raised.value.code == "LEDGER_UNREACHABLE"
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in ledger.where


class Broken(KernelStorage):
    """A share whose files can be opened and not read."""

    broken = False

    def read(self, handle: int, offset: int, size: int) -> bytes:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, offset, size)


def test_what_the_disk_answers_a_reader_is_an_error_of_ours(tmp_path: Path) -> None:
    storage = Broken()
    path = tmp_path / "ledger"
    ledger = LogLedger(FileLog(path, storage))
    ledger.begin(BOOK)
    storage.broken = True
    for ask in (ledger.read, lambda: ledger.write(ticked(1, 1))):
        with pytest.raises(Unavailable) as raised:
            ask()
        assert raised.value.code == "JOURNAL_IO"
    storage.broken = False
    # The control: the same readers go on when it answers.
    assert ledger.read() == BOOK
    assert ledger.write(ticked(1, 1)).incarnation == 1
    path.unlink()
    path.mkdir()
    for ask in (ledger.read, lambda: ledger.write(ticked(2, 2))):
        with pytest.raises(Invalid) as refused:
            ask()
        assert refused.value.code == "LEDGER_NOT_A_FILE"
    path.rmdir()
    assert ledger.read() is None, "what is gone is another thing"


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "jobs.db.ledger").mkdir()
    for place in (str(tmp_path), None):
        with pytest.raises(Invalid) as raised:
            open_store(url, authority_ledger=place)
        assert raised.value.code == "LEDGER_NOT_A_FILE"
    open_store(url, authority_ledger=tmp_path / "ledger").close()


def test_places() -> None:
    beside = open_ledger("sqlite:////srv/jobs.db", None)
    assert beside is not None
    assert beside.where == "/srv/jobs.db.ledger"
    assert open_ledger("sqlite:///:memory:", None) is None
    assert open_ledger("postgresql://host/app", None) is None
    with pytest.raises(Invalid) as raised:
        open_ledger("postgresql://me:a@host/app", "postgresql://you:b@host/app")
    assert raised.value.code == "LEDGER_NOT_OUTSIDE"


def test_a_ledger_in_the_database_itself_is_known_by_any_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    link = tmp_path / "link.db"
    link.symlink_to(path)
    url = f"sqlite:///{path}"
    same = [f"sqlite:///{tmp_path}/././jobs.db", f"sqlite:///{link}", url, str(path), f"{path}-wal"]
    for place in same:
        with pytest.raises(Invalid) as raised:
            open_store(url, authority_ledger=place)
        assert raised.value.code == "LEDGER_NOT_OUTSIDE", place
    for place in (f"sqlite:///{tmp_path}/other.db", str(tmp_path / "jobs.db.other")):
        open_store(url, authority_ledger=place).close()


def test_a_server_says_itself_whether_the_ledger_is_in_the_same_database(postgres_databases: Databases) -> None:
    one, two = postgres_databases.create(), postgres_databases.create()
    other_name = one.replace("127.0.0.1", "localhost") + "?application_name=x"
    assert stores_redacted(other_name) != stores_redacted(one)

    def begin(place: str) -> None:
        with open_store(one, authority_ledger=place) as store:
            store.migrate()
            run_flow(first_look(store.ledger, store.file_identity(), "s-1"), store.run)

    with pytest.raises(Invalid) as raised:
        begin(other_name)
    assert raised.value.code == "LEDGER_NOT_OUTSIDE"
    # The control: another database of the same server.
    begin(two)


@pytest.mark.parametrize("kept_in", ["sqlite", "postgresql"])
@pytest.mark.parametrize("store_in", ["sqlite", "postgresql"])
def test_a_store_closes_no_ledger_that_was_lent_to_it(
    kept_in: str, store_in: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made = request.getfixturevalue("postgres_databases").create if "postgresql" in {kept_in, store_in} else None
    url = f"sqlite:///{tmp_path}/jobs.db" if store_in == "sqlite" else made()
    place = f"sqlite:///{tmp_path}/ledger.db" if kept_in == "sqlite" else made()
    with open_store(url, authority_ledger=place) as store:
        store.ledger.begin(BOOK)
        connection = store.ledger._log._connection

        async def lend() -> None:
            async with store.awaiting() as lent:
                with lent.blocking() as again:
                    assert again.ledger is lent.ledger is store.ledger
                    assert again.ledger.read() == BOOK

        asyncio.run(lend())
        assert store.ledger._log._connection is connection is not None
    # The control: whoever opened it closes it.
    assert store.ledger._log._connection is None
