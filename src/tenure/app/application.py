"""
The application object: kinds, providers and a store under one name, and the ways to enqueue.

It holds no state of jobs and makes no decision about them; it knows which handler belongs to which kind.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from tenure import outbox
from tenure.app.joined import AsyncJoined, Epochs, Joined
from tenure.app.providers import AppProviders
from tenure.app.stores import AppStores
from tenure.connectors.control import ANSWER_WITHIN, Control
from tenure.connectors.destination import Destination
from tenure.connectors.provider import Provider
from tenure.errors import Invalid, echo
from tenure.kinds import HANDLER_TIMEOUT, Handler, Kind, Registry, declare
from tenure.procedures.enqueue import Created, create
from tenure.rules.approval import action_digest
from tenure.rules.control import ControlRequest
from tenure.rules.creation import NewJob, check_id, check_text, new_job
from tenure.rules.envelope import ExecutionInput, GovernanceInput, agree_tenant
from tenure.rules.job import DEFAULT_OPTIONS
from tenure.rules.outbox import NewMessage
from tenure.rules.tenancy import agree_bound
from tenure.service import AsyncDurableJobService, DurableJobService
from tenure.stores.contract import AsyncStore, Clock, Store
from tenure.stores.joining import awaits
from tenure.yields import new_id

if TYPE_CHECKING:
    from tenure.loops.own_jobs import OwnJobs
    from tenure.loops.relay import Relay
    from tenure.loops.worker import Worker

F = TypeVar("F", bound=Handler)

# One kind has one handler, also across the apps of a process that share a store. Asked of the apps themselves, which
# may change their store; an index by store would keep what is true no more.
_apps: weakref.WeakSet[Tenure] = weakref.WeakSet()
_apps_lock = threading.Lock()


class Tenure:
    """
    An application: its kinds, its providers, its store.

    Args:
        store: A store URL, or an open store that stays yours to close.
        organization: Owner of the jobs that `enqueue` creates.
        project: Scope of their idempotency keys.
        tenant: Isolation unit; that of an open store which is bound to one, else the organization, when left out. An
            app that has one works for no other, and no call of it may name another.
        actor: Who enqueues, where `enqueue` names nobody.
        providers: Every provider the handlers use; the sweeper asks them by name.
        destinations: Where its messages go; a relay of the app serves them, and a message for another one is refused
            when it is added through the app.
        role, clock, authority_ledger: See `open_store`.
        execution_control: Asked as `hook(request)` before each effect of a handler, gives Allow or Deny; `async def`
            or `def`, which runs in a thread of its own.
        execution_control_mode: shadow, so that its answers are only written down, or enforced. One that raises or is
            late harms nothing in shadow and stops the effect where it is enforced.
        execution_control_timeout: How long it may take.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        organization: str,
        project: str,
        tenant: str | None = None,
        actor: str | None = None,
        providers: Sequence[Provider] = (),
        destinations: Sequence[Destination] = (),
        role: str | None = None,
        clock: Clock | None = None,
        authority_ledger: str | PathLike[str] | None = None,
        execution_control: Callable[[ControlRequest], Any] | None = None,
        execution_control_mode: str | None = None,
        execution_control_timeout: timedelta = ANSWER_WITHIN,
    ) -> None:
        self._stores = AppStores(store, role=role, clock=clock, authority_ledger=authority_ledger)
        self.organization = check_text("organization", organization)
        self.project = check_text("project", project)
        self.tenant = agree_bound(None if isinstance(store, str) else store.tenant, tenant)
        self.actor = None if actor is None else check_text("actor", actor)
        self.providers = AppProviders(providers)
        self.control: Control | None = None
        if execution_control is not None:
            self.control = Control(execution_control, execution_control_mode, execution_control_timeout)
        elif execution_control_mode is not None:
            raise Invalid("execution_control_mode goes with execution_control=", code="BAD_ARGUMENT")
        self.destinations: list[Destination] = list(destinations)
        self.registry = Registry()
        self._last_acting: ExecutionInput | None = None
        self.epochs = Epochs()
        with _apps_lock:
            _apps.add(self)

    # --- kinds --------------------------------------------------------------------------------------------------------

    def job(
        self,
        name: str,
        *,
        version: int = 1,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 3,
        backoff_base: timedelta = timedelta(seconds=30),
        lease_duration: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = HANDLER_TIMEOUT,
        progress_timeout: timedelta | None = None,
        retry_timeouts: bool = False,
        recovery_window: timedelta | None = None,
        escalate_after: timedelta = DEFAULT_OPTIONS.escalate_after,
        on_reconciled: str | None = None,
        on_declined: str = "failed",
        providers: Sequence[Provider | str] = (),
    ) -> Callable[[F], F]:
        """
        Register the decorated function as the handler of a kind.

        Args:
            name: What jobs are created with; holds no `:` or `#`.
            version: Of the kind; stored with each job.
            timeout: How long the handler may run, one hour by default; None only if you write it.
            progress_timeout: Without `ctx.progress` for this long the attempt is timed out.
            retry_timeouts: A handler that runs out of time is retried instead of going to a person.
            recovery_window: No retry starts later than this after creation.
            escalate_after: How long the sweeper asks a provider again before a person is asked.
            on_reconciled: complete or resume; see `create_job`.
            providers: The providers the handler uses.
        Raises:
            Invalid: HANDLER_SIGNATURE, KIND_TAKEN.
        """
        if not isinstance(name, str):
            raise Invalid('write @app.job("name") with the kind\'s name, not @app.job alone', code="HANDLER_SIGNATURE")

        def register(function: F) -> F:
            kind = declare(
                name,
                function,
                version=version,
                queue=check_text("queue", queue),
                priority=priority,
                max_attempts=max_attempts,
                backoff_base=backoff_base,
                lease_duration=lease_duration,
                timeout=timeout,
                progress_timeout=progress_timeout,
                retry_timeouts=retry_timeouts,
                recovery_window=recovery_window,
                escalate_after=escalate_after,
                on_reconciled=on_reconciled,
                on_declined=on_declined,
                providers=[one if isinstance(one, str) else one.name for one in providers],
            )
            with _apps_lock:
                self._check_alone(kind, self._stores.url)
                self.registry.add(kind)
            return function

        return register

    def _check_alone(self, kind: Kind, url: str) -> None:
        if ":memory:" in url:
            return
        for app in _apps:
            other = app.registry.get(kind.name) if app is not self and app._stores.url == url else None  # noqa: SLF001 - of this class
            if other is None or _place(other) == _place(kind):
                continue
            raise Invalid(
                f"kind {echo(kind.name)} has another handler, {'.'.join(_place(other))}, in another app on the same "
                f"store; a job would run whichever claims it first. Rename one kind, or register it in one app",
                code="KIND_TAKEN",
            )

    # --- stores -------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the store is, without any password."""
        return self._stores.shown

    def use_store(self, url: str | None = None, *, authority_ledger: str | PathLike[str] | None = None) -> None:
        """
        Use another store, or another ledger, than the app was made with; before anything is opened.

        Args:
            url: The app's own where left out.
            authority_ledger: For another store the default of `open_store`, not the app's own, where left out.
        Raises:
            Invalid: STORE_OPEN; KIND_TAKEN, where another app has another handler on that store.
        """
        with _apps_lock:
            for kind in self.registry:
                self._check_alone(kind, url or self._stores.url)
            self._stores.use(url, authority_ledger)

    @property
    def store(self) -> Store:
        """The blocking store, opened at the first use."""
        return self._stores.blocking()

    async def astore(self) -> AsyncStore:
        """The awaiting store of the running event loop, opened at the first use."""
        return await self._stores.awaiting()

    @property
    def service(self) -> DurableJobService:
        """Every verb of the contract on this app's store, blocking."""
        return DurableJobService(self.store, tenant=self.tenant, actor=self.actor)

    async def aservice(self) -> AsyncDurableJobService:
        """Every verb of the contract on this app's store, awaiting."""
        return AsyncDurableJobService(await self.astore(), tenant=self.tenant, actor=self.actor)

    def migrate(self) -> list[str]:
        """Bring the store's schema up to date; give the names of what was applied."""
        return self.store.migrate()

    async def amigrate(self) -> list[str]:
        """See `migrate`."""
        return await (await self.astore()).migrate()

    def close(self) -> None:
        """Close the store this app opened."""
        self._stores.close()

    async def aclose(self) -> None:
        """Close the stores this app opened, the running loop's included."""
        await self._stores.aclose()

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        handler: Handler | str,
        payload: Any,
        *,
        key: str,
        actor: str | None = None,
        trace: str | None = None,
        tenant: str | None = None,
        subject: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        scheduled_at: datetime | None = None,
        execution: ExecutionInput | None = None,
        governance: GovernanceInput | None = None,
        job_id: UUID | None = None,
    ) -> NewJob:
        """
        Check everything about a job to be created, without a database; `enqueue` and its like call this first.

        Args:
            handler: The decorated function, or its kind's name.
            payload: What the handler's annotation says.
            key: Idempotency key, unique within tenant and project.
            actor: Who the work is done for; the app's when left out.
            trace: Made when left out.
            execution: Instead of actor, trace and tenant, with lineage.
            job_id: Made when left out, which is right for all but a job that must be the same one wherever it is
                created again, as `OwnJobs.identity` gives it.
        Raises:
            Invalid: UNKNOWN_KIND, PAYLOAD_INVALID, ACTOR_REQUIRED, TENANT_MISMATCH, and what `create_job` refuses.
        """
        kind = self.registry.find(handler)
        job_id = new_id() if job_id is None else check_id("job_id", job_id)
        owner = self.owner_of(tenant)
        if execution is None:
            who = self.actor if actor is None else actor
            if who is None:
                raise Invalid(
                    f"say who kind {echo(kind.name)} is enqueued for: actor='user:42', or Tenure(..., actor=...)",
                    code="ACTOR_REQUIRED",
                )
            execution = self._acting(owner or self.organization, who)
            if trace is None:
                trace = f"{job_id.int:032x}"  # what `hex` gives, in half the time
        elif actor is not None or trace is not None:
            raise Invalid("give either execution= or actor= and trace=, not both", code="BAD_ARGUMENT")
        document, traits = kind.encode_surveyed(payload)
        return new_job(
            job_id=job_id,
            organization=self.organization,
            project=self.project,
            idempotency_key=key,
            kind=kind.name,
            kind_version=kind.version,
            payload=document,
            traits=traits,
            tenant=owner,
            subject=subject,
            queue=kind.queue if queue is None else queue,
            priority=kind.priority if priority is None else priority,
            max_attempts=kind.max_attempts,
            backoff_base=kind.backoff_base,
            lease_duration=kind.lease_duration,
            scheduled_at=scheduled_at,
            on_reconciled=kind.on_reconciled,
            on_declined=kind.on_declined,
            execution=execution,
            trace=trace,
            governance=governance,
            options=kind.options,
        )

    def action_digest(
        self, handler: Handler | str, payload: Any, *, governance: GovernanceInput, tenant: str | None = None
    ) -> str:
        """
        Give the digest of the action that `enqueue` would create, for a person to approve; needs no database.

        Args:
            handler: The decorated function, or its kind's name.
            payload: What the handler's annotation says.
            governance: What the job is going to be created with; of it only the four facts count.
            tenant: As in `enqueue`.
        Raises:
            Invalid: UNKNOWN_KIND, PAYLOAD_INVALID, and what `enqueue` refuses.
        """
        kind = self.registry.find(handler)
        document, _ = kind.encode_surveyed(payload)
        return action_digest(
            organization=self.organization,
            project=self.project,
            kind=kind.name,
            kind_version=kind.version,
            payload=document,
            governance=governance,
            tenant=self.owner_of(tenant),
        )

    def owner_of(self, tenant: str | None) -> str | None:
        """
        Give the tenant of a call: the one it names, or the app's.

        Raises:
            Invalid: TENANT_MISMATCH where the app has another, ENVELOPE_VALUE for what is no tenant.
        """
        return self.tenant if tenant is None else agree_tenant(self.tenant, tenant, None, tenant)

    def _acting(self, tenant: str, actor: str) -> ExecutionInput:
        # Mostly the same from job to job; its record takes 2 us to make.
        last = self._last_acting
        if last is None or last.tenant is not tenant or last.actor is not actor:
            last = self._last_acting = ExecutionInput(tenant=tenant, actor=check_text("actor", actor))
        return last

    def enqueue(self, handler: Handler | str, payload: Any, *, key: str, **fields: Any) -> Created:
        """
        Create a job in a transaction of its own; arguments as in `prepare`.

        Returns:
            The job, and whether this call created it.
        Raises:
            Conflict: The key belongs to a job with another kind or payload.
        """
        return self.enqueue_many([self.prepare(handler, payload, key=key, **fields)])[0]

    async def aenqueue(self, handler: Handler | str, payload: Any, *, key: str, **fields: Any) -> Created:
        """See `enqueue`."""
        return (await self.aenqueue_many([self.prepare(handler, payload, key=key, **fields)]))[0]

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create prepared jobs in one transaction: all or none."""
        return self.store.run(create(jobs))

    async def aenqueue_many(self, jobs: Sequence[NewJob]) -> list[Created]:
        """See `enqueue_many`."""
        return await (await self.astore()).run(create(jobs))

    def join(self, connection: Any) -> Joined | AsyncJoined:
        """
        Enqueue in your own open transaction: it never begins, commits, rolls back, retries or changes settings.

        Args:
            connection: Of sqlite3, psycopg, aiosqlite or asyncpg; SQLAlchemy's Connection, Session and their awaiting
                twins; Django's connection. Where it is awaited, so are the verbs of what is given back.
        Raises:
            Invalid: AUTOCOMMIT, where no transaction is open; CANNOT_JOIN, where it leads to another database.
        """
        if awaits(connection):
            return AsyncJoined(self, connection)
        return Joined(self, self.store.join(connection))  # type: ignore[arg-type]  # usable without `with`, see join

    # --- work ---------------------------------------------------------------------------------------------------------

    def worker(self, **options: Any) -> Worker:
        """
        Make a worker for this app's kinds; arguments as in `tenure.loops.worker.Worker`.

        Raises:
            Invalid: UNKNOWN_PROVIDER, a kind declares one that the app does not have; and what the worker refuses.
        """
        from tenure.loops.worker import Worker  # noqa: PLC0415 - producers need none of the loops

        return Worker(self, **options)

    def relay(self, **options: Any) -> Relay:
        """
        Make a relay that delivers this app's messages; arguments as in `tenure.loops.relay.Relay`.

        Raises:
            Invalid: NO_DESTINATIONS; and what the relay refuses.
        """
        from tenure.loops.relay import Relay  # noqa: PLC0415 - producers need none of the loops

        return Relay(self, **options)

    def own_jobs(self, **options: Any) -> OwnJobs:
        """Make a destination that turns messages into jobs of this app; arguments as in `OwnJobs`."""
        from tenure.loops.own_jobs import OwnJobs  # noqa: PLC0415 - as above

        return OwnJobs(self, **options)

    def prepare_message(self, *, destination: str, tenant: str | None = None, **fields: Any) -> NewMessage:
        """
        Check everything about a message to be added, without a database; arguments as in `tenure.outbox.add`.

        Raises:
            Invalid: UNKNOWN_DESTINATION, where the app has said which there are; and what `tenure.outbox.add` refuses.
        """
        names = sorted(one.name for one in self.destinations)
        if names and destination not in names:
            raise Invalid(
                f"this app has no destination {echo(destination)}, so no relay of it would deliver the message; it has "
                f"{', '.join(names)}",
                code="UNKNOWN_DESTINATION",
            )
        owner = self.owner_of(tenant) or self.organization
        return outbox.prepare(destination=destination, tenant=owner, **fields)


def _place(kind: Kind) -> tuple[str, str]:
    return (kind.function.__module__, kind.function.__qualname__)
