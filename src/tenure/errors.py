"""
Every error of the package, grouped by what the caller should do next.

Each class has a stable `code`; an instance may carry a narrower one. Errors carry ids and typed reasons, never
payloads, requests, receipts or connection strings: they end up in logs. `docs/reference/errors.md` is made from this
file.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

ECHO_MAX = 80


def echo(value: object) -> str:
    """
    Show a caller's value in an error's text: the literal of a plain value, bounded and in ASCII.

    Of anything else only its type is named: it may be a payload, and its own description is a stranger's code.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        shown = ascii(text[:ECHO_MAX])
        if len(text) <= ECHO_MAX and len(shown) <= 2 * ECHO_MAX:
            return shown
        return f"{shown[:ECHO_MAX]}... ({len(text)} characters)"
    if type(value) is int and value.bit_length() > 64:  # Python refuses to write very long ones
        return f"a number of {value.bit_length()} bits"
    if value is None or type(value) in {bool, int, float, UUID, datetime, timedelta}:
        return str(value)
    return f"a value of type {type(value).__name__[:ECHO_MAX]}"


class TenureError(Exception):
    """
    The root of all errors of this package.

    Attributes:
        code: Stable upper-case name; programs branch on it, people search for it.
    """

    code: str = "TENURE_ERROR"
    group: ClassVar[str] = ""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions whose __init__ takes keywords do not survive pickling by default (worker pools, pytest-xdist).
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[TenureError], args: tuple[object, ...], state: dict[str, object]) -> TenureError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class Invalid(TenureError):
    """Fix the call: a bad argument, a malformed or forged envelope, a wrong setting. Nothing was written."""

    code = "INVALID"
    group = "fix the call"


class NotFound(TenureError):
    """No such id in this scope. A foreign tenant's id gives the same text as an unknown one."""

    code = "NOT_FOUND"
    group = "look elsewhere"


class Conflict(TenureError):
    """The same identity was used with another meaning: a key or a name with another digest."""

    code = "CONFLICT"
    group = "use another identity"


class Refused(TenureError):
    """State or authority says no. Nothing was written, unless the class says so."""

    code = "REFUSED"
    group = "stop, or ask an operator"


class IllegalMove(Refused):
    """The job's status does not allow this move."""

    code = "ILLEGAL_MOVE"


class LeaseLost(Refused):
    """
    The presented lease is not the current one: stop working on this job.

    Attributes:
        reason: status, worker, attempt, generation, expired, epoch or frozen.
    """

    code = "LEASE_LOST"

    def __init__(self, message: str, *, reason: str, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reason = reason


class EpochClosed(LeaseLost):
    """The tenant's authority moved on, or the tenant or the database is frozen; the work is held."""

    code = "EPOCH_CLOSED"


class CancelRequested(Refused):
    """A cancellation is pending: stop and call `acknowledge_cancellation`."""

    code = "CANCEL_REQUESTED"


class IdentityRefused(Refused):
    """
    The execution envelope does not allow a dispatch.

    Attributes:
        reasons: Every reason found, in order.
    """

    code = "IDENTITY_REFUSED"

    def __init__(self, message: str, *, reasons: tuple[str, ...], code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reasons = reasons


class ApprovalRefused(Refused):
    """
    The governance envelope or its approval does not allow a dispatch; the trail has it as `admission_checked`.

    Attributes:
        reasons: The code of every reason found, in order, such as REVOKED, EXPIRED or OTHER_DIGEST.
    """

    code = "APPROVAL_REFUSED"

    def __init__(self, message: str, *, reasons: tuple[str, ...], code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reasons = reasons


class ExecutionStopped(Refused):
    """
    The app's execution control said no to an effect, before its intent; the trail has it as `admission_checked`.

    Attributes:
        reason: What the control gave as its reason.
    """

    code = "EXECUTION_STOPPED"

    def __init__(self, message: str, *, reason: str, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reason = reason


class EffectRejected(Refused):
    """The provider definitely refused this effect; the stored reason is in the text."""

    code = "EFFECT_REJECTED"


class EffectFailed(TenureError):
    """
    The effect surely did not happen; the attempt may be retried.

    Attributes:
        retry_after: Seconds the provider asked us to wait, or None.
    """

    code = "EFFECT_FAILED"
    group = "retry"

    def __init__(self, message: str, *, retry_after: float | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Permanent(TenureError):
    """Raised by a handler whose work cannot succeed by trying again: the job fails at once and goes to review."""

    code = "PERMANENT"
    group = "review it"


class Uncertain(TenureError):
    """The world may have acted: reconcile, do not retry."""

    code = "UNCERTAIN"
    group = "reconcile, do not retry"


class Unavailable(TenureError):
    """The database, or whatever else had to be asked, did not answer; it is safe to run the same call again."""

    code = "UNAVAILABLE"
    group = "run it again later"


class Stop(BaseException):
    """
    Raised inside a handler that must stop: a BaseException, so that `except Exception` does not swallow it.

    Attributes:
        code: LEASE_LOST, CANCELLED, TIMED_OUT or SHUTDOWN.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
