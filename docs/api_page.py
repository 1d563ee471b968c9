"""
Write the page of the Python interface from the code: signatures, docstrings, fields, defaults.

`generate.py` calls `api` and writes what it gives. What the code does not say by itself stands in the tables below, and
an argument or a name that nobody described stops the run.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import tenure
from tenure import errors, testing, verbs
from tenure.app import AsyncJoined, Joined
from tenure.connectors.cloudevent import Incoming
from tenure.connectors.http import HttpProvider
from tenure.connectors.nats import JetStream, read_nats
from tenure.connectors.rabbitmq import RabbitMQ, read_rabbitmq
from tenure.connectors.redis import RedisStreams, read_redis
from tenure.connectors.signature import new_secret
from tenure.connectors.smtp import Email, SmtpProvider
from tenure.connectors.webhook import Webhook, verify_webhook
from tenure.loops.own_jobs import OwnJobs
from tenure.loops.relay import Relay
from tenure.loops.supervisor import Health, LoopHealth
from tenure.loops.worker import Worker
from tenure.rules.queues import Contents
from tenure.stores.contract import AsyncStore, AsyncTransaction, Store, Transaction

Table = Callable[[tuple[str, ...], Sequence[tuple[str, ...]]], str]

WIDTH = 100
# The name behind a verb, and what a call of it writes; nothing for those that only read.
VERBS: dict[str, dict[str, str]] = {
    "Create": {
        "create_job": "the job, its key, its place in the queue; a new tenant's authority",
        "create_jobs": "as `create_job`, for each of them, in one commit",
    },
    "Take work": {
        "claim_job": "the lease, event `claimed`; before that what is due or expired, with its events",
        "claim_jobs": "as `claim_job`, for each job taken, in one commit",
    },
    "Hold and end": {
        "heartbeat": "the lease; event `heartbeat`, repeated ones kept as one",
        "mark_provider_dispatched": "the mark and its key, event `dispatched`; for a governed job as `begin_effect`",
        "complete_job": "status and result, event `completed`; with an open named effect `indeterminate` instead",
        "fail_job": "status and error, event `retried`, `failed`, `dead_lettered`, `cancelled` or `indeterminate`",
        "mark_indeterminate": "status and error, event `indeterminate`",
        "mark_halt_unsafe": "status and error, event `halt_unsafe`",
        "mark_timed_out": "status and error, event `timed_out`",
        "release_job": "the job back in its queue with its attempt given back, event `released`",
        "acknowledge_cancellation": "status, event `cancelled`",
    },
    "Effects and evidence": {
        "begin_effect": "the effect and its intent, event `dispatched`; nothing where a receipt is there; of a "
        "governed job its approval too, and event `admission_checked`, also where it is refused",
        "finish_effect": "the effect, event `effect_settled`; from a lost lease evidence, event `evidence_received`",
        "submit_evidence": "the evidence, event `evidence_received`; an escalation where it contradicts",
        "list_effects": "",
    },
    "For operators": {
        "cancel_job": "status, event `cancelled`; of a claimed job the request, event `cancel_requested`",
        "revoke_job": "generation and status, event `revoked`",
        "retry_job": "status and budget, event `retried`; reopened effects",
        "reconcile_dispatched": "the evidence, the effect, events `effect_settled` and `reconciled`",
        "resume_sweep": "the escalation cleared, event `resumed`",
        "append_job_event": "the event",
        "set_queue": "the queue's setting and its weights",
        "pause_queue": "the queue's row and a record of the change",
        "resume_queue": "the queue's row and a record of the change",
        "drain_queue": "the queue's row and a record of the change",
        "transfer_queue": "the queue's owner and a record of the change",
    },
    "Approvals": {
        "grant_approval": "the approval",
        "revoke_approval": "who revoked it, when and why, in the ledger and the database",
        "get_approval": "",
        "list_approvals": "",
    },
    "Authority": {
        "rotate_tenant": "the tenant's epoch in the ledger and the database; the act",
        "freeze_tenant": "the tenant's freeze in the ledger and the database; the act",
        "thaw_tenant": "the tenant's freeze in the database and the ledger; the act",
        "readmit_jobs": "the epoch of each job, event `readmitted`; the act",
        "readmit_messages": "the epoch of each message, the decision; the act",
        "list_tenants": "",
        "show_tenant": "",
    },
    "Read": {
        "get_job": "",
        "find_by_idempotency_key": "",
        "list_jobs": "",
        "list_job_events": "",
        "list_queues": "",
        "show_queues": "",
        "list_queue_changes": "",
        "stats": "",
    },
    "Messages": {
        "list_messages": "",
        "get_message": "",
        "outbox_stats": "",
        "replay_message": "the message back among what is due, its budget, the decision",
        "discard_message": "the message at its end, the decision; what waits behind it may go",
        "prune_outbox": "messages that were delivered or discarded, gone with their operations",
        "prune_inbox": "operations that a consumer applied, gone with their deliveries",
    },
    "Reconcile by asking": {
        "find_reconciliation_candidates": "",
        "sweep_reconciliation_candidates": "what was settled or escalated, each job in a commit of its own",
    },
    "Work of a restored copy": {
        "list_suspects": "",
        "count_suspects": "",
        "list_effects_needing_evidence": "",
        "reconcile_suspects": "what a provider knows, each effect in a commit of its own, event `effect_settled`",
        "clear_suspicion": "the mark, event `suspicion_cleared`",
    },
}
# Arguments that mean the same wherever they stand.
COMMON = {
    "lease": "The current lease, from a claim",
    "job_id": "A `uuid.UUID`",
    "tenant": "Narrows to one tenant; must agree with the service's binding",
    "organization": "Owner of the jobs",
    "project": "Scope of idempotency keys, and of a sweep",
    "kind_version": "A whole number from 1, stored with the job",
    "subject": "What the job is about, in the caller's words",
    "queue": "Name of the queue",
    "priority": "Higher first, from -32,767 to 32,767",
    "governance": "What an authority decided; its approval is asked for at each dispatch, see `grant_approval`",
    "options": "What a kind says beyond these, such as `recovery_window`; made by `@app.job`",
    "code": "A short upper-case name to branch on; required",
    "message": "What people read; required, cut at 8 KiB",
    "reason": "Why; kept in the trail",
    "actor": "Who asks; kept in the trail; the service's when left out",
    "operation_key": "What the provider is asked by",
    "attempt_id": "`Effect.attempt_id` or `Lease.attempt_id` of the attempt that made the call",
    "evidence": "`Accepted`, `Declined`, `Absent`, or an attempt's own `FailedBeforeDispatch`",
    "outcome": "`Succeeded`, `FailedBeforeDispatch`, `Rejected` or `Unknown`",
    "message_id": "A `uuid.UUID`",
    "destination": "Only for this destination",
    "consumer": "The name under which it receives",
    "name": "The name of the effect or event",
    "data": "A JSON object of at most 16 KiB",
    "idempotency_key": "The key it was created with",
    "status": "Only this status",
    "phase": "Only this phase",
    "limit": "How many at most",
    "queues": "Served in this order; all when left out",
    "kinds": "Only these kinds; all when left out",
    "owner": "The service whose queues may be served beside those without an owner",
    "start": "Become running in the same step",
    "lease_duration": "How long a claim lasts without a renewal",
    "claim_id": "Makes the claim repeatable; see `claim_job`",
    "worker_id": "Who takes them",
}


class Page:
    """One page being written."""

    def __init__(self, table: Table) -> None:
        self.lines: list[str] = []
        self._table = table

    def add(self, *lines: str) -> None:
        """Add lines and an empty one."""
        self.lines += [*lines, ""]

    def code(self, *signatures: str) -> None:
        """Show signatures."""
        self.add("```python", *signatures, "```")

    def table(self, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """Add a table, if it has rows."""
        if rows:
            self.add(self._table(heads, rows))

    def call(self, name: str, function: Any, *, drop: int = 0, writes: str | None = None) -> None:
        """Describe one function: signature, text, arguments, answer, errors, and for a verb what it writes."""
        self.code(signature(name, function, drop=drop))
        self.told(function, inspect.signature(function).parameters, verb=writes is not None)
        if writes is not None:
            self.add(f"Writes: {writes or 'nothing'}.")

    def told(self, thing: Any, parameters: Sequence[str] | Mapping[str, Any] = (), *, verb: bool = False) -> None:
        """Add what a docstring says, with the arguments that a verb's leaves to the table of common ones."""
        doc = Doc(thing)
        self.add(*doc.text)
        meanings = {one: (name, text) for name, text in doc.arguments for one in name.split(", ")}
        if verb:
            meanings = {name: (name, f"{text}.") for name, text in COMMON.items()} | meanings
        rows = dict.fromkeys(meanings[name] for name in parameters if name in meanings)
        self.table(("argument", "meaning"), [(f"`{name.replace(', ', '`, `')}`", text) for name, text in rows])
        for head, text in (("Gives", doc.returns), ("Raises", doc.raises)):
            if text:
                self.add(f"{head}: {text}")


