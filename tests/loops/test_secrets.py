"""No secret reaches a log, a trail or the health of a worker, whichever way things go wrong, at DEBUG level."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from pydantic import BaseModel

from tenure import AsyncContext, Context, Job, Outcome, Provider, Rejected, Tenure, Unknown
from tests.loops.stage import Running, job, make_app, seconds, until
from tests.support.proxy import Proxy

PASSWORD, TOKEN, BODY = "S3cr3t-CANARY-1", "CANARY-2-of-a-payload", "CANARY-3-of-a-provider"
CANARIES = (PASSWORD, TOKEN, BODY)


class Leaky(Provider):
    """Puts its customers' secrets into everything it says."""

    name = "leaky"
    timeout = seconds(5)

    async def send(self, request: Any, operation_key: str) -> Outcome:
        match request["how"]:
            case "raise":
                raise ConnectionError(f"POST failed: {BODY} {request}")
            case "reject":
                return Rejected("refused")
            case "nonsense":
                return {"body": BODY}  # type: ignore[return-value]
            case _:
                return Unknown("no reply")


class Login(BaseModel):
    token: str
    tries: int


leaky = Leaky()
gate = threading.Event()


def plain(ctx: Context, payload: dict[str, Any]) -> Any:
    return act(payload["how"], payload)


async def awaiting(ctx: AsyncContext, payload: dict[str, Any]) -> Any:
    if payload["how"] == "effect":
        return await ctx.effect("send", leaky, {"how": payload["call"], "token": payload["token"]})
    return act(payload["how"], payload)


def act(how: str, payload: dict[str, Any]) -> Any:
    match how:
        case "raise":
            raise ValueError(f"cannot log in with {payload['token']}")
        case "exit":
            raise SystemExit(payload["token"])
        case "result":
            return {"token": payload["token"], "object": object()}
        case "wait":
            gate.wait(30)
    return payload


def login(ctx: Context, payload: Login) -> None: ...


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        for name in ("tenure", "asyncio", "psycopg", "psycopg.pool"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield caplog


def shown(records: list[logging.LogRecord]) -> str:
    """All that a handler of logs could write about these records."""
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
    return "\n".join(formatter.format(one) + repr(sorted(vars(one).items(), key=str)) for one in records)


def everything(app: Tenure, jobs: list[Job]) -> str:
    return json.dumps([[str(event.data) for event in app.service.list_job_events(one.id)] for one in jobs])


def test_no_secret_is_logged_by_a_worker(
    request: pytest.FixtureRequest, watched: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    parts = urlsplit(request.getfixturevalue("postgresql_url"))
    with Proxy(urlunsplit(parts)) as proxy:
        inner = urlsplit(proxy.url)
        url = urlunsplit(inner._replace(netloc=f"postgres:{PASSWORD}@{inner.hostname}:{inner.port}"))
        app = make_app(url, providers=[leaky])
        given = {"lease_duration": seconds(30), "max_attempts": 1}
        for handler in (plain, awaiting, login):
            app.job(handler.__name__, **given)(handler)
        scenes: list[tuple[str, dict[str, Any]]] = [
            *((kind, {"how": how}) for kind in ("plain", "awaiting") for how in ("raise", "exit", "result")),
            *(("awaiting", {"how": "effect", "call": how}) for how in ("raise", "reject", "nonsense", "unknown")),
            ("login", {"tries": "many"}),
        ]
        jobs = [
            app.service.create_job(
                organization=app.organization,
                project=app.project,
                idempotency_key=f"k{nth}",
                kind=kind,
                payload=payload | {"token": TOKEN},
                max_attempts=1,
                execution=_identity(),
            ).job
            for nth, (kind, payload) in enumerate(scenes)
        ]
        with Running(app, health_file=tmp_path / "health.json", poll=seconds(0.3)) as running:
            until(lambda: all(job(app, one).finished_at for one in jobs), "every scene to end")
            # And then the database goes away, in the middle of a handler.
            one = app.enqueue("plain", {"how": "wait", "token": TOKEN}, key="last").job
            until(lambda: running.worker.health().running, "the last handler to begin")
            proxy.refusing = True
            proxy.reset()
            gate.set()
            until(lambda: not running.worker.health().ok, "health to be red")
            proxy.refusing = False
            until(lambda: job(app, one).finished_at, "the outcome to be written")
            trails, health = everything(app, [*jobs, one]), running.worker.health().as_json()
        statuses = [job(app, one).status.value for one in jobs]
        messages = [job(app, one).error_message or "" for one in jobs]
        app.close()
    # The scenes did go wrong, in their own ways.
    assert statuses == [
        *(["dead_letter", "dead_letter", "failed"] * 2),
        "indeterminate",
        "failed",
        "indeterminate",
        "indeterminate",
        "failed",
    ]
    logs = shown(watched.records)
    assert len(watched.records) > 20
    assert "handler raised" in logs
    for canary in CANARIES:
        assert canary not in logs, _around(logs, canary)
        assert canary not in health
        assert canary not in (tmp_path / "health.json").read_text()
    # What a handler itself says of its failure is kept with the job, for the people who may see it; nothing else is.
    assert [TOKEN in message for message in messages] == [True, *([False] * 2), True, *([False] * 7)]
    assert PASSWORD not in trails
    assert BODY not in trails + "".join(messages)


def _around(text: str, canary: str) -> str:
    at = text.index(canary)
    return text[max(0, at - 300) : at + 50]


def _identity() -> Any:
    from tenure import ExecutionInput

    return ExecutionInput(tenant="studio", actor="user:1", trace="t")


def test_a_canary_in_a_log_is_found(watched: pytest.LogCaptureFixture) -> None:
    """The control of the test above: messages, arguments, extras and tracebacks are all looked at."""
    logger = logging.getLogger("tenure.worker")
    at = datetime.now(UTC) + timedelta(0)
    for nth, say in enumerate(
        (
            lambda: logger.debug(TOKEN),
            lambda: logger.debug("%s", TOKEN),
            lambda: logger.debug("x", extra={"mine": TOKEN}),
            lambda: _raised(logger),
        )
    ):
        watched.clear()
        say()
        assert TOKEN in shown(watched.records), f"way {nth} at {at}"


def _raised(logger: logging.Logger) -> None:
    try:
        int(TOKEN)
    except ValueError:
        logger.exception("x")
