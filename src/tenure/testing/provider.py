"""A provider for unit tests: in this process, with scripted endings and an honest ledger."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from tenure.connectors.provider import IdempotencyKey, Provider, check_provider
from tenure.connectors.wire import json_bytes
from tenure.errors import Invalid
from tenure.rules.outcome import (
    Absent,
    Accepted,
    Declined,
    Evidence,
    FailedBeforeDispatch,
    Json,
    NoAnswer,
    Outcome,
    Rejected,
    Succeeded,
    Unknown,
)

# What a scripted call may end with: an outcome, or an exception that `send` raises.
Ending: TypeAlias = Outcome | Exception


@dataclass(frozen=True, slots=True)
class Step:
    """
    How one call ends and whether the outside world changed.

    Attributes:
        acts: None: a success acts, a refusal and a failure before dispatch do not, and an Unknown or an exception does,
            because that is the case which code must survive. Write False for a request that was lost on its way.
    """

    ending: Ending
    acts: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ending, Succeeded | FailedBeforeDispatch | Rejected | Unknown | Exception):
            raise Invalid(f"a step ends with an outcome or an exception, not with {type(self.ending).__name__}")
        if isinstance(self.ending, Succeeded) and self.acts is False:
            raise Invalid("a provider that says Succeeded has acted; leave out acts")
        if isinstance(self.ending, FailedBeforeDispatch | Rejected) and self.acts:
            raise Invalid(f"a provider that says {type(self.ending).__name__} has not acted; leave out acts")

    @property
    def changes_the_world(self) -> bool:
        """Whether an effect exists after the call."""
        if self.acts is None:
            return not isinstance(self.ending, FailedBeforeDispatch | Rejected)
        return self.acts


@dataclass(frozen=True, slots=True)
class Act:
    """
    One call as the provider saw it.

    Attributes:
        action: accepted, replayed, refused or nothing.
        effect_id: What was done; None where nothing was.
    """

    operation_key: str
    action: str
    effect_id: str | None
    request: object


class FakeProvider(Provider):
    """
    Ends each call as scripted, and succeeds when the script is over.

    A key it knows is answered with the first receipt, if it declares idempotency; another request under that key is
    rejected. The look-up reads the ledger: Accepted, Declined after a refusal, Absent otherwise.

        mailer = FakeProvider("mailer", [FailedBeforeDispatch("down"), Unknown("no reply")])
        ...
        assert len(mailer.effects("send_quote:...:send")) == 1

    Args:
        script: Outcomes, exceptions or `Step`s, one per call that is not a replay.
        lookups: Evidence that the look-up gives first, before it reads the ledger.
        lookup: False: it cannot be asked.

    Attributes:
        ledger: Every call in order, as it really ended.
    """

    def __init__(
        self,
        name: str = "fake",
        script: Iterable[Ending | Step] = (),
        *,
        lookups: Iterable[Evidence] = (),
        idempotency: IdempotencyKey | None = IdempotencyKey(timedelta(hours=24), binds_payload=True),  # noqa: B008 - frozen
        lookup: bool = True,
        lookup_complete: bool | None = None,
        settles_within: timedelta = timedelta(0),
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        self.name = name
        self.idempotency = idempotency
        self.lookup_complete = lookup if lookup_complete is None else lookup_complete
        self.settles_within = settles_within
        self.timeout = timeout
        self.ledger: list[Act] = []
        self._has_lookup = lookup
        self._lock = threading.Lock()
        self._script: deque[Step] = deque()
        self._lookups = deque(lookups)
        self._bytes: dict[str, bytes] = {}
        # One act, one receipt: the call, its replays and the look-up must not contradict each other.
        self._receipts: dict[str, Json] = {}
        self.then(*script)
        check_provider(self)

    @property
    def has_lookup(self) -> bool:
        """Whether it can be asked."""
        return self._has_lookup

    def then(self, *script: Ending | Step) -> None:
        """Add to the script."""
        steps = [step if isinstance(step, Step) else Step(step) for step in script]
        with self._lock:
            self._script.extend(steps)

    async def send(self, request: object, operation_key: str) -> Outcome:
        """End as scripted."""
        try:
            content = json_bytes(request)
        except Invalid as refusal:
            return Rejected(f"nothing was sent: {refusal}")
        with self._lock:
            known = self._known(operation_key)
            if known and self.idempotency:
                if self.idempotency.binds_payload and self._bytes[operation_key] != content:
                    self.ledger.append(Act(operation_key, "refused", None, request))
                    return Rejected("this key was used with another request")
                self.ledger.append(Act(operation_key, "replayed", known, request))
                return Succeeded(self._receipts[known])
            step = self._script.popleft() if self._script else Step(Succeeded())
            effect_id = f"fx-{len(self.ledger) + 1}" if step.changes_the_world else None
            action = "accepted" if effect_id else "refused" if isinstance(step.ending, Rejected) else "nothing"
            self.ledger.append(Act(operation_key, action, effect_id, request))
            self._bytes.setdefault(operation_key, content)
            if effect_id:
                scripted = step.ending.receipt if isinstance(step.ending, Succeeded) else None
                own = {"effect_id": effect_id, "operation_key": operation_key}
                self._receipts[effect_id] = own if scripted is None else scripted
        if isinstance(step.ending, Exception):
            raise step.ending
        return Succeeded(self._receipts[effect_id]) if effect_id and isinstance(step.ending, Succeeded) else step.ending

    async def lookup(self, operation_key: str) -> Evidence:
        """Give the scripted evidence, then what the ledger says."""
        with self._lock:
            if not self._has_lookup:
                return NoAnswer("this provider has no look-up")
            if self._lookups:
                return self._lookups.popleft()
            known = self._known(operation_key)
            if known:
                return Accepted(self._receipts[known])
            if any(act.operation_key == operation_key and act.action == "refused" for act in self.ledger):
                return Declined("refused")
            return Absent()

    def effects(self, operation_key: str | None = None) -> list[Act]:
        """Give what the outside world saw, of one key or of all."""
        with self._lock:
            return [
                act for act in self.ledger if act.action == "accepted" and operation_key in {None, act.operation_key}
            ]

    def duplicates(self) -> list[str]:
        """Give the keys under which the outside world saw more than one effect."""
        keys = [act.operation_key for act in self.effects()]
        return sorted({key for key in keys if keys.count(key) > 1})

    def _known(self, operation_key: str) -> str | None:
        found = (
            act.effect_id for act in self.ledger if act.action == "accepted" and act.operation_key == operation_key
        )
        return next(found, None)
