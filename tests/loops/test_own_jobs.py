"""Our own jobs as a destination: whose key and whose id the job of a message has."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from tenure import Context, Tenure
from tenure.loops.own_jobs import OwnJobs
from tenure.outbox import Delivered, Message, Refused
from tenure.rules.creation import NewJob
from tenure.rules.message import job_id_of, job_key_of
from tenure.yields import new_id
from tests.loops.posting import add, play


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    made = Tenure(url, organization="studio", project="sales", actor="user:42")
    made.migrate()

    @made.job("mail")
    def mail(ctx: Context, payload: dict[str, int]) -> None: ...

    @made.job("audit")
    def audit(ctx: Context, payload: dict[str, int]) -> None: ...

    yield made
    made.close()


def messages_of(app: Tenure) -> list[Message]:
    return sorted((one.message for one in app.service.list_messages()), key=lambda one: one.destination)


@pytest.mark.parametrize("second", ["audit", "mail"])
def test_one_operation_for_two_destinations_becomes_two_jobs(app: Tenure, second: str) -> None:
    for destination in ("first", "second"):
        add(app, "quote-17", destination=destination, type="accepted", data={"q": 17})
    one, other = messages_of(app)
    both = [
        OwnJobs(app, name="first", kinds={"accepted": "mail"}),
        OwnJobs(app, name="second", kinds={"accepted": second}),
    ]

    async def story() -> None:
        for destination, message in zip(both, (one, other), strict=True):
            (made,) = await destination.deliver([message])
            assert isinstance(made, Delivered)
            # The control: the same message again is the same job.
            assert await destination.deliver([message]) == [made]

    play(app, story)
    found = {job.idempotency_key: job.kind for job in app.service.list_jobs()}
    assert found == {"first:quote-17": "mail", "second:quote-17": second}


def test_a_job_of_somebody_else_keeps_its_key(app: Tenure) -> None:
    add(app, "quote-17", "quote-18", destination="jobs", type="mail", data={"q": 17})
    app.enqueue("mail", {"q": 1}, key="jobs:quote-17")
    app.enqueue("mail", {"q": 17}, key="jobs:quote-18")

    async def story() -> None:
        answers = dict(
            zip(
                [one.operation for one in messages_of(app)],
                await OwnJobs(app).deliver(messages_of(app)),
                strict=True,
            )
        )
        refused = answers["quote-17"]
        assert isinstance(refused, Refused)
        assert refused.reason.startswith("IDEMPOTENCY_MISMATCH")
        assert answers["quote-18"] == Delivered({"created": False})

    play(app, story)
    assert len(app.service.list_jobs()) == 2


def test_jobs_keep_the_order_of_their_messages_and_a_prepared_one_its_identity(app: Tenure) -> None:
    add(app, *(f"{nth:03}" for nth in range(100)), destination="jobs", type="mail", data={"q": 1})
    ordered = sorted(messages_of(app), key=lambda one: one.operation)

    def prepared(app: Tenure, message: Message) -> NewJob:
        return app.prepare("audit", {"q": 2}, **OwnJobs.identity(message), tenant=message.tenant)

    async def story() -> None:
        await OwnJobs(app).deliver(ordered[:50])
        await OwnJobs(app, prepare=prepared).deliver(ordered[50:])

    play(app, story)
    jobs = sorted(app.service.list_jobs(), key=lambda one: one.id)
    assert [job.idempotency_key for job in jobs] == [f"jobs:{nth:03}" for nth in range(100)]
    assert [job.id for job in jobs] == [job_id_of("studio", "jobs", one.id) for one in ordered]
    assert [job.kind for job in jobs] == ["mail"] * 50 + ["audit"] * 50


def test_the_id_is_that_of_the_message_its_tenant_and_its_destination() -> None:
    for message in (new_id(), uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
        made = job_id_of("north", "jobs", message)
        assert made == job_id_of("north", "jobs", message)
        assert (made.version, made.variant) == (8, "specified in RFC 4122")
        assert len({message, made, job_id_of("south", "jobs", message), job_id_of("north", "mails", message)}) == 4


def test_the_key_tells_destinations_apart_and_fits() -> None:
    assert job_key_of("jobs", "a:b") == "jobs:a:b"
    keys = {
        job_key_of(*one)
        for one in [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("x" * 200, "y" * 200), ("x" * 200, "z" * 200)]
    }
    assert len(keys) == 5
    assert max(map(len, keys)) <= 200
