"""
Our own jobs as a destination: a message becomes a job, in this store or in another one.

The job's idempotency key is the message's destination and operation, so a message that is delivered twice makes one
job. Its id is made of the message too: where a restored copy has the message and the job no more, the job that is
created again has the operation keys of the lost one. All of a batch is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict
from uuid import UUID

from tenure import errors
from tenure.connectors.destination import Destination
from tenure.errors import Conflict, Invalid, TenureError, Unavailable
from tenure.procedures.enqueue import Created, create
from tenure.rules.creation import NewJob, check_text
from tenure.rules.message import Deferred, Delivered, Delivery, Message, Refused, job_id_of, job_key_of

if TYPE_CHECKING:
    from tenure.app import Tenure


class Identity(TypedDict):
    """What `app.prepare` is given of the message that a job is made of."""

    key: str
    job_id: UUID


class OwnJobs(Destination):
    """
    Makes jobs of messages.

    The job keeps the message's tenant and subject, its payload is the message's data, and its execution envelope names
    the actor given here and, as its trace, the message's id.

    Args:
        app: Whose kinds they become; it may be another app on another store than the outbox's.
        name: What a message's `destination` says.
        kinds: Which type becomes which kind; a type that is not there is the kind's own name.
        actor: For whom the work is done; the app's actor, or the destination's name, when left out.
        prepare: Makes a job of a message instead, for payloads that are not the message's data: it is given the app and
            the message, and gives what `app.prepare` gives. It passes on what `identity` says:
            `app.prepare(kind, payload, **OwnJobs.identity(message), tenant=message.tenant)`. Without the key a message
            that comes twice may make two jobs; without the id the job of a restored copy is a new one to its providers.
    """

    def __init__(
        self,
        app: Tenure,
        *,
        name: str = "jobs",
        kinds: Mapping[str, str] | None = None,
        actor: str | None = None,
        batch: int = 250,
        timeout: timedelta = timedelta(seconds=30),
        prepare: Callable[[Tenure, Message], NewJob] | None = None,
    ) -> None:
        self.name = check_text("destination", name)
        self.batch = batch
        self.timeout = timeout
        self._app = app
        self._kinds = dict(kinds or {})
        who = app.actor if actor is None else check_text("actor", actor)
        self._actor = f"destination:{name}" if who is None else who
        self._prepare = prepare or self._as_it_is

    def _as_it_is(self, app: Tenure, message: Message) -> NewJob:
        return app.prepare(
            self._kinds.get(message.type, message.type),
            message.data,
            **self.identity(message),
            tenant=message.tenant,
            subject=message.subject,
            actor=self._actor,
            trace=message.id.hex,
        )

    @staticmethod
    def identity(message: Message) -> Identity:
        """Give the key and the id of the job that a message becomes: the same ones from every copy of the message."""
        return {
            "key": job_key_of(message.destination, message.operation),
            "job_id": job_id_of(message.tenant, message.destination, message.id),
        }

    async def deliver(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Create the jobs of a batch in one transaction; what is refused is refused alone."""
        answers: list[Delivery | None] = [None] * len(messages)
        jobs: dict[int, NewJob] = {}
        for nth, message in enumerate(messages):
            try:
                jobs[nth] = self._prepare(self._app, message)
            except TenureError as problem:
                answers[nth] = Refused(f"{problem.code}: {problem}")
        for nth, made in (await self._created(jobs)).items():
            answers[nth] = made
        return [one if one is not None else Deferred("it was not tried") for one in answers]

    async def _created(self, jobs: Mapping[int, NewJob]) -> dict[int, Delivery]:
        if not jobs:
            return {}
        try:
            store = await self._app.astore()
            made = await store.run(create(list(jobs.values())))
        except Unavailable as problem:
            return dict.fromkeys(
                jobs, Deferred(f"{problem.code}: the database of the jobs did not take them", outage=True)
            )
        except (Conflict, Invalid, errors.Refused) as problem:
            if len(jobs) == 1:
                why = f"{problem.code}: {problem}"
                # What the state refuses now, such as a queue that is drained, it may take later.
                later = isinstance(problem, errors.Refused)
                return dict.fromkeys(jobs, Deferred(why) if later else Refused(why))
            # One of them is refused and took the others along: half and half, until it is found.
            numbers = list(jobs)
            middle = len(numbers) // 2
            halves: dict[int, Delivery] = {}
            for half in (numbers[:middle], numbers[middle:]):
                halves |= await self._created({nth: jobs[nth] for nth in half})
            return halves
        return {nth: self._delivered(jobs[nth], one) for nth, one in zip(jobs, made, strict=True)}

    @staticmethod
    def _delivered(job: NewJob, made: Created) -> Delivered:
        # Not `made.job`, whose record is made when somebody looks at it.
        return Delivered({"job_id": job.id_text, "created": True} if made.created else {"created": False})
