"""
The acts, in order. Every step waits for a row, a line of the ledger or the kernel's word, never for time to pass.

    accept    all quotes and their jobs in one transaction
    kill      worker A is killed after the provider accepted a mail and before the answer was recorded
    recover   worker B takes over; when A's lease is over the provider is asked what became of the mail
    pause     worker B is stopped between its last receipt and its publish; worker C takes that job over
    refuse    worker B goes on and tries to publish; the fence in the database refuses it
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tenure.connectors.simulator import Entry, SimulatorProcess
from tenure.errors import Invalid
from tenure.faces.demo.books import Books, named_url
from tenure.faces.demo.crew import Child, Crew, DemoFailed
from tenure.faces.demo.quotes import Quote
from tenure.faces.demo.studio import ARRIVED, EFFECT, KIND, LEASE, Studio, open_studio
from tenure.faces.demo.tell import Teller
from tenure.faces.demo.verdict import Facts, Kill, Report, effect_of, judge
from tenure.procedures.inspect import list_jobs
from tenure.rules.effect import SettledBy
from tenure.rules.event import Event
from tenure.rules.job import Job
from tenure.rules.status import Phase, Status
from tenure.stores import open_store
from tenure.stores.contract import Store
from tenure.yields import new_id

SECONDS_MAX = 55.0
_TENANT = "demo-"
_UNFINISHED = (Status.QUEUED, Status.CLAIMED, Status.RUNNING)
_LOCK_PATIENCE = 0.5


def run_demo(
    quotes: list[Quote],
    teller: Teller,
    *,
    store: str | None = None,
    keep: Path | None = None,
    broken: str | None = None,
) -> Report:
    """
    Run the whole demonstration.

    Args:
        store: Another database than a new file; what belongs to others in it stays untouched.
        keep: Where files are kept; a new or an empty folder.
        broken: Name of a broken variant.
    Raises:
        Invalid: FOLDER_NOT_EMPTY, STORE_IN_USE, and what the store says of its URL.
        DemoFailed: It could not be carried out.
    """
    if store is not None and ":memory:" in store:
        raise Invalid(
            "the workers are processes of their own; a store in memory cannot be shared", code="BAD_STORE_URL"
        )
    with _folder(keep) as folder:
        url = store or f"sqlite:///{folder / 'demo.db'}"
        run = f"{_TENANT}{new_id().hex[-8:]}"
        with closing(open_store(url)) as opened:
            applied = opened.migrate()
            if store is not None and not applied:
                refuse_busy(opened)
            books = Books(opened.url if opened.dialect == "sqlite" else url, opened.dialect, run)
            try:
                books.make()
                with SimulatorProcess(folder / "effects.jsonl") as simulator:
                    stage = Stage(url, opened, books, simulator, run, teller, folder, broken)
                    try:
                        return stage.play(quotes)
                    finally:
                        stage.studio.app.close()
                        if store is not None and keep is None:
                            books.forget()
            finally:
                books.close()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise Invalid(f"{keep.name} is not empty; name a new folder, nothing is overwritten", code="FOLDER_NOT_EMPTY")
    yield keep.resolve()


def refuse_busy(store: Store) -> None:
    """Refuse a database where others have work to do: workers are killed here, and broken ones may be at work."""
    for status in _UNFINISHED:
        after = None
        while page := store.run(list_jobs(status=status, limit=1000, after=after)):
            if any(not job.tenant.startswith(_TENANT) for job in page):
                raise Invalid(
                    f"this store has {status} jobs of others; the demonstration kills workers, so give it a database "
                    f"in which nobody works",
                    code="STORE_IN_USE",
                )
            after = page[-1].id


class Stage:
    """One run: who is on it, and what they do."""

    def __init__(
        self,
        url: str,
        store: Store,
        books: Books,
        simulator: SimulatorProcess,
        run: str,
        teller: Teller,
        folder: Path,
        broken: str | None,
    ) -> None:
        self._url = url
        self._store = store
        self._books = books
        self._simulator = simulator
        self._run = run
        self._say = teller
        self._folder = folder
        self._broken = broken
        self._began = time.monotonic()
        self.studio: Studio = open_studio(url, simulator, run, store.dialect)
        self._service = self.studio.app.service
        self._quotes: dict[str, str] = {}

    def play(self, quotes: list[Quote]) -> Report:
        """Play all acts and count."""
        say = self._say
        broken = "" if self._broken is None else f", with the library broken: {self._broken}"
        say.title(f"{len(quotes)} quotes, a provider, three workers{broken}")
        say.line("provider", f"pid {self._simulator.pid}, with a ledger of its own")
        self._accept(quotes)
        with Crew(self._folder, SECONDS_MAX) as crew:
            kills = self._kill(crew, [quote.id for quote in quotes])
            victim = kills[-1].quote
            open_jobs = [quote.id for quote in quotes if self._job(quote.id).status is not Status.COMPLETED]
            paused = next((quote for quote in reversed(open_jobs) if quote != victim), victim)
            second = self._recover(crew, victim, paused)
            self._pause_and_refuse(crew, second, paused)
        report, jobs, trail, entries = self._count(kills)
        say.report(report)
        say.histories(victim, jobs[victim], trail, entries)
        say.ending(report)
        return report

    def _accept(self, quotes: list[Quote]) -> None:
        with self._books.transaction() as connection:
            joined = self.studio.app.join(connection)
            for quote in quotes:
                self._books.accept(connection, id=quote.id, customer=quote.to, item=quote.item, total=str(quote.total))
                made: Any = joined.enqueue(KIND, quote, key=quote.id, subject=quote.id)
                self._quotes[quote.id] = str(made.job.id)
        self._say.line("accepted", f"{len(quotes)} rows and {len(quotes)} jobs in one transaction")

    def _kill(self, crew: Crew, quotes: list[str]) -> list[Kill]:
        """Kill a worker between acceptance and record; on a machine that is too slow for that, another one."""
        kills: list[Kill] = []
        victims = quotes[min(3, (len(quotes) - 1) // 2) :]
        for name, victim in zip(("A", "A2", "A3"), victims, strict=False):
            kills.append(self._kill_one(crew, name, victim))
            if kills[-1].after_acceptance or self._broken is not None:
                break
        return kills

    def _kill_one(self, crew: Crew, name: str, victim: str) -> Kill:
        say, job_id = self._say, self._quotes[victim]
        self._simulator.fault("hold_reply", key=f"{KIND}:{job_id}:{EFFECT}*")
        worker = self._start(crew, name, concurrency=1)
        act = crew.wait(f"the provider to accept {victim}", lambda: self._accepted_or_failed(victim))
        effect = crew.wait(f"the intent of {victim}", lambda: effect_of(self._job(victim)) or self._broken)
        status = crew.kill(worker)
        # Nobody else is at work: what is read now is what the death left behind.
        before, effect = getattr(effect, "state", "without a record"), effect_of(self._job(victim))
        kill = Kill(
            victim, name, status, self._acceptance(job_id) is not None, None if effect is None else effect.state
        )
        self._simulator.release()
        say.line("provider", f"accepted the mail of {victim} ({act.effect_id}) and holds its answer back")
        say.line("store", f"the effect of {victim} is {before}: nobody here knows that it happened")
        say.line(f"worker {name}", f"killed at this moment; the kernel says it died of signal {-status}", "red")
        return kill

    def _recover(self, crew: Crew, victim: str, paused: str) -> Child:
        say = self._say
        worker = self._start(crew, "B", concurrency=4, pause_at=self._quotes[paused])

        def known() -> Job | None:
            job = self._job(victim)
            effect = effect_of(job)
            settled = effect is not None and not effect.is_open
            return job if settled or self._rests(job) else None

        job = crew.wait(f"somebody to find out what became of {victim}", known)
        effect = effect_of(job)
        if effect is not None and effect.settled_by is SettledBy.LOOKUP:
            say.line("worker B", f"A's lease on {victim} is over; it does not send again, it asks the provider")
            say.line("provider", f"{victim}: accepted before; the receipt is in the store now", "green")
        crew.wait("worker B to finish all but one", lambda: self._others_rest(paused))
        completed = sum(self._job(quote).status is Status.COMPLETED for quote in self._quotes)
        say.line("worker B", f"has finished all it can: {completed} of {len(self._quotes)} quotes are completed")
        return worker

    def _pause_and_refuse(self, crew: Crew, second: Child, paused: str) -> None:
        say = self._say
        crew.wait(f"worker B to have the receipt of {paused}", lambda: self._held_by(second, paused))
        crew.pause(second, lambda: self._holds_nothing(second))
        say.line("worker B", f"stopped (SIGSTOP) with the receipt of {paused} in hand, before it publishes", "yellow")
        third = self._start(crew, "C", concurrency=4)
        crew.wait(f"worker C to finish {paused}", lambda: self._rests(self._job(paused)))
        job = self._job(paused)
        say.line("worker C", f"B's lease is over; {paused} is {job.status} under generation {job.generation}", "green")
        second.say("go")
        crew.resume(second)
        say.line("worker B", "goes on (SIGCONT), still believes in its lease, and tries to publish", "yellow")
        crew.wait("worker B to try", lambda: any(place != ARRIVED for _, _, place in self._books.visits()))
        # It drains, so its try is over when it ends.
        status = crew.end(second)
        written = [row for row in self._books.publications() if row[0] == paused and row[2] == second.worker_id]
        late = (
            f"its write is in the table: {len(written)} row" if written else "refused: not a trace of it in the table"
        )
        say.line("worker B", f"{late} (it ended with status {status})", "red" if written else "green")
        crew.end(third)

    def _start(self, crew: Crew, name: str, *, concurrency: int, pause_at: str | None = None) -> Child:
        child = crew.start(
            name,
            {
                "store": named_url(self._url, self._application(name)),
                "dialect": self._store.dialect,
                "simulator": self._simulator.url,
                "ledger": str(self._simulator.ledger),
                "run": self._run,
                "worker_id": f"{self._run}:{name}",
                "concurrency": concurrency,
                "pause_at": pause_at,
                "broken": self._broken,
            },
        )
        self._say.line(f"worker {name}", f"pid {child.pid}, leases of {LEASE.total_seconds():g} s")
        return child

    def _application(self, name: str) -> str:
        return f"tenure-{self._run}-{name}"

    # --- looks at the store and at the ledger -------------------------------------------------------------------------

    def _job(self, quote: str) -> Job:
        found = self._service.find_by_idempotency_key(project="sales", idempotency_key=quote)
        assert found is not None, "an accepted quote has a job"
        return found

    def _acceptance(self, job_id: str) -> Entry | None:
        return next(
            (one for one in self._simulator.entries() if one.action == "accepted" and job_id in one.operation_key), None
        )

    def _accepted_or_failed(self, quote: str) -> Entry | None:
        act = self._acceptance(self._quotes[quote])
        job = self._job(quote)
        if act is None and job.error_code is not None:
            raise DemoFailed(f"the provider could not be reached: {job.error_code}, {job.error_message}")
        return act

    def _rests(self, job: Job) -> bool:
        """Nothing more will happen to it by itself."""
        if job.status is Status.COMPLETED or job.escalated_at is not None:
            return True
        return job.phase is Phase.NEEDS_ATTENTION and job.status is not Status.INDETERMINATE

    def _others_rest(self, paused: str) -> bool:
        return all(self._rests(self._job(quote)) for quote in self._quotes if quote != paused)

    def _held_by(self, child: Child, quote: str) -> bool:
        job = self._job(quote)
        here = (quote, job.generation, ARRIVED)
        return job.lease is not None and job.lease.worker_id == child.worker_id and here in self._books.visits()

    def _holds_nothing(self, child: Child) -> bool:
        """A stopped process must not keep the others out: ask for the write lock, or for its transactions."""
        until = time.monotonic() + _LOCK_PATIENCE
        while self._books.inside(self._application(child.name)):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)  # between two looks at the transactions of another process
        return self._books.can_write()

    def _count(self, kills: list[Kill]) -> tuple[Report, dict[str, Job], list[Event], list[Entry]]:
        entries = self._simulator.entries()
        listed = self._service.list_jobs(limit=1000)
        jobs = {job.idempotency_key: job for job in listed}
        looked_up = [
            quote
            for quote, job in jobs.items()
            if (effect := effect_of(job)) is not None and effect.settled_by is SettledBy.LOOKUP
        ]
        facts = Facts(
            store=self._store.dialect,
            quotes=[row[0] for row in self._books.quotes()],
            jobs=jobs,
            trails={quote: self._service.list_job_events(jobs[quote].id) for quote in looked_up},
            entries=entries,
            kills=kills,
            publications=[(row[0], row[1], row[2]) for row in self._books.publications()],
            visits=[(row[0], row[1], row[2]) for row in self._books.visits()],
            seconds=time.monotonic() - self._began,
        )
        return judge(facts), jobs, self._service.list_job_events(jobs[kills[-1].quote].id), entries
