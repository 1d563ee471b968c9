"""
The contract as an object: every verb is one procedure on a store, blocking or awaiting.

Both classes are made from the same definitions in `verbs/`, so there are no twins to keep alike.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenure import verbs
from tenure.flows.drive import run_flow, run_flow_async
from tenure.flows.ledger import Ledger
from tenure.rules.creation import check_text
from tenure.rules.tenancy import agree_bound
from tenure.stores.contract import AsyncStore, Store
from tenure.verbs.scope import Scope
from tenure.yields import Flow, Procedure

P = ParamSpec("P")
T = TypeVar("T")


def _scope(bound: str | None, tenant: str | None, actor: str | None, ledger: Ledger | None) -> Scope:
    tenant = agree_bound(bound, tenant)
    if actor is not None:
        check_text("actor", actor)
    return Scope(tenant, actor, ledger)


def _blocking(
    verb: Callable[Concatenate[Scope, P], Procedure[T]],
) -> Callable[Concatenate[DurableJobService, P], T]:
    @functools.wraps(verb)
    def call(self: DurableJobService, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.store.run(verb(self.scope, *args, **kwargs))

    return call


def _blocking_flow(
    verb: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[DurableJobService, P], T]:
    @functools.wraps(verb)
    def call(self: DurableJobService, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_flow(verb(self.scope, *args, **kwargs), self.store.run, _wait)

    return call


def _wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for a call of a flow: on a loop in a thread of its own, because a loop may be running in this one."""
    done: Future[Any] = Future()
    context = contextvars.copy_context()

    async def body() -> Any:
        return await awaitable

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            done.set_result(context.run(loop.run_until_complete, body()))
        except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits
            done.set_exception(error)
        finally:
            # A look-up that ignores its cancellation is left behind, not waited for.
            loop.close()

    threading.Thread(target=run, name="tenure-lookup", daemon=True).start()
    return done.result()


