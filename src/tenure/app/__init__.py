"""The application object, and what it gives out to enqueue in the caller's transaction."""

from __future__ import annotations

from tenure.app.application import Tenure
from tenure.app.joined import AsyncJoined, Joined

__all__ = ["AsyncJoined", "Joined", "Tenure"]
