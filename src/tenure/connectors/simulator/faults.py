"""What can go wrong at a provider, asked for one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tenure.errors import Invalid

# kind -> the status it answers with unless told otherwise; 0: it answers as if nothing were wrong, or not at all.
SEND_FAULTS: Mapping[str, int] = {
    "drop_request": 0,  # closed before anything was done
    "refuse": 400,  # a definite refusal, remembered for the look-up
    "too_many": 429,  # nothing done; Retry-After if `retry_after` is given
    "error_before": 503,  # nothing done
    "error_after": 500,  # done, and answered with an error
    "drop_reply": 0,  # done, and closed without an answer
    "hold_reply": 0,  # done, and answered when released
    "late_reply": 0,  # done, and answered after `seconds`
}
LOOKUP_FAULTS: Mapping[str, int] = {
    "lookup_unknown": 404,  # it does not know yet
    "lookup_down": 503,
    "lookup_declined": 422,  # what was taken at first was refused afterwards
    "lookup_drop": 0,  # closed without an answer
}
BEFORE = frozenset({"drop_request", "refuse", "too_many", "error_before"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One thing to go wrong.

    Attributes:
        kind: One of SEND_FAULTS or LOOKUP_FAULTS.
        key: A pattern of operation keys as in file names, such as `*:charge`.
        times: For how many requests; None: for all.
        status: Another status than the kind's own.
        seconds: late_reply: how late. hold_reply: released by itself after so long; None: only by a release.
        retry_after: The text of the Retry-After header.
        body: The answer's text instead of the simulator's own, for kinds that answer with an error.
    """

    kind: str
    key: str = "*"
    times: int | None = 1
    status: int | None = None
    seconds: float | None = None
    retry_after: str | None = None
    body: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in SEND_FAULTS and self.kind not in LOOKUP_FAULTS:
            raise Invalid(f"no fault {self.kind!r}; there are {', '.join((*SEND_FAULTS, *LOOKUP_FAULTS))}")
        if self.times is not None and self.times < 1:
            raise Invalid("times is 1 or more, or None for every request")
        if self.kind == "late_reply" and self.seconds is None:
            raise Invalid("late_reply needs seconds")
        if self.seconds is not None and self.seconds < 0:
            raise Invalid("seconds is zero or more")
        if self.status is not None and not self._status_fits(self.status):
            raise Invalid(f"status {self.status} does not fit {self.kind}")

    def _status_fits(self, status: int) -> bool:
        own = SEND_FAULTS.get(self.kind, LOOKUP_FAULTS.get(self.kind, 0))
        if own == 0:
            return False
        # A refusal may be any 4xx; what is no refusal may be any error.
        return 400 <= status < 500 if self.kind in {"refuse", "too_many"} else 400 <= status < 600

    @classmethod
    def read(cls, given: object) -> Fault:
        """Make one of JSON that came over the control address."""
        names = {part.name for part in dataclasses.fields(cls)}
        if not isinstance(given, dict) or not given.keys() <= names or "kind" not in given:
            raise Invalid(f"a fault is an object with kind and perhaps {', '.join(sorted(names - {'kind'}))}")
        try:
            return cls(**given)
        except TypeError:
            raise Invalid("a fault's numbers are numbers and its texts are texts") from None

    @property
    def answer_status(self) -> int:
        """The status it answers with; 0 where it gives no answer of its own."""
        return self.status or SEND_FAULTS.get(self.kind) or LOOKUP_FAULTS.get(self.kind) or 0

    def matches(self, kinds: Mapping[str, int], operation_key: str) -> bool:
        """Whether it applies to this request."""
        return self.kind in kinds and fnmatchcase(operation_key, self.key)

    def as_json(self) -> dict[str, Any]:
        """Write it as the control address takes it."""
        return dataclasses.asdict(self)
