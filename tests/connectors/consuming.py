"""
An example consumer as a process that dies on purpose.

    python -m tests.connectors.consuming EXAMPLE DIES_AT ARGUMENT...

It runs the file as it is. DIES_AT is the number of the answer at which it kills itself: after its commit, before its
ack or its status has left; 0 for never.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from nats.aio.msg import Msg

from tests.support.tree import ROOT


def dying_at(nth: int, answers: Callable[..., Any]) -> Callable[..., Any]:
    """Let the nth call be the end of this process."""
    left = nth

    def answer(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answers(*given, **named)

    return answer


if __name__ == "__main__":
    example, dies_at = sys.argv[1], int(sys.argv[2])
    Msg.ack = dying_at(dies_at, Msg.ack)  # type: ignore[method-assign]
    BaseHTTPRequestHandler.send_response = dying_at(  # type: ignore[method-assign]
        dies_at, BaseHTTPRequestHandler.send_response
    )
    sys.argv = [example, *sys.argv[3:]]
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
