"""
The named configurations: each one closed, each for one kind of trouble.

`sees` lists what must have been possible in some state. A configuration in which no stale write was ever refused has
not tested the fence, whatever else it reports.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.lab.configuration import Configuration

TENANTS = "tenants"


def configurations() -> Mapping[str, Configuration]:
    """Every named configuration, by name."""
    return {known.name: known for known in _ALL}


_ALWAYS = frozenset(
    {
        "stale write refused",
        "current write accepted",
        "current write accepted beside a refused stale one",
        "lease expired after dispatch",
        "request sent too late",
        "completed",
        "escalated",
        "dead letter",
    }
)
_NAMED = _ALWAYS | {"unknown effect", "receipt read instead of sending", "late receipt kept", "settled by evidence"}
_LOOKED = _NAMED | {"settled by look-up", "absence not counted", "job reclaimed", "resumed"}
_COUNTED = _LOOKED | {"absence counted", "duplicate prevented by key", "contradiction escalated"}

_ALL = (
    Configuration(
        name="keys",
        about="a provider that performs one request for each key; faults of every kind; a publish between two fences",
        sees=_COUNTED
        | {
            "cancelled",
            "cancellation refused work",
            "published",
            "receipt kept in the journal",
            "revoked",
            "stale publish refused",
        },
        publishes=True,
        renews=True,
        outages=1,
        cancels=1,
        revokes=1,
    ),
    Configuration(
        name="keyless",
        about="a provider without idempotency keys: what a look-up does not find never counts; a crash, an outage",
        sees=_LOOKED | {"receipt kept in the journal"},
        honours_key=False,
        answers=frozenset({"before"}),
        outages=1,
    ),
    Configuration(
        name="blind",
        about="a provider with neither keys nor a look-up: only people can find out; a crash and a statement",
        sees=_NAMED | {"settled by statement", "resumed"},
        honours_key=False,
        lookup=False,
        statements=1,
    ),
    Configuration(
        name="incomplete",
        about="a look-up that may miss what has happened",
        sees=_LOOKED,
        lookup_complete=False,
    ),
    Configuration(
        name="doubt",
        about="a provider that forgets keys: late senders, absences, refusals that it does not remember",
        sees=_COUNTED | {"second begin refused", "key forgotten by the provider"},
        lease=1,
        retention=2,
        settles=0,
        answers=frozenset({"before", "denied"}),
        crashes=0,
    ),
    Configuration(
        name="memory",
        about="the same with longer times, a crash, and an outage between the provider's answer and its record",
        sees=_COUNTED | {"second begin refused", "key forgotten by the provider", "receipt kept in the journal"},
        retention=3,
        answers=frozenset({"before", "denied"}),
        outages=1,
    ),
    Configuration(
        name="resend",
        about="an effect sent again in its own attempt, under the same key",
        sees=(_COUNTED - {"job reclaimed"}) | {"sent again in the attempt", "second begin refused"},
        attempts=1,
        retention=2,
        settles=0,
        answers=frozenset({"before", "denied"}),
        resends=True,
        crashes=0,
    ),
    Configuration(
        name="bare",
        about="the bare dispatch mark, claims that do not start, a person's statement and retry",
        sees=_ALWAYS
        | {
            "contradiction escalated",
            "late receipt kept",
            "retried by a person",
            "retry refused as uncertain",
            "settled by statement",
        },
        bare=True,
        start=False,
        renews=True,
        honours_key=False,
        endings=frozenset({"retry", "fail"}),
        statements=1,
        retries=1,
    ),
    Configuration(
        name="publish",
        about="rows of the caller's, written between two fences; renewals, a cancellation, a crash",
        sees=_LOOKED | {"published", "stale publish refused", "cancellation refused work"},
        honours_key=False,
        publishes=True,
        renews=True,
        cancels=1,
    ),
    Configuration(
        name="one-process",
        about="both attempts carry the name of one worker",
        sees=_LOOKED | {"published", "stale publish refused"},
        workers=("A", "A"),
        honours_key=False,
        publishes=True,
        renews=True,
        crashes=0,
    ),
    Configuration(
        name="people",
        about="a cancellation, a revocation, a sweep let loose again",
        sees=_LOOKED | {"cancelled", "cancellation refused work", "revoked"},
        honours_key=False,
        cancels=1,
        revokes=1,
        resumes=1,
        crashes=0,
    ),
    Configuration(
        name="reopen",
        about="a definite refusal, and an operator who sends again under a new key",
        sees=(_LOOKED - {"job reclaimed"}) | {"retried by a person", "rejected effect reopened"},
        attempts=1,
        honours_key=False,
        answers=frozenset({"rejected"}),
        retries=1,
        crashes=0,
    ),
    Configuration(
        name="endings",
        about="every way in which a handler may end its attempt, a cancellation, a person's statement",
        sees=_LOOKED | {"cancelled", "cancellation refused work", "settled by statement"},
        honours_key=False,
        endings=frozenset({"complete", "retry", "fail", "release", "halt", "time_out", "mark"}),
        cancels=1,
        statements=1,
        crashes=0,
    ),
    Configuration(
        name="policies",
        about="reconciliation completes instead of resuming, and a refusal is a dead letter",
        sees=(_LOOKED - {"resumed"}) | {"cancelled"},
        honours_key=False,
        answers=frozenset({"rejected"}),
        on_reconciled="complete",
        on_declined="dead_letter",
        cancels=1,
    ),
    Configuration(
        name="patient",
        about="a sweeper that asks again and again before it asks a person",
        sees=_COUNTED,
        patient=True,
    ),
    Configuration(
        name="authority",
        about="an epoch rotated and a tenant or the database frozen while work is under way",
        sees=_LOOKED | {"held work refused", "published", "stale publish refused"},
        honours_key=False,
        publishes=True,
        rotations=1,
        freezes=1,
        crashes=0,
    ),
    Configuration(
        name="restore",
        about="a database restored from the backup that was made right after the job's creation",
        sees=_LOOKED | {"published", "stale publish refused"},
        honours_key=False,
        publishes=True,
        restores=1,
        crashes=0,
    ),
    Configuration(
        name="recovered",
        about="a restored database is recovered and work goes on; a provider that performs every request it gets",
        sees=_LOOKED - {"job reclaimed"} | {"asked before sending", "lost effect found"},
        honours_key=False,
        restores=1,
        recovers=True,
        crashes=0,
    ),
    Configuration(
        name="recovered-keys",
        about="the same with a provider that performs one request for each key",
        sees=(_COUNTED - {"job reclaimed"})
        | {"asked before sending", "lost effect found", "never sent, and sent once"},
        attempts=1,
        restores=1,
        recovers=True,
        crashes=0,
    ),
    Configuration(
        name=TENANTS,
        about="two tenants that use the same idempotency key in projects of the same name",
        sees=frozenset({"a tenant's own job created", "a tenant's own job claimed", "a tenant's own effect begun"}),
    ),
)
