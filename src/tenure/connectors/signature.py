"""
Signatures of Standard Webhooks: who sent a request, and when, over the exact bytes of its body.

    webhook-id           the message's id: the same each time it is sent, so a receiver can tell a repetition
    webhook-timestamp    seconds since 1970 at this sending; it is signed, so an old request cannot be made a new one
    webhook-signature    `v1,` and HMAC-SHA-256 over id, timestamp and body; one for each secret, parted by blanks

With two secrets a sender signs with both and a receiver takes either: that is how a secret is changed without a gap.
The library writes the signatures. It also reads them, but with one fixed tolerance and with errors of many kinds for
what strangers send, so reading is done here, with the library's own signature to compare with.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.connectors.extras import library
from tenure.errors import Invalid, Refused

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
TOLERANCE = timedelta(minutes=5)

PREFIX = "whsec_"
# Standard Webhooks: between 24 and 64 bytes.
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
_NEW_SECRET_BYTES = 32
_SIGNATURES_MAX = 10  # of one request; each costs a comparison
_MAKE_ONE = 'make one with `python -c "from tenure.connectors.signature import new_secret; print(new_secret())"`'
_SECONDS = re.compile(r"[0-9]{1,11}")
_ID = re.compile(r"[!-~]{1,200}")


def new_secret() -> str:
    """Make a secret; give it to the sender and to the receiver, and keep it where passwords are kept."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_SECRET_BYTES)).decode()


class Signer:
    """
    Signs and checks with one secret, or with an old one and a new one; its description shows neither.

    Args:
        secret: `whsec_` and base64 of 24 to 64 bytes; or several, the newest first.
        user: Who needs it, for the texts.
    Raises:
        Invalid: No secret, or one that is too short or not written like that; the text says how to make one.
    """

    def __init__(self, secret: str | Sequence[str] | None, *, user: str) -> None:
        library_ = library("standardwebhooks.webhooks", user=user, extra="webhook")
        given = (secret,) if isinstance(secret, str) else tuple(secret or ())
        if not given or "" in given:
            raise Invalid(
                f"{user} needs a secret, or nobody could tell its messages from forged ones: {_MAKE_ONE}, "
                "and give the same to sender and receiver as secret=",
                code="SECRET_REQUIRED",
            )
        self._keys: list[Any] = [library_.Webhook(_key(one, user)) for one in given]

    def __repr__(self) -> str:
        return f"<Signer with {len(self._keys)} secrets>"

    def headers(self, message_id: str, body: bytes, now: datetime) -> dict[str, str]:
        """Give the headers of one sending."""
        return {
            ID_HEADER: message_id,
            TIMESTAMP_HEADER: str(int(now.timestamp())),
            SIGNATURE_HEADER: " ".join(self._signatures(message_id, int(now.timestamp()), body.decode())),
        }

    def check(self, headers: Mapping[str, str], body: bytes, *, tolerance: timedelta, now: datetime) -> str:
        """
        Check one request.

        Returns:
            Its webhook-id and its timestamp, parted by a dot: what names this sending.
        Raises:
            Refused: SIGNATURE_MISSING, SIGNATURE_WRONG, or CLOCK_SKEW where a right signature is too old or too new.
        """
        plain = {str(name).lower(): value for name, value in headers.items()}
        identity, stamp, signed = (plain.get(name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
        if not identity or not stamp or not signed:
            raise Refused(
                f"the request has no {ID_HEADER}, {TIMESTAMP_HEADER} or {SIGNATURE_HEADER}: it is not from a sender "
                "that signs, or a proxy removed them",
                code="SIGNATURE_MISSING",
            )
        if (
            not _ID.fullmatch(identity)
            or not _SECONDS.fullmatch(stamp)
            or not self._matches(identity, stamp, signed, body)
        ):
            raise Refused(
                "the signature is not one of this secret over these bytes: compare both secrets, and check that the "
                "body is verified before anything parses or re-encodes it",
                code="SIGNATURE_WRONG",
            )
        # Only now: of a forged request the time says nothing.
        skew = int(now.timestamp()) - int(stamp)
        if abs(skew) > tolerance.total_seconds():
            raise Refused(
                f"the request was signed {abs(skew)} s {'ago' if skew > 0 else 'in the future'}, the tolerance is "
                f"{tolerance.total_seconds():g} s: it is a replay, or one of both clocks is wrong",
                code="CLOCK_SKEW",
            )
        return f"{identity}.{stamp}"

    def _matches(self, identity: str, stamp: str, signed: str, body: bytes) -> bool:
        try:
            right = [one.partition(",")[2] for one in self._signatures(identity, int(stamp), body.decode())]
        except (ValueError, OverflowError):  # not UTF-8, or a year that no clock shows
            return False
        if not signed.isascii():
            return False
        given = [one.removeprefix("v1,") for one in signed.split(" ")[:_SIGNATURES_MAX] if one.startswith("v1,")]
        return any(hmac.compare_digest(one, another) for one in right for another in given)

    def _signatures(self, identity: str, stamp: int, text: str) -> list[str]:
        at = datetime.fromtimestamp(stamp, UTC)
        return [key.sign(identity, at, text) for key in self._keys]


def _key(secret: object, user: str) -> bytes:
    text = secret.removeprefix(PREFIX) if isinstance(secret, str) else "no text"
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise Invalid(f"{user}: secret is {PREFIX} and base64; {_MAKE_ONE}", code="BAD_SECRET") from None
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise Invalid(
            f"{user}: the secret has {len(key)} bytes, it needs {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; {_MAKE_ONE}",
            code="BAD_SECRET",
        )
    return key
