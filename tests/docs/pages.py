"""
Follow a page as a reader would: write its files, type its commands into real shells, compare what comes.

    ```python app.py       a file; so for any other language with a name behind it
    ```console             commands behind `$ `, each typed into the reader's shell, and what it prints
    ```console worker      the same in another terminal; its last command goes on running
    <!-- press: worker Ctrl-C -->     what the text tells the reader to press
    <!-- until: mail delivered -->    what the text tells the reader to wait for, in which terminal
    <!-- until it says so -->         the next commands are repeated until they print what the page shows

Printed lines are compared by words and in order. `...` stands for anything; frames of tables and widths do not count.
Ports in the page are replaced by free ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
SHELL = "shell"
PATIENCE = 40.0
KEYS = {"Ctrl-C": signal.SIGINT, "Ctrl-\\": signal.SIGQUIT}

_PIECE = re.compile(
    r"^```(?P<language>\w+)(?: (?P<name>\S+))?\n(?P<body>.*?)^```$|^<!-- (?P<note>.*?) -->$", re.MULTILINE | re.DOTALL
)
_FRAME = re.compile(r"[─│╭╮╰╯├┤┬┴┼━]")


@dataclass(frozen=True)
class Piece:
    """One block of a page, or one note to whoever follows it by machine."""

    language: str
    name: str
    body: str
    note: str


def pieces(text: str) -> list[Piece]:
    """Give the blocks and notes of a page in order."""
    return [
        Piece(*(found[part] or "" for part in ("language", "name", "body", "note"))) for found in _PIECE.finditer(text)
    ]


def with_free_ports(text: str) -> str:
    """Put free ports in the place of those that the page uses."""
    for port in sorted(set(re.findall(r"\b80\d\d\b", text))):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            text = re.sub(rf"\b{port}\b", str(taken.getsockname()[1]), text)
    return text


def words(text: str) -> str:
    """Leave of a text what does not depend on widths."""
    return " ".join(_FRAME.sub(" ", text).split())


def says(output: str, expected: str) -> str:
    """Give the first expected words that do not come in their order; empty when all come."""
    rest = words(output)
    for line in expected.splitlines():
        for part in re.split(r"\.\.\.|…", line):
            wanted = words(part)
            place = rest.find(wanted)
            if place < 0:
                return wanted
            rest = rest[place + len(wanted) :]
    return ""


@dataclass
class Command:
    """One line behind a `$ `, and the lines below it."""

    line: str
    expected: str = ""


def commands(body: str) -> list[Command]:
    """Split a console block."""
    found: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        else:
            assert found, f"output before the first command: {line}"
            found[-1].expected += line + "\n"
    return found


class Terminal:
    """A window of the reader's: a real shell whose output is kept in a file."""

    def __init__(self, folder: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._count = 0

    def output(self) -> str:
        """Give all that was printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def type(self, line: str) -> tuple[str, int]:
        """Type a command, wait for its end, and give what it printed and its status."""
        self._count += 1
        mark = f"--- end of command {self._count} with"
        start = len(self.output())
        self._send(f"{line}\nstatus=$?; echo; echo {shlex.quote(mark)} $status\n")
        ended = self.wait(mark, start)
        found = re.search(rf"{re.escape(mark)} (\d+)\n", ended)
        assert found is not None
        return ended[: found.start()], int(found[1])

    def begin(self, line: str) -> None:
        """Type a command that goes on running; the shell becomes it, so that a key reaches it."""
        self._send(f"exec {line}\n")

    def wait(self, expected: str, start: int = 0) -> str:
        """Wait until something was printed, and give what was printed from `start` on."""
        until = time.monotonic() + PATIENCE
        while expected not in (printed := self.output()[start:]) or not printed.endswith("\n"):
            assert time.monotonic() < until, f"waited for {expected!r} and got:\n{printed}"
            if expected not in printed:
                assert self._shell.poll() is None or expected in self.output()[start:], f"it ended:\n{printed}"
            time.sleep(0.02)
        return printed

    def wait_words(self, expected: str) -> None:
        """Wait until all expected words have come."""
        until = time.monotonic() + PATIENCE
        while missing := says(self.output(), expected):
            assert time.monotonic() < until, f"waited for {missing!r} and got:\n{self.output()}"
            assert self._shell.poll() is None or not says(self.output(), expected), f"it ended:\n{self.output()}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key that ends what runs here."""
        self._shell.send_signal(KEYS[key])
        self._shell.wait(PATIENCE)

    def close(self) -> None:
        """End the shell, and whatever it became."""
        if self._shell.poll() is None:
            self._shell.kill()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()

    def _send(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()


@dataclass
class Reader:
    """Somebody who follows a page in a folder; use it with `with`."""

    folder: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    followed: int = 0
    _patient: bool = False

    def follow(self, text: str) -> None:
        """Do everything the page says."""
        for piece in pieces(with_free_ports(text)):
            if piece.note:
                self._obey(piece.note)
            elif piece.language == "console":
                self._type(piece.name or SHELL, commands(piece.body))
                self.followed += 1
                self._patient = False
            elif piece.name:
                (self.folder / piece.name).write_text(piece.body, encoding="utf-8")
                self.followed += 1

    def output_of(self, name: str) -> str:
        """Give all that one terminal has shown, windows that were closed included."""
        current = self.terminals[name].output() if name in self.terminals else ""
        return self.printed.get(name, "") + current

    def _obey(self, note: str) -> None:
        if note == "until it says so":
            self._patient = True
            return
        action, _, rest = note.partition(": ")
        name, _, rest = rest.partition(" ")
        if action == "until":
            self.terminals[name].wait_words(rest)
            return
        assert action == "press", f"unknown note: {note}"
        key = rest
        terminal = self.terminals.pop(name)
        terminal.press(key)
        self.printed[name] = self.printed.get(name, "") + terminal.output()
        terminal.close()

    def _type(self, name: str, lines: list[Command]) -> None:
        terminal = self.terminals.get(name) or self._open(name)
        finite = lines if name == SHELL else lines[:-1]
        for command in finite:
            self._run(terminal, command)
        if name != SHELL:
            if lines[-1].line:
                terminal.begin(lines[-1].line)
            terminal.wait_words(lines[-1].expected)

    def _run(self, terminal: Terminal, command: Command) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            output, status = terminal.type(command.line)
            missing = says(output, command.expected)
            if status == 0 and not missing:
                return
            waiting = self._patient and time.monotonic() < until
            assert waiting, f"$ {command.line}\n{output}\n(status {status}; not found: {missing!r})"
            time.sleep(0.1)

    def _open(self, name: str) -> Terminal:
        log = self.folder.with_name(f"{self.folder.name}-{name}-{len(self.printed)}.log")
        self.terminals[name] = Terminal(self.folder, self._environment(), log)
        return self.terminals[name]

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
        programs = self.folder.with_name(f"{self.folder.name}-bin")
        programs.mkdir(exist_ok=True)
        # As an installation puts them on the PATH, whether or not this environment was activated.
        for program, call in (
            ("python", '"$@"'),
            ("tenure", '-c "from tenure.faces.cli.main import main; main()" "$@"'),
        ):
            path = programs / program
            if not path.exists():
                path.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {call}\n", encoding="utf-8")
                path.chmod(0o755)
        return {**kept, "PATH": f"{programs}:{kept['PATH']}", "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self.terminals.values():
            terminal.close()
