"""
What a transaction tells PostgreSQL before and between the statements of a procedure; no I/O.

A unit opens with BEGIN and one SELECT of settings that end with the transaction, so that a pooled connection, also one
behind a transaction-mode pooler, carries nothing over to the next user: how long the server may work on a statement and
may wait for us with locks held, the role, the tenant, and a test's clock. All of it shares a round trip with
the first statements.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from tenure.errors import Invalid
from tenure.stores.contract import Clock
from tenure.stores.postgres.trouble import ROLE
from tenure.stores.postgres.values import Catalogue, Query, plain
from tenure.stores.runner import Closing, Requests
from tenure.yields import Rows

# Explicitly: under a database default of "repeatable read" a claim would fail where it should skip.
BEGIN = Query("begin", b"BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT = Query("commit", b"COMMIT")

# Of the savepoints of this process; a transaction is never in two.
_numbers = itertools.count(1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds that the client waits beyond what the server was told, so that the server's own answer comes first. With what
# a cancellation may take it stays under a second: a call that meets silence ends within its deadline and a second.
GRACE = 0.5


def microseconds(clock: Clock) -> int:
    """Read a replaced clock in UTC microseconds."""
    now = clock.now()
    if now.tzinfo is None:
        raise Invalid("the clock given to the store returns a naive datetime; give an aware one", code="BAD_INSTANT")
    return (now - _EPOCH) // timedelta(microseconds=1)


_LIMITS = (
    "SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true)"
)


# Plans that are made once for a connection, never begin with a whole table, and are never compiled. A statement with an
# array would be planned anew at every execution, because the server takes a generic plan to cost more; a plan that was
# made while a table was empty would read all of it until the next ANALYZE; and compiling one takes half a second.
_PLANS = (
    ", set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), "
    "set_config('jit', 'off', true)"
)


# Lists have filters that may be left out, for which the server may plan anew; never from a whole table all the same.
READ_PLANS = plain("plans", "SELECT set_config('enable_seqscan', $1, true), set_config('jit', $1, true)", "off")

# In a block the caller's own statements follow, whose plans are not ours to bend; so ours are made for the tables as
# they are at every execution.
BLOCK_PLANS = plain("plans", "SELECT set_config('plan_cache_mode', $1, true)", "force_custom_plan")


def settings(
    *, deadline: float | None, role: str | None, tenant: str | None = None, plans: bool = False
) -> list[Query]:
    """
    Give the settings of one transaction.

    Args:
        deadline: Monotonic; the server stops a statement, and a transaction that waits for us, about then.
        tenant: The only one whose rows the transaction sees, where row security is on.
        plans: With a deadline: plans are made as ours are. One statement for both is 30 us less of each transaction.
    """
    queries = []
    if deadline is not None:
        # 0 would mean no limit.
        left = max(1, round((deadline - time.monotonic()) * 1000))
        queries.append(plain("limits", _LIMITS + _PLANS if plans else _LIMITS, str(left)))
    if role is not None:
        queries.append(plain(ROLE, "SELECT set_config('role', $1, true)", role))
    if tenant is not None:
        queries.append(plain("tenant", "SELECT set_config('tenure.tenant', $1, true)", tenant))
    return queries


class Savepoint:
    """
    The place in an open transaction that one procedure is taken back to.

    Each has a name of its own: a procedure that is interrupted before its savepoint reached the server must not be
    taken back to that of the procedure before it, whose work is the caller's by now.

    Attributes:
        set: What sets it.
        answered: The server said that it is set.
    """

    def __init__(self) -> None:
        name = f"tenure_step_{next(_numbers)}"
        self._back = f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
        self._name = name
        self.set = Query("savepoint", f"SAVEPOINT {name}".encode())
        self.answered = False

    def ways_back(self) -> list[str]:
        """
        Give the scripts that bring the transaction back; the first that succeeds has done it.

        Where nobody knows whether it was set, a second one catches the error that a missing one is: that error would
        leave the caller with a failed transaction.
        """
        if self.answered:
            return [self._back]
        caught = f"{self._name}_caught"
        # The second way is for a transaction that has failed, the third for a savepoint that is not there.
        return [
            f"SAVEPOINT {caught}; {self._back}",
            self._back,
            f"ROLLBACK TO SAVEPOINT {caught}; RELEASE SAVEPOINT {caught}",
        ]


class Unit:
    """
    One conversation on a connection.

    Args:
        savepoint: Where it begins inside a transaction that is open already.
        opening: What is sent before the first statement, or before every one where there is no transaction around them.
        repeated: Every round trip is a transaction of its own (plain reads).
        commits: The commit goes along with a procedure's last requests.
        after: What goes along with the commit.

    Attributes:
        opened: Something was sent.
        closed: No commit has to be sent any more.
        closing: What ends the transaction.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock | None,
        opening: Callable[[], Sequence[Query]],
        *,
        repeated: bool = False,
        commits: bool = False,
        after: Sequence[Query] = (),
        savepoint: Savepoint | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._opening = opening
        self._repeated = repeated
        self._told: int | None = None
        self._lead = 0
        self._wanted = 0
        self._commits = commits
        self.closing = [COMMIT, *after]
        self.savepoint = savepoint
        self.opened = False
        self.closed = repeated

    @property
    def inside(self) -> Savepoint:
        """The savepoint of one that runs inside an open transaction."""
        assert self.savepoint is not None
        return self.savepoint

    def queries(self, requests: Requests) -> list[Query]:
        """Give what to send for these requests."""
        # First of all, because a value that does not fit must leave everything as it was.
        wanted = [self._catalogue.query(request) for request in requests]
        first = self._repeated or not self.opened
        lead = list(self._opening()) if first else []
        if first and self.savepoint is not None:
            lead.insert(0, self.savepoint.set)
        if self._clock is not None:
            now = microseconds(self._clock)
            if first or now != self._told:
                lead.append(plain("clock", "SELECT set_config('tenure.now_us', $1, true)", str(now)))
                self._told = now
        self.opened = True
        self._lead, self._wanted = len(lead), len(wanted)
        if self._commits and isinstance(requests, Closing):
            self.closed = True
            wanted += self.closing
        return [*lead, *wanted]

    def answers(self, results: list[Rows]) -> list[Rows]:
        """Take away the answers that are not for the procedure."""
        if self.savepoint is not None:
            self.savepoint.answered = True
        return results[self._lead : self._lead + self._wanted]