class Doc:
    """A docstring of this house, read."""

    def __init__(self, thing: Any) -> None:
        whole = inspect.cleandoc(inspect.getdoc(thing) or "")
        parts = re.split(r"^(Args|Attributes|Returns|Raises|Locks):", whole, flags=re.MULTILINE)
        self.text = parts[0].rstrip().splitlines()
        found = dict(zip(parts[1::2], parts[2::2], strict=True))
        self.arguments = list(_named(found.get("Args", "")))
        self.attributes = dict(_named(found.get("Attributes", "")))
        self.returns = " ".join(found.get("Returns", "").split())
        self.raises = " ".join(found.get("Raises", "").split())


def _named(section: str) -> Iterator[tuple[str, str]]:
    """Read `name: meaning` with lines that go on."""
    text = textwrap.dedent(section.strip("\n"))
    for found in re.finditer(r"^([\w, ]+): (.*(?:\n[ ]+.*)*)", text, re.MULTILINE):
        yield found[1], " ".join(found[2].split())


def signature(name: str, function: Any, *, drop: int = 0) -> str:
    """Show how something is called, in one line or with one argument a line."""
    known = inspect.signature(function)
    parts: list[str] = []
    keyword_only = False
    for parameter in list(known.parameters.values())[drop:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(part.startswith("*") for part in parts):
                parts.append("*")
        parts.append(_parameter(parameter))
    gives = "" if known.return_annotation in {inspect.Signature.empty, "None"} else f" -> {_answer(known)}"
    if hasattr(function, "__wrapped__") and (
        managed := re.fullmatch(r"(Async)?Iterator\[(.*)\]", _type(known.return_annotation))
    ):
        return f"{'async ' if managed[1] else ''}with {name}({', '.join(parts)}) as tx:  # {managed[2]}"
    awaited = "await " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    line = f"{awaited}{name}({', '.join(parts)}){gives}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{awaited}{name}(", *(f"    {part}," for part in parts), f"){gives}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _answer(known: inspect.Signature) -> str:
    """A verb is a procedure inside; what a caller gets is what the procedure gives."""
    text = _type(known.return_annotation)
    inner = re.fullmatch(r"(?:Procedure|Flow)\[(.*)\]", text)
    return inner[1] if inner else text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    # Private names of protocols mean nothing to a reader.
    return re.sub(r"\b_(?=[A-Z])", "", str(text).strip("\"'"))


def _value(value: Any) -> str:
    if isinstance(value, timedelta):
        return _span(value)
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, tenure.IdempotencyKey):
        return f"IdempotencyKey({_span(value.retention)}, binds_payload={value.binds_payload})"
    if dataclasses.is_dataclass(value) or callable(value):
        return "..."
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(str, sorted(value)))}}}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return "..." if "object at" in text or text.startswith("environ(") else text


