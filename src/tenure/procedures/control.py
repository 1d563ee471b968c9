"""What the execution control did, written into the trail."""

from __future__ import annotations

from tenure.procedures.records import event_row
from tenure.procedures.rows import fetch, repeated
from tenure.rules.control import Judged, error_of, stopped
from tenure.rules.lease import Lease, check_fence
from tenure.yields import FRESH, AfterCommit, Command, Each, Script, procedure


@procedure
def stop_effect(
    lease: Lease, name: str, provider: str, digest: str, judged: Judged, *, command: Command = FRESH
) -> Script[AfterCommit | None]:
    """
    Refuse an effect, before its intent, on the word of the execution control.

    Raises:
        LeaseLost: Nothing was written.
        ExecutionStopped, Unavailable: After the commit of the event that says so.
    Locks: as `rows.lock`. Writes: event.
    """
    known = yield from fetch(lease.job_id, None)
    if not (yield from repeated(command, lease.job_id)):
        check_fence(known.job, lease, known.now)
        event = stopped(known.job, name, provider, digest, judged, known.now)
        yield Each("event_insert", [event_row(known.job, event, command)])
    return AfterCommit(error_of(lease.job_id, name, judged))
