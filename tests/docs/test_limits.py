"""The page of limits has the numbers of the code."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tenure import handler
from tenure.connectors import provider, wire
from tenure.loops import claims
from tenure.procedures import claim, inspect, operate, reconcile, upkeep
from tenure.rules import creation, effect, envelope, fairness, lease, moves, payload, retry, survey
from tenure.stores.sqlite import store
from tenure.verbs.reconciling import SWEEP_MAX
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "explanation" / "limits.md").read_text("utf-8")
ROWS = {
    cells[0]: cells[1] for line in re.findall(r"^\| (.+) \|$", PAGE, re.MULTILINE) if (cells := line.split(" | "))[0]
}
MIB, KIB = 1 << 20, 1 << 10


def number(value: int) -> str:
    return f"{value:,}"


def span(value: timedelta) -> str:
    for unit in ("days", "hours", "seconds", "milliseconds"):
        count = value / timedelta(**{unit: 1})
        if count >= 1 or (unit == "seconds" and count >= 0.1):
            return f"{count:g} {unit if count != 1 else unit.removesuffix('s')}"
    raise AssertionError(value)


LIMITS = {
    "a payload as JSON, without its envelopes": f"{payload.PAYLOAD_BYTES_MAX // MIB} MiB",
    "a result as JSON": f"{payload.RESULT_BYTES_MAX // MIB} MiB",
    "a receipt as JSON": f"{provider.RESULT_BYTES_MAX // MIB} MiB",
    "an answer's body in the receipt of `HttpProvider`": f"{wire.ANSWER_BYTES_MAX // KIB} KiB",
    "depth of a JSON document": number(survey.DEPTH_MAX),
    "digits of an integer": number(survey.DIGITS_MAX),
    "an error's code": f"{moves.CODE_MAX} characters",
    "an error's message": f"{number(payload.ERROR_TEXT_BYTES_MAX)} bytes",
    "a provider's reason": f"{provider.REASON_BYTES_MAX} bytes",
    "an event's data": f"{operate.EVENT_BYTES_MAX // KIB} KiB",
    "tenant, organization, project, key, kind, queue, subject, actor, worker id, reason": (
        f"{creation.TEXT_MAX} characters each, printable, not blank"
    ),
    "names of effects and providers": f"{effect.NAME_MAX} characters, printable, without `#` and `:`",
    "an operation key of a bare mark": f"{effect.NAME_MAX} characters, printable",
    "a text inside an envelope": f"{number(envelope.TEXT_CHARACTERS_MAX)} characters",
    "priority": f"-{number(creation.PRIORITY_MAX)} to {number(creation.PRIORITY_MAX)}",
    "attempts of a job": number(creation.ATTEMPTS_MAX),
    "attempts that one retry grants": number(moves.GRANT_MAX),
    "a lease": f"{span(lease.LEASE_MIN)} to {span(lease.LEASE_MAX)}",
    "base of the backoff": f"{span(creation.BACKOFF_MIN)} to {span(creation.BACKOFF_MAX)}",
    "pause before a retry": (
        f"{span(retry.BACKOFF_MIN)} to {span(retry.BACKOFF_MAX)}; as a provider asks, "
        f"{retry.RETRY_AFTER_MAX / timedelta(hours=1):g} hours at most"
    ),
    "`scheduled_at`": f"before the year {creation.SCHEDULED_MAX.year}",
    "a tenant's weight on a fair queue": f"1 to {fairness.WEIGHT_MAX}",
    "tenants with a weight on one queue": number(fairness.WEIGHTS_MAX),
    "tenants of a fair queue that a worker sees at once": f"{upkeep.LANES_MAX}; it goes on with the next ones",
    "`claim_jobs(limit=)`": number(claim.LIMIT_MAX),
    "what one turn of a worker claims": f"{claims.CLAIM_MAX}, and never more than its free slots",
    "`list_jobs(limit=)`": f"{number(inspect.LIST_MAX)}; go on with `after=`",
    "candidates of one sweep": f"{number(reconcile.CANDIDATES_MAX)}; {SWEEP_MAX} when nothing is said",
    "expired leases settled by one claim": number(upkeep.RECOVER_MAX),
    "jobs planned for later that one claim promotes": number(upkeep.PROMOTE_MAX),
    "a `ctx.publish` block": {3: "a third of the lease"}[handler.PUBLISH_SHARE],
    "any transaction on SQLite": f"{store._DEADLINE_MAX.total_seconds():g} seconds; nobody else writes meanwhile",
    "what a stopped handler waits for the outcome of its call to be written": f"{handler.OUTCOME_PATIENCE:g} seconds",
}
UNBOUNDED = {"`create_jobs`, `enqueue_many`", "effects already", "10", "100", "300", "1,000"}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_that_of_the_code(what: str) -> None:
    assert ROWS[what] == LIMITS[what]


def test_no_row_of_the_page_is_unchecked() -> None:
    assert ROWS.keys() - {"what", "---"} == LIMITS.keys() | UNBOUNDED


def test_the_page_of_the_interface_agrees() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert f"Higher first, from {LIMITS['priority']}." in text
    assert f"A JSON object of at most {operate.EVENT_BYTES_MAX // KIB} KiB." in text
    assert f"cut at {payload.ERROR_TEXT_BYTES_MAX // KIB} KiB." in text