def _span(value: timedelta) -> str:
    for unit in ("days", "hours", "minutes", "seconds"):
        one = timedelta(**{unit: 1})
        if value and value % one == timedelta(0):
            return f"timedelta({unit}={value // one})"
    return "timedelta(0)" if not value else f"timedelta(seconds={value.total_seconds():g})"


# --- the parts of the page --------------------------------------------------------------------------------------------


def methods(page: Page, owner: type, names: Sequence[str], prefix: str) -> None:
    """Describe chosen members of a class, properties too."""
    for name in names:
        member = inspect.getattr_static(owner, name)
        if isinstance(member, property):
            page.code(f"{prefix}.{name}: {_type(member.fget.__annotations__.get('return', ''))}")
            page.told(member)
        elif isinstance(member, classmethod):
            page.call(f"{prefix}.{name}", getattr(owner, name))
        else:
            page.call(f"{prefix}.{name}", member, drop=1)


def public(owner: type) -> list[str]:
    """Name the public methods and properties that a class itself defines, in their order."""
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    ]


def record(page: Page, kind: type) -> None:
    """Describe a frozen record by its fields, and by what is derived from them."""
    page.add(f"### {kind.__name__}")
    page.add(*Doc(kind).text)
    meanings = Doc(kind).attributes
    rows = [
        (f"`{one.name}`", f"`{_type(one.type)}`", _field_default(one), meanings.get(one.name, ""))
        for one in dataclasses.fields(kind)
    ]
    rows += [
        (f"`{name}`", f"`{_type(value.fget.__annotations__.get('return', ''))}`", "derived", Doc(value).text[0])
        for name, value in vars(kind).items()
        if isinstance(value, property)
    ]
    page.table(("field", "type", "default", "meaning"), rows)


