"""Tell whether a run did what it says: each job ran in one handler, once, and the database says that it is finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

_SHOWN = 5


class Unverified(Exception):
    """The run is no measurement: jobs were lost, run twice or left unfinished; the text says which."""


def check_ran(jobs: int, ran: Iterable[int]) -> None:
    """
    Hold the handlers' own record against the numbers 0 to `jobs` - 1.

    Raises:
        Unverified: A number is missing, appears twice, or was never enqueued.
    """
    counted = Counter(ran)
    lost = [number for number in range(jobs) if number not in counted]
    doubled = sorted(number for number, times in counted.items() if times > 1)
    strange = sorted(number for number in counted if not 0 <= number < jobs)
    troubles = [
        f"{len(found)} {what} ({', '.join(map(str, found[:_SHOWN]))}{', ...' if len(found) > _SHOWN else ''})"
        for what, found in (("never ran", lost), ("ran twice", doubled), ("were never enqueued", strange))
        if found
    ]
    if troubles:
        raise Unverified(f"of {jobs} jobs " + ", ".join(troubles))


def check_stored(jobs: int, what: str, found: Sequence[int]) -> None:
    """
    Hold one count of the database against what must be there.

    Args:
        found: Rows, and distinct jobs among them.
    Raises:
        Unverified: Not one row for each job.
    """
    rows, distinct = found
    if (rows, distinct) != (jobs, jobs):
        raise Unverified(f"{what}: {rows} rows of {distinct} jobs are stored where {jobs} of {jobs} were expected")