def _awaiting(
    verb: Callable[Concatenate[Scope, P], Procedure[T]],
) -> Callable[Concatenate[AsyncDurableJobService, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def call(self: AsyncDurableJobService, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.store.run(verb(self.scope, *args, **kwargs))

    return call


def _awaiting_flow(
    verb: Callable[Concatenate[Scope, P], Flow[T]],
) -> Callable[Concatenate[AsyncDurableJobService, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def call(self: AsyncDurableJobService, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_flow_async(verb(self.scope, *args, **kwargs), self.store.run)

    return call


def _threaded(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    def call(*args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(function, *args)

    return call


class _Apart:
    """A ledger for a flow of an awaiting caller: what it asks is done in a thread, and awaited."""

    def __init__(self, ledger: Ledger) -> None:
        self.where = ledger.where
        self.read: Any = _threaded(ledger.read)
        self.begin: Any = _threaded(ledger.begin)
        self.write: Any = _threaded(ledger.write)
        self.check_outside: Any = _threaded(ledger.check_outside)
        self.close: Any = ledger.close


class DurableJobService:
    """
    Every verb of the contract on one store, blocking.

    Args:
        store: From `tenure.open_store`.
        tenant: Bind the service to one tenant: a foreign id is NotFound with the text of an unknown one. Left out
            on a store that is bound to one: that one.
        actor: Who it acts for, where a verb names nobody.
    """

    def __init__(self, store: Store, *, tenant: str | None = None, actor: str | None = None) -> None:
        self.store = store
        self.scope = _scope(store.tenant, tenant, actor, store.ledger)

    create_job = _blocking(verbs.create_job)
    create_jobs = _blocking(verbs.create_jobs)
    claim_job = _blocking(verbs.claim_job)
    claim_jobs = _blocking(verbs.claim_jobs)
    heartbeat = _blocking(verbs.heartbeat)
    renew_lease = heartbeat
    mark_provider_dispatched = _blocking(verbs.mark_provider_dispatched)
    complete_job = _blocking(verbs.complete_job)
    fail_job = _blocking(verbs.fail_job)
    mark_indeterminate = _blocking(verbs.mark_indeterminate)
    mark_halt_unsafe = _blocking(verbs.mark_halt_unsafe)
    mark_timed_out = _blocking(verbs.mark_timed_out)
    release_job = _blocking(verbs.release_job)
    acknowledge_cancellation = _blocking(verbs.acknowledge_cancellation)
    begin_effect = _blocking(verbs.begin_effect)
    finish_effect = _blocking(verbs.finish_effect)
    submit_evidence = _blocking(verbs.submit_evidence)
    list_effects = _blocking(verbs.list_effects)
    cancel_job = _blocking(verbs.cancel_job)
    revoke_job = _blocking(verbs.revoke_job)
    retry_job = _blocking(verbs.retry_job)
    reconcile_dispatched = _blocking(verbs.reconcile_dispatched)
    resume_sweep = _blocking(verbs.resume_sweep)
    append_job_event = _blocking(verbs.append_job_event)
    set_queue = _blocking(verbs.set_queue)
    pause_queue = _blocking(verbs.pause_queue)
    resume_queue = _blocking(verbs.resume_queue)
    drain_queue = _blocking(verbs.drain_queue)
    transfer_queue = _blocking(verbs.transfer_queue)
    grant_approval = _blocking(verbs.grant_approval)
    revoke_approval = _blocking_flow(verbs.revoke_approval)
    get_approval = _blocking(verbs.get_approval)
    list_approvals = _blocking(verbs.list_approvals)
    get_job = _blocking(verbs.get_job)
    find_by_idempotency_key = _blocking(verbs.find_by_idempotency_key)
    list_jobs = _blocking(verbs.list_jobs)
    list_job_events = _blocking(verbs.list_job_events)
    list_queues = _blocking(verbs.list_queues)
    show_queues = _blocking(verbs.show_queues)
    list_queue_changes = _blocking(verbs.list_queue_changes)
    stats = _blocking(verbs.stats)
    replay_message = _blocking(verbs.replay_message)
    discard_message = _blocking(verbs.discard_message)
    get_message = _blocking(verbs.get_message)
    list_messages = _blocking(verbs.list_messages)
    outbox_stats = _blocking(verbs.outbox_stats)
    prune_outbox = _blocking(verbs.prune_outbox)
    prune_inbox = _blocking(verbs.prune_inbox)
    find_reconciliation_candidates = _blocking(verbs.find_reconciliation_candidates)
    sweep_reconciliation_candidates = _blocking_flow(verbs.sweep_reconciliation_candidates)
    list_suspects = _blocking(verbs.list_suspects)
    count_suspects = _blocking(verbs.count_suspects)
    list_effects_needing_evidence = _blocking(verbs.list_effects_needing_evidence)
    clear_suspicion = _blocking(verbs.clear_suspicion)
    reconcile_suspects = _blocking_flow(verbs.reconcile_suspects)
    list_tenants = _blocking(verbs.list_tenants)
    show_tenant = _blocking(verbs.show_tenant)
    rotate_tenant = _blocking_flow(verbs.rotate_tenant)
    freeze_tenant = _blocking_flow(verbs.freeze_tenant)
    thaw_tenant = _blocking_flow(verbs.thaw_tenant)
    readmit_jobs = _blocking(verbs.readmit_jobs)
    readmit_messages = _blocking(verbs.readmit_messages)


class AsyncDurableJobService:
    """
    Every verb of the contract on one store, awaiting; see `DurableJobService`.

    Args:
        store: From `await tenure.open_async_store`.
    """

    def __init__(self, store: AsyncStore, *, tenant: str | None = None, actor: str | None = None) -> None:
        self.store = store
        self.scope = _scope(store.tenant, tenant, actor, None if store.ledger is None else _Apart(store.ledger))

    create_job = _awaiting(verbs.create_job)
    create_jobs = _awaiting(verbs.create_jobs)
    claim_job = _awaiting(verbs.claim_job)
    claim_jobs = _awaiting(verbs.claim_jobs)
    heartbeat = _awaiting(verbs.heartbeat)
    renew_lease = heartbeat
    mark_provider_dispatched = _awaiting(verbs.mark_provider_dispatched)
    complete_job = _awaiting(verbs.complete_job)
    fail_job = _awaiting(verbs.fail_job)
    mark_indeterminate = _awaiting(verbs.mark_indeterminate)
    mark_halt_unsafe = _awaiting(verbs.mark_halt_unsafe)
    mark_timed_out = _awaiting(verbs.mark_timed_out)
    release_job = _awaiting(verbs.release_job)
    acknowledge_cancellation = _awaiting(verbs.acknowledge_cancellation)
    begin_effect = _awaiting(verbs.begin_effect)
    finish_effect = _awaiting(verbs.finish_effect)
    submit_evidence = _awaiting(verbs.submit_evidence)
    list_effects = _awaiting(verbs.list_effects)
    cancel_job = _awaiting(verbs.cancel_job)
    revoke_job = _awaiting(verbs.revoke_job)
    retry_job = _awaiting(verbs.retry_job)
    reconcile_dispatched = _awaiting(verbs.reconcile_dispatched)
    resume_sweep = _awaiting(verbs.resume_sweep)
    append_job_event = _awaiting(verbs.append_job_event)
    set_queue = _awaiting(verbs.set_queue)
    pause_queue = _awaiting(verbs.pause_queue)
    resume_queue = _awaiting(verbs.resume_queue)
    drain_queue = _awaiting(verbs.drain_queue)
    transfer_queue = _awaiting(verbs.transfer_queue)
    grant_approval = _awaiting(verbs.grant_approval)
    revoke_approval = _awaiting_flow(verbs.revoke_approval)
    get_approval = _awaiting(verbs.get_approval)
    list_approvals = _awaiting(verbs.list_approvals)
    get_job = _awaiting(verbs.get_job)
    find_by_idempotency_key = _awaiting(verbs.find_by_idempotency_key)
    list_jobs = _awaiting(verbs.list_jobs)
    list_job_events = _awaiting(verbs.list_job_events)
    list_queues = _awaiting(verbs.list_queues)
    show_queues = _awaiting(verbs.show_queues)
    list_queue_changes = _awaiting(verbs.list_queue_changes)
    stats = _awaiting(verbs.stats)
    replay_message = _awaiting(verbs.replay_message)
    discard_message = _awaiting(verbs.discard_message)
    get_message = _awaiting(verbs.get_message)
    list_messages = _awaiting(verbs.list_messages)
    outbox_stats = _awaiting(verbs.outbox_stats)
    prune_outbox = _awaiting(verbs.prune_outbox)
    prune_inbox = _awaiting(verbs.prune_inbox)
    find_reconciliation_candidates = _awaiting(verbs.find_reconciliation_candidates)
    sweep_reconciliation_candidates = _awaiting_flow(verbs.sweep_reconciliation_candidates)
    list_suspects = _awaiting(verbs.list_suspects)
    count_suspects = _awaiting(verbs.count_suspects)
    list_effects_needing_evidence = _awaiting(verbs.list_effects_needing_evidence)
    clear_suspicion = _awaiting(verbs.clear_suspicion)
    reconcile_suspects = _awaiting_flow(verbs.reconcile_suspects)
    list_tenants = _awaiting(verbs.list_tenants)
    show_tenant = _awaiting(verbs.show_tenant)
    rotate_tenant = _awaiting_flow(verbs.rotate_tenant)
    freeze_tenant = _awaiting_flow(verbs.freeze_tenant)
    thaw_tenant = _awaiting_flow(verbs.thaw_tenant)
    readmit_jobs = _awaiting(verbs.readmit_jobs)
    readmit_messages = _awaiting(verbs.readmit_messages)
