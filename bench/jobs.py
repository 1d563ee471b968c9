"""The app that is measured: one kind that does nothing."""

from __future__ import annotations

import os
from typing import Any

from tenure import AsyncContext, Tenure

app = Tenure(os.environ["TENURE_STORE"], organization="bench", project="bench", actor="bench")


@app.job("noop")
async def noop(ctx: AsyncContext, payload: dict[str, Any]) -> None:
    """Do nothing: what is measured is everything around it."""
    del ctx, payload