def _field_default(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        return f"`{_value(one.default)}`"
    return "made" if one.default_factory is not dataclasses.MISSING else ""


def stores(page: Page) -> None:
    """Opening a store, and what one can do."""
    page.add("## Open a store")
    page.add("### open_store")
    page.call("open_store", tenure.open_store)
    page.add("### open_async_store")
    page.call("open_async_store", tenure.open_async_store)
    page.add("### A store")
    page.add(
        "Both kinds are context managers. Durations are `timedelta`, instants aware `datetime` (a naive one is",
        "refused), ids `uuid.UUID`. What is below is the blocking store; the awaiting one has the same, awaited, and",
        "`blocking()` in the place of `awaiting()`.",
    )
    names = public(Store)
    assert set(names) - {"awaiting", "listen"} == set(public(AsyncStore)) - {"blocking"}
    methods(page, Store, names, "store")
    page.add("### A transaction")
    page.add("What `store.transaction()`, `store.join(connection)` and `ctx.publish()` give.")
    assert public(Transaction) == public(AsyncTransaction)
    methods(page, Transaction, public(Transaction), "tx")


def service(page: Page) -> None:
    """The contract, verb by verb."""
    page.add("## The service")
    page.add("### DurableJobService")
    page.call("DurableJobService", tenure.DurableJobService)
    page.add("### AsyncDurableJobService")
    page.code(signature("AsyncDurableJobService", tenure.AsyncDurableJobService))
    page.add("The same verbs with the same arguments, each awaited: `await service.get_job(job_id)`.")
    page.add(
        "Any verb may raise `Unavailable` (the database did not answer; the same call may be made again) and",
        "`Invalid`. Every verb that takes an id raises `NotFound` for an unknown or foreign one. Every verb that takes",
        "a lease raises `LeaseLost` when it is not the current one, with nothing written unless the verb says so;",
        "`heartbeat` gives False instead. Where nothing else is said, a verb gives the `Job` after it. Each call is",
        "one transaction, but for the sweep, which has one for each step.",
    )
    named = {name for group in VERBS.values() for name in group} | {"renew_lease"}
    for kind in (tenure.DurableJobService, tenure.AsyncDurableJobService):
        assert set(public(kind)) == named, f"describe {set(public(kind)) ^ named} in VERBS"
    for group, members in VERBS.items():
        page.add(f"### {group}")
        for name, writes in members.items():
            verb = getattr(verbs, name)
            check_described(verb)
            page.add(f"#### {name}")
            page.call(f"service.{name}", verb, drop=1, writes=writes)
            if name == "heartbeat":
                page.add("`service.renew_lease` is the same verb under another name.")


def check_described(function: Any) -> None:
    """Stop where an argument has no meaning, in the docstring or in the common table."""
    told = {one for name, _ in Doc(function).arguments for one in name.split(", ")}
    missing = set(inspect.signature(function).parameters) - told - COMMON.keys() - {"scope", "jobs", "payload"}
    assert not missing, f"say in COMMON or in the docstring of {function.__name__} what {missing} means"


def app(page: Page) -> None:
    """The application object."""
    page.add("## The app")
    page.add("### Tenure")
    page.call("Tenure", tenure.Tenure)
    page.add(
        "What blocks has an awaiting twin with an `a` in front: `aenqueue`, `aenqueue_many`, `amigrate`, `astore`,",
        "`aservice`, `aclose`.",
    )
    names = public(tenure.Tenure)
    methods(page, tenure.Tenure, ["job"], "app")
    page.add("What is not named here means what it means for `create_job`.")
    methods(page, tenure.Tenure, [name for name in names if name not in {"job", "worker", "relay", "join"}], "app")
    page.add("### In your own transaction")
    methods(page, tenure.Tenure, ["join"], "app")
    assert public(Joined) == public(AsyncJoined)
    methods(page, Joined, public(Joined), "joined")
    page.add("### Worker")
    page.code("app.worker(**options) -> Worker")
    page.call("Worker", Worker)
    methods(page, Worker, [name for name in public(Worker) if name != "left_behind"], "worker")
    page.add("### Relay")
    page.code("app.relay(**options) -> Relay")
    page.call("Relay", Relay)
    names = [name for name in public(Relay) if name not in {"left_behind", "worker_id", "round", "pause"}]
    methods(page, Relay, names, "relay")
    page.add("### OwnJobs")
    page.code("app.own_jobs(**options) -> OwnJobs")
    page.call("OwnJobs", OwnJobs)
    record(page, Health)
    record(page, LoopHealth)


def messages(page: Page) -> None:
    """Outbox, inbox, destinations."""
    page.add("## Messages")
    page.add("Why: [Outbox and inbox](../explanation/outbox-and-inbox.md).")
    for room, members in (
        (tenure.outbox, (tenure.outbox.add,)),
        (tenure.inbox, (tenure.inbox.receive, tenure.inbox.declare)),
    ):
        page.add(f"### {room.__name__.rpartition('.')[2]}")
        page.add(*Doc(room).text)
        for function in members:
            name = f"{room.__name__}.{function.__name__}"
            page.add(f"#### {name}")
            page.call(name, function)
    page.code(signature("tenure.outbox.prepare", tenure.outbox.prepare))
    page.add("The same without a database; it has every argument of `add`.")
    page.add("### Destination")
    page.add(*Doc(tenure.Destination).text)
    page.table(
        ("attribute", "meaning"),
        [(f"`{name}`", text) for name, text in Doc(tenure.Destination).attributes.items()],
    )
    methods(page, tenure.Destination, public(tenure.Destination), "destination")
    page.add("An answer of `deliver` is one of these, from `tenure.outbox`:")
    for answer in (tenure.outbox.Delivered, tenure.outbox.Deferred, tenure.outbox.Refused):
        record(page, answer)
    page.add("Records of messages:")
    for kind in (
        tenure.Message,
        tenure.outbox.Added,
        tenure.outbox.StoredMessage,
        tenure.outbox.Decision,
        tenure.outbox.OutboxStats,
        tenure.outbox.OutboxCount,
        tenure.inbox.IncomingEvent,
        tenure.inbox.Received,
        tenure.inbox.Consumer,
    ):
        record(page, kind)


def contexts(page: Page) -> None:
    """What a handler is given."""
    shared = [name for base in tenure.AsyncContext.__mro__[1:-1] for name in public(base)]
    page.add("## In a handler")
    page.add("### AsyncContext")
    page.add(*Doc(tenure.AsyncContext).text)
    methods(page, tenure.AsyncContext, public(tenure.AsyncContext), "ctx")
    for name in shared:
        owner = next(base for base in tenure.AsyncContext.__mro__ if name in vars(base))
        methods(page, owner, [name], "ctx")
    page.add("### Context")
    page.add(*Doc(tenure.Context).text)
    page.add("The same members; nothing is awaited, and `publish` is a plain `with`.")
    assert public(tenure.Context) == public(tenure.AsyncContext)
    page.code(*(signature(f"ctx.{name}", getattr(tenure.Context, name), drop=1) for name in public(tenure.Context)))


def providers(page: Page) -> None:
    """Providers, outcomes, evidence."""
    page.add("## Providers")
    page.add("### Provider")
    page.add(*Doc(tenure.Provider).text)
    defaults = vars(tenure.Provider)
    page.table(
        ("attribute", "default", "meaning"),
        [(f"`{name}`", f"`{_value(defaults[name])}`", text) for name, text in Doc(tenure.Provider).attributes.items()],
    )
    methods(page, tenure.Provider, public(tenure.Provider), "provider")
    record(page, tenure.IdempotencyKey)
    page.add("### Outcome")
    page.add("How a call ended, from `send`. An exception or a call that takes too long is `Unknown`.")
    outcomes = (tenure.Succeeded, tenure.FailedBeforeDispatch, tenure.Rejected, tenure.Unknown)
    evidence = (tenure.Accepted, tenure.Declined, tenure.Absent, tenure.NoAnswer)
    for names, title in ((outcomes, ""), (evidence, "### Evidence")):
        if title:
            page.add(title)
            page.add("What settles an effect afterwards: from `lookup`, a late receipt, or a person's statement.")
        page.table(
            ("value", "meaning"),
            [(f"`{signature(one.__name__, one)}`".replace(" -> None", ""), Doc(one).text[0]) for one in names],
        )
    page.add("### Ready-made")
    page.add(
        "`tenure.connectors.http` (extra `http`) and `tenure.connectors.smtp` (extra `smtp`); see",
        "[Write a provider](../how-to/write-a-provider.md) and [Send mail](../how-to/send-mail.md).",
    )
    page.add("#### HttpProvider")
    page.call("HttpProvider", HttpProvider)
    page.add("#### SmtpProvider")
    page.call("SmtpProvider", SmtpProvider)
    record(page, Email)


def destinations(page: Page) -> None:
    """Where a relay delivers, and how the other end reads what comes."""
    page.add("## Destinations")
    page.add(
        "`tenure.connectors.webhook`, `.nats`, `.rabbitmq` and `.redis`, each with an extra of its name; see",
        "[Deliver messages](../how-to/deliver-messages.md).",
    )
    for kind in (Webhook, JetStream, RabbitMQ, RedisStreams):
        page.add(f"### {kind.__name__}")
        page.call(kind.__name__, kind)
    page.add("### The receiving half")
    for function in (new_secret, verify_webhook, read_nats, read_rabbitmq, read_redis):
        page.add(f"#### {function.__name__}")
        page.call(function.__name__, function)
    record(page, Incoming)


def records(page: Page) -> None:
    """Records and closed lists of names."""
    page.add("## Records")
    page.add("Frozen dataclasses; durations are `timedelta`, instants aware `datetime` in UTC.")
    kinds = (tenure.Created, tenure.Claim, tenure.Job, tenure.Lease, tenure.Effect, tenure.Event, tenure.Verdict)
    restored = (tenure.Suspect, tenure.Suspicion, tenure.NeedsEvidence, tenure.Reconciled, tenure.Answered)
    for kind in (
        *kinds,
        tenure.QueueSetting,
        tenure.QueueState,
        Contents,
        tenure.QueueChange,
        tenure.Stats,
        tenure.StatsLine,
        tenure.Approval,
        tenure.Tenant,
        tenure.Act,
        *restored,
    ):
        record(page, kind)
    page.add("## Names")
    page.add('Each is a `StrEnum`: `job.status == "completed"` is true.')
    page.table(
        ("enum", "values"),
        [
            (f"`{one.__name__}`", ", ".join(f"`{value.value}`" for value in one))
            for one in (
                tenure.Status,
                tenure.Phase,
                tenure.EffectState,
                tenure.EventName,
                tenure.ApprovalState,
                tenure.outbox.MessageState,
            )
        ],
    )
    page.add("What they mean: [States](states.md), [Events](events.md).")


def envelopes(page: Page) -> None:
    """Identity."""
    page.add("## Identity")
    page.add("Why: [Identity](../explanation/identity.md).")
    for kind in (tenure.ExecutionInput, tenure.GovernanceInput, tenure.ExecutionIdentity):
        record(page, kind)
    for function in (
        tenure.action_digest,
        tenure.build_execution_envelope,
        tenure.read_execution_identity,
        tenure.validate_execution_identity_for_dispatch,
    ):
        page.add(f"### {function.__name__}")
        page.call(function.__name__, function)


def control(page: Page) -> None:
    """What an execution control is asked and answers."""
    page.add("## Execution control")
    page.add("Why: [Approvals](../explanation/approvals.md#the-execution-control).")
    for kind in (tenure.ControlRequest, tenure.Allow, tenure.Deny):
        record(page, kind)


def failures(page: Page) -> None:
    """Errors, by name; their page says the rest."""
    page.add("## Errors")
    page.add("All are in `tenure.errors`; those below are names of `tenure` too. Codes: [Errors](errors.md).")
    names = [name for name in tenure.__all__ if getattr(getattr(tenure, name), "__module__", "") == errors.__name__]
    page.table(
        ("error", "meaning"),
        [(f"`{name}`", Doc(getattr(tenure, name)).text[0]) for name in names],
    )


def helpers(page: Page) -> None:
    """`tenure.testing`."""
    page.add("## tenure.testing")
    page.add(
        "See [Test with the simulator](../how-to/test-with-the-simulator.md) and",
        "[Kill your own workers in tests](../how-to/test-crashes.md).",
    )
    for name in testing.__all__:
        thing = getattr(testing, name)
        if dataclasses.is_dataclass(thing) and isinstance(thing, type):
            record(page, thing)
            continue
        page.add(f"### {name}")
        page.call(name, thing)
        attributes = Doc(thing).attributes
        page.table(("attribute", "meaning"), [(f"`{one}`", text) for one, text in attributes.items()])
        if isinstance(thing, type):
            short = "process" if name == "SimulatorProcess" else re.sub(r".*(?=[A-Z])", "", name).lower()
            members = dict.fromkeys(one for base in thing.__mro__[:2] if base is not object for one in public(base))
            if issubclass(thing, tenure.Provider):
                members = dict.fromkeys(public(thing))
            page.code(*(_shown(thing, one, short) for one in members))


def _shown(owner: type, name: str, prefix: str) -> str:
    member = inspect.getattr_static(owner, name)
    if isinstance(member, property):
        return f"{prefix}.{name}: {_type(member.fget.__annotations__.get('return', ''))}"
    if isinstance(member, classmethod):
        return signature(f"{owner.__name__}.{name}", getattr(owner, name))
    return signature(f"{prefix}.{name}", member, drop=1)


PARTS = (
    stores,
    service,
    app,
    messages,
    contexts,
    providers,
    destinations,
    records,
    envelopes,
    control,
    failures,
    helpers,
)


def contents(lines: Sequence[str]) -> Iterator[str]:
    """List the sections with what has a heading in them; a verb's is one deeper than its group's."""
    names: list[str] = []
    for line in lines:
        if line.startswith("## "):
            yield from _entry(names)
            names = [line.removeprefix("## ")]
        elif re.match(r"#{3,4} [A-Za-z_]+$", line) and line.lstrip("# ") not in VERBS:
            names.append(line.lstrip("# "))
    yield from _entry(names)


def _entry(names: Sequence[str]) -> Iterator[str]:
    if names:
        title, *below = [f"[{name}](#{re.sub(r'[^a-z0-9_ -]', '', name.lower()).replace(' ', '-')})" for name in names]
        yield f"- {title}{': ' if below else ''}{', '.join(below)}"


def api(table: Table, made: str) -> str:
    """Give the page."""
    page = Page(table)
    page.add("# The Python interface")
    page.add(made)
    page.add(
        "What `import tenure` gives, and `tenure.testing`. Names that are not on this page are no promise.",
        "`tenure.__version__` is the installed version.",
    )
    start = len(page.lines)
    for write in PARTS:
        write(page)
    page.lines[start:start] = [*contents(page.lines), ""]
    return "\n".join(page.lines)
