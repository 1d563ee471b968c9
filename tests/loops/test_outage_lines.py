"""An outage is said once for all loops of a worker, and so is its end; other troubles are said loop by loop."""

from __future__ import annotations

import logging
import re
from datetime import timedelta

import pytest

from tenure.errors import Unavailable
from tenure.loops.supervisor import Supervisor

GONE = Unavailable("CANARY", code="CONNECTION_LOST")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    caplog.clear()
    return [re.sub(r"[\d.]+ s$", "N s", one) for one in told]


AWAY = "the database does not answer: code=CONNECTION_LOST; it is asked again until it does"
BACK = "the database answers again, after N s"


def test_an_outage_is_said_once_for_all_loops(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    claim, tend, sweep = (supervisor.pulse(name, timedelta(seconds=1)) for name in ("claim", "tend", "sweep"))
    with caplog.at_level(logging.DEBUG, "tenure.worker"):
        for _ in range(3):
            for pulse in (claim, tend):
                pulse.fail(GONE)
        assert "CANARY" not in caplog.text
        assert "loop tend failed, it goes on: Unavailable CONNECTION_LOST" in caplog.text, "by loop for who asks for it"
        assert warnings(caplog) == [AWAY]
        sweep.beat()  # one that did not ask meanwhile knows nothing
        claim.beat()
        assert warnings(caplog) == []
        tend.beat()
        assert warnings(caplog) == [BACK]
        # The next one is another one.
        tend.fail(GONE)
        tend.beat()
        assert warnings(caplog) == [AWAY, BACK]


def test_an_answer_that_is_an_error_ends_an_outage_too(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    claim = supervisor.pulse("claim", timedelta(seconds=1))
    with caplog.at_level(logging.DEBUG, "tenure.worker"):
        claim.fail(GONE)
        claim.fail(KeyError("CANARY"))
        assert warnings(caplog) == [AWAY, "loop claim failed, it goes on: KeyError ", BACK]
        claim.beat()
        assert warnings(caplog) == []


def test_other_troubles_are_said_loop_by_loop_and_workers_do_not_mix(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (Supervisor().pulse("claim", timedelta(seconds=1)) for _ in range(2))
    with caplog.at_level(logging.DEBUG, "tenure.worker"):
        first.fail(ValueError("CANARY"))
        second.fail(GONE)
        first.beat()
        assert warnings(caplog) == ["loop claim failed, it goes on: ValueError ", AWAY]
        second.beat()
        assert warnings(caplog) == [BACK]
