"""Ask an app's execution control, so that it ends in time and in an answer whatever it does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tenure.connectors.provider import REASON_BYTES_MAX, call_bounded
from tenure.errors import Invalid, echo
from tenure.rules.bounds import check_span
from tenure.rules.control import Allow, ControlMode, ControlRequest, Deny, Judged
from tenure.rules.payload import clean_text

ANSWER_WITHIN = timedelta(seconds=5)


class Control:
    """
    An app's execution control.

    Args:
        hook: Asked as `hook(request)`, gives Allow or Deny; `async def`, or `def`, which runs in a thread of its own.
        mode: shadow or enforced.
        timeout: How long it may take.
    Raises:
        Invalid: BAD_ARGUMENT, BAD_DURATION.
    """

    def __init__(self, hook: Callable[[ControlRequest], Any], mode: str | None, timeout: timedelta) -> None:
        if not callable(hook):
            raise Invalid(
                f"execution_control is a function of a ControlRequest, not {type(hook).__name__}", code="BAD_ARGUMENT"
            )
        if not isinstance(mode, str) or mode not in set(ControlMode):
            raise Invalid(
                f"say what the execution control does: execution_control_mode='shadow' to watch it, 'enforced' to obey "
                f"it; not {echo(mode)}",
                code="BAD_ARGUMENT",
            )
        self._hook = hook
        self._mode = ControlMode(mode)
        self._timeout = check_span("execution_control_timeout", timeout)

    async def ask(self, request: ControlRequest) -> Judged:
        """Give its answer; nothing is raised for what it does but the cancellation of the caller."""
        value, trouble = await call_bounded("the execution control", self._hook, (request,), self._timeout)
        if trouble is not None:
            return Judged(self._mode, "silent", trouble)
        if isinstance(value, Allow):
            return Judged(self._mode, "allow")
        if isinstance(value, Deny):
            reason = clean_text(value.reason, REASON_BYTES_MAX)[0] if isinstance(value.reason, str) else ""
            return Judged(self._mode, "deny", reason.strip() or "no reason was given")
        return Judged(self._mode, "silent", f"the execution control returned {type(value).__name__}, not Allow or Deny")
