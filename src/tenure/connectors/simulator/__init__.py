"""
A provider to test against: a real HTTP server on loopback with its own ledger and faults on demand.

`ProviderSimulator` runs in a thread of this process. `SimulatorProcess` runs apart, so that it survives when a test
kills a worker. `Simulator` speaks to either from anywhere, given its address. `python -m tenure.connectors.simulator`
starts one by hand.

The ledger file is the truth about what customers saw; read it with `read_ledger` and `duplicates`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlencode, urlsplit

from tenure.connectors.http import HttpProvider
from tenure.connectors.provider import IdempotencyKey
from tenure.connectors.simulator.faults import Fault
from tenure.connectors.simulator.ledger import Entry, Ledger, duplicates, effects_in, read_ledger
from tenure.connectors.simulator.server import HOST, Promises, Server, World, utc_now
from tenure.errors import Invalid

__all__ = [
    "Entry",
    "Fault",
    "Promises",
    "ProviderSimulator",
    "Simulator",
    "SimulatorProcess",
    "duplicates",
    "effects_in",
    "read_ledger",
]

_START_SECONDS = 30
_STOP_SECONDS = 10
_ANSWER_SECONDS = 10.0


class _Clock(Protocol):
    def now(self) -> datetime: ...


class Simulator:
    """
    Speak to a simulator that runs somewhere: queue faults, wait, read its ledger, make a provider for it.

    The methods block. In an async test that also runs the provider, call the ones that wait with `asyncio.to_thread`.

    Args:
        url: Its address, such as `http://127.0.0.1:8001`.
        ledger: Its ledger file.
        promises: What it promises; only `provider` reads them.
    """

    def __init__(self, url: str, ledger: Path | str, promises: Promises | None = None) -> None:
        self.url = url
        self.ledger = Path(ledger)
        self.promises = promises or Promises()

    def provider(self, name: str = "simulator", *, account: str | None = None, **overrides: Any) -> HttpProvider:
        """
        Make an `HttpProvider` that declares what the simulator promises.

        Args:
            account: Whose requests these are; keys are unique within it.
            overrides: Any argument of `HttpProvider`.
        """
        promises = self.promises
        key = IdempotencyKey(promises.retention, promises.binds_payload, promises.key_scope)
        settings: dict[str, Any] = {
            "idempotency": key if promises.idempotency_keys else None,
            "lookup_url": f"{self.url}/effects/{{operation_key}}" if promises.lookup else None,
            "lookup_complete": promises.lookup and promises.lookup_complete,
            "trust_env": False,  # loopback needs no proxy
            "headers": {} if account is None else {"X-Account": account},
        }
        return HttpProvider(name, f"{self.url}/effects", **settings | overrides)

    def fault(
        self,
        kind: str,
        *,
        key: str = "*",
        times: int | None = 1,
        status: int | None = None,
        seconds: float | None = None,
        retry_after: str | int | None = None,
        body: str | None = None,
    ) -> None:
        """Queue one fault; the arguments are those of `Fault`."""
        after = None if retry_after is None else str(retry_after)
        self.queue(Fault(kind=kind, key=key, times=times, status=status, seconds=seconds, retry_after=after, body=body))

    def queue(self, *faults: Fault) -> None:
        """Queue faults; for each request the first one that fits is at work."""
        self._ask("POST", "/_faults", [fault.as_json() for fault in faults])

    def faults(self) -> list[Fault]:
        """Give the faults still queued."""
        return [Fault.read(one) for one in self._ask("GET", "/_faults")]

    def clear_faults(self) -> None:
        """Heal: forget what is queued. Held replies stay held until they are released."""
        self._ask("DELETE", "/_faults")

    def release(self, key: str = "*") -> int:
        """Let held replies go whose key fits the pattern; gives how many."""
        released: int = self._ask("POST", "/_release", {"key": key})["released"]
        return released

    def state(self) -> dict[str, Any]:
        """Give what is held, and counters: accepted, requests, duplicates, actions, faults_hit, faults_queued."""
        state: dict[str, Any] = self._ask("GET", "/_state")
        return state

    def wait_until(
        self, *, held: int = 0, accepted: int = 0, requests: int = 0, within: timedelta = timedelta(seconds=30)
    ) -> dict[str, Any]:
        """
        Wait until at least so many replies are held, effects accepted and requests seen, and give the state.

        Raises:
            TimeoutError: It did not come to that, with the state in the text.
        """
        seconds = within.total_seconds()
        query = urlencode({"held": held, "accepted": accepted, "requests": requests, "timeout": seconds})
        state: dict[str, Any] = self._ask("GET", f"/_state?{query}", seconds=seconds + _ANSWER_SECONDS)
        if not state["met"]:
            raise TimeoutError(f"waited for {held} held, {accepted} accepted, {requests} requests; there is {state}")
        return state

    def entries(self) -> list[Entry]:
        """Read the ledger."""
        return read_ledger(self.ledger)

    def effects(self) -> dict[str, list[Entry]]:
        """Give what customers saw, per operation key."""
        return effects_in(self.entries())

    def duplicates(self) -> dict[str, list[Entry]]:
        """Give the keys under which customers saw more than one effect."""
        return duplicates(self.ledger)

    def _ask(self, method: str, path: str, body: Any = None, seconds: float = _ANSWER_SECONDS) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=seconds)
        with contextlib.closing(connection):
            content = b"" if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Length": str(len(content))})
            response = connection.getresponse()
            answer = json.loads(response.read())
        if response.status != http.client.OK:
            raise Invalid(f"the simulator refused: {answer['error']}")
        return answer


class ProviderSimulator(Simulator):
    """
    A simulator in a thread of this process; use it with `with`.

    Args:
        ledger: Its file; an existing one is read, so a simulator may be stopped and started again.
        port: 0: any free one.
        clock: Something with `now()`, such as `tenure.testing.ManualClock`; decides when keys are forgotten.
    """

    def __init__(
        self,
        ledger: Path | str,
        *,
        port: int = 0,
        idempotency_keys: bool = True,
        key_scope: str = "account",
        retention: timedelta = timedelta(hours=24),
        binds_payload: bool = True,
        lookup: bool = True,
        lookup_complete: bool = True,
        clock: _Clock | None = None,
    ) -> None:
        promises = Promises(
            idempotency_keys=idempotency_keys,
            key_scope=key_scope,
            retention=retention,
            binds_payload=binds_payload,
            lookup=lookup,
            lookup_complete=lookup_complete,
        )
        super().__init__("", ledger, promises)
        self._port = port
        self._now = utc_now if clock is None else clock.now
        self._running: tuple[Server, Ledger, threading.Thread] | None = None

    def start(self) -> Self:
        """Open the ledger and serve."""
        if self._running is not None:
            raise Invalid("this simulator is running already")
        ledger = Ledger(self.ledger)
        try:
            server = Server(World(ledger, self.promises, self._now), self._port)
        except BaseException:
            ledger.close()
            raise
        # Polling this often only bounds how long a stop takes.
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="tenure-simulator", daemon=True)
        thread.start()
        self.url = f"http://{HOST}:{server.server_address[1]}"
        self._running = (server, ledger, thread)
        return self

    def stop(self) -> None:
        """Release what is held, stop serving and close the ledger; a second stop does nothing."""
        if self._running is None:
            return
        server, ledger, thread = self._running
        self._running = None
        server.world.close()
        server.shutdown()
        thread.join()
        server.server_close()
        ledger.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class SimulatorProcess(Simulator):
    """
    A simulator in a process of its own; use it with `with`.

    It ends when this process ends, whatever way, and with `stop` or `kill`. After that `start` begins again on the same
    ledger, on a port of its own choice unless one was given.
    """

    def __init__(self, ledger: Path | str, *, port: int = 0, promises: Promises | None = None) -> None:
        super().__init__("", ledger, promises)
        self._port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        if self._process is None:
            raise Invalid("this simulator is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start the process and wait until it serves."""
        if self._process is not None:
            raise Invalid("this simulator is running already")
        command = [sys.executable, "-m", "tenure.connectors.simulator", "--ledger", str(self.ledger)]
        command += ["--port", str(self._port), "--until-stdin-closes", *_options(self.promises)]
        process = subprocess.Popen(  # noqa: S603 - our own module, under our own interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        watchdog = threading.Timer(_START_SECONDS, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline().split()
        finally:
            watchdog.cancel()
        self._process = process
        if len(line) != 2 or line[0] != "ready":
            self.kill()
            raise Invalid("the simulator did not start; its own output says why")
        self.url = f"http://{HOST}:{line[1]}"
        return self

    def stop(self) -> None:
        """End it as it wishes to end; a second stop does nothing."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        self._forget(process)

    def kill(self) -> None:
        """End it as a power cut would."""
        process = self._process
        if process is not None:
            process.kill()
            self._forget(process)

    def _forget(self, process: subprocess.Popen[str]) -> None:
        with process:  # closes the pipes and waits
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def _options(promises: Promises) -> list[str]:
    """Write promises as arguments of the command."""
    flags: Mapping[str, bool] = {
        "--no-idempotency-keys": not promises.idempotency_keys,
        "--no-binds-payload": not promises.binds_payload,
        "--no-lookup": not promises.lookup,
    }
    options = [flag for flag, given in flags.items() if given]
    seconds = promises.retention.total_seconds()
    return [*options, "--key-scope", promises.key_scope, "--retention", str(seconds)]
