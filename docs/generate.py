"""
Write the reference pages that are made from the code: states, errors, events, the command line, the Python interface.

    python docs/generate.py            write them
    python docs/generate.py --check    only say which are not what the code says; exit 1 if any

The tables that the package obeys are the source, so the pages cannot say anything else.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

from tenure import errors
from tenure.faces.cli import main
from tenure.rules.effect import EFFECT_MOVES, OPEN, EffectState
from tenure.rules.event import APPENDABLE, STATUS_AFTER, EventName
from tenure.rules.roles import MAY, Role
from tenure.rules.status import EXCEPTIONS, LIVE, TERMINAL, TRANSITIONS, Phase, Status

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
MADE = "<!-- Made by docs/generate.py; `make docs` writes it again. -->"

STATUS_MEANING = {
    Status.QUEUED: "accepted and not being worked on: due, planned for later, waiting, or held",
    Status.CLAIMED: "a worker took it and has not started yet",
    Status.RUNNING: "a worker is at it and keeps its lease alive",
    Status.COMPLETED: "done; the result is stored",
    Status.FAILED: "ended by a failure that is not retried; an operator may retry it",
    Status.CANCELLED: "ended by a cancellation; what had been sent before stays sent",
    Status.DEAD_LETTER: "the attempts are used up",
    Status.INDETERMINATE: "the world may have acted and nobody knows yet; evidence settles it",
    Status.HALT_UNSAFE: "stopped for good: nothing and nobody ever moves it",
    Status.TIMED_OUT: "the handler ran out of time; an operator's evidence may move it",
}

PHASE_MEANING = {
    Phase.READY: "queued, waits for nothing, and is due or planned",
    Phase.LEASED: "claimed or running",
    Phase.WAITING_EXTERNAL: "queued, waits for a signal or a timer",
    Phase.WAITING_REVIEW: "queued, waits for a person's decision",
    Phase.HELD: "queued under a superseded epoch, a frozen tenant, a paused queue or a held provider",
    Phase.DONE: "completed, or cancelled with nothing uncertain",
    Phase.NEEDS_ATTENTION: "failed, dead_letter, indeterminate, halt_unsafe, timed_out; cancelled with an open effect",
}

EXCEPTION_MEANING = {
    "retry_job": "an operator grants more attempts; refused while an outcome is uncertain",
    "reconcile_dispatched": "evidence settles what was uncertain; a resume and a statement take this path too",
}

EFFECT_MEANING = {
    EffectState.PENDING: "the intent is committed; the call may be under way",
    EffectState.SUCCEEDED: "the provider acted; its receipt is stored and nothing is sent again",
    EffectState.FAILED_BEFORE_DISPATCH: "the provider surely did not act; a later attempt may begin again",
    EffectState.REJECTED: "the provider's definite refusal; only an operator's retry can reopen it",
    EffectState.UNKNOWN: "the provider may have acted; evidence settles it",
    EffectState.CLOSED: "a bare dispatch mark that a non-retryable failure closed",
}

EVENT_MEANING = {
    EventName.CLAIMED: "a worker took the job; attempt and generation rose by one",
    EventName.DISPATCHED: "the dispatch boundary was crossed: an intent or the bare mark was committed",
    EventName.HEARTBEAT: "the holder extended its lease; repeated ones are kept as one",
    EventName.COMPLETED: "the holder finished and its result was stored",
    EventName.FAILED: "an attempt failed for good, or evidence said that it did",
    EventName.CANCELLED: "the job ended by a cancellation",
    EventName.INDETERMINATE: "the attempt ended while its outcome was uncertain",
    EventName.HALT_UNSAFE: "the holder stopped the job for good",
    EventName.DEAD_LETTERED: "the last attempt was used up",
    EventName.TIMED_OUT: "the handler ran out of time",
    EventName.RETRIED: "a failed attempt, or an operator, put the job back into its queue",
    EventName.ADMISSION_CHECKED: "a caller recorded that an admission decision was looked at",
    EventName.ESCALATED: "the job was handed to an operator, with the reason",
    EventName.RECONCILED: "evidence or a statement settled what was uncertain",
    EventName.EXECUTION_CONTROL_SHADOW: "a caller recorded what a control under trial would have decided",
    EventName.RELEASED: "the holder gave the job and its attempt back",
    EventName.LEASE_EXPIRED: "the lease ran out and nothing was uncertain",
    EventName.CANCEL_REQUESTED: "somebody asked for a cancellation of a job in work",
    EventName.REVOKED: "an operator took the lease away; the generation rose",
    EventName.SUSPENDED: "the handler waits for something and gave its worker back",
    EventName.RESUMED: "what the job waited for came",
    EventName.EFFECT_SETTLED: "one effect got its outcome",
    EventName.EVIDENCE_RECEIVED: "a receipt or a statement was stored",
    EventName.READMITTED: "an operator put held work under the current epoch",
    EventName.SUSPECTED: "a recovery marked it: what it did after the backup is not known here",
    EventName.SUSPICION_CLEARED: "a person said that nothing of it is lost",
}


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Lay out a table; a bar inside a cell would end it."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def named(statuses: frozenset[Status]) -> str:
    """List statuses in the order of their definition."""
    return ", ".join(status.value for status in Status if status in statuses)


def states() -> str:
    """Describe every status, every move, and the phases that people see."""
    rows = [(f"`{one.value}`", STATUS_MEANING[one], named(TRANSITIONS[one]) or "nothing") for one in Status]
    exceptions = [
        (f"`{command}`", before.value, named(after), EXCEPTION_MEANING[command])
        for command, moves in EXCEPTIONS.items()
        for before, after in moves.items()
    ]
    arrows = [f"    {one.value} --> {after.value}" for one in Status for after in Status if after in TRANSITIONS[one]]
    back = [
        f"    {before.value} --> {after.value}: {command}"
        for command, moves in EXCEPTIONS.items()
        for before, targets in moves.items()
        for after in Status
        if after in targets
    ]
    effects = [
        (f"`{one.value}`", EFFECT_MEANING[one], ", ".join(after.value for after in EffectState if after in moves))
        for one, moves in EFFECT_MOVES.items()
    ]
    uncertain = " or ".join(one.value for one in EffectState if one in OPEN)
    live = " or ".join(one.value for one in Status if one in LIVE)
    ends = [f"    {one.value} --> [*]" for one in Status if one in TERMINAL]
    diagram = ["```mermaid", "stateDiagram-v2", "    [*] --> queued", *arrows, *back, *ends, "```"]
    return "\n".join(
        [
            "# States",
            "",
            MADE,
            "",
            f"A job has one of {len(Status)} statuses, {len(TERMINAL)} of them terminal. While it is {live},",
            "one worker holds a lease on it. Waiting is not a status: a waiting job is queued; it costs no worker.",
            "",
            "## Statuses and ordinary moves",
            "",
            table(("status", "meaning", "may become"), rows),
            "",
            "## Named exceptions",
            "",
            "Only these commands move a job out of a terminal status. Nothing ever moves `halt_unsafe`.",
            "",
            table(("command", "from", "to", "when"), exceptions),
            "",
            "## The same as a picture",
            "",
            *diagram,
            "",
            "## Phases",
            "",
            "A phase is derived from the record when somebody looks, and never stored.",
            "",
            table(("phase", "when"), [(one.value, PHASE_MEANING[one]) for one in Phase]),
            "",
            "## Effects",
            "",
            f"An effect is the record of one outside act. While one is {uncertain}, the job's dispatch boundary is",
            "open: nothing queues the job again until evidence has settled it.",
            "",
            table(("state", "meaning", "may become"), effects),
            "",
        ]
    )


def error_classes() -> list[type[errors.TenureError]]:
    """Give every error class in the order of the file, parents first."""
    return [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, errors.TenureError) and one.__module__ == errors.__name__
    ]


def narrow_codes() -> dict[str, list[tuple[str, str]]]:
    """Find, for each class, the narrower codes that the source gives it: code and text."""
    classes = {one.__name__ for one in error_classes()}
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "src" / "tenure").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name not in classes or not isinstance(node, ast.Call):
                continue
            for keyword in node.keywords:
                value = keyword.value
                code = value.value if isinstance(value, ast.Constant) else constants.get(getattr(value, "id", ""))
                if keyword.arg == "code" and isinstance(code, str):
                    text = _template(node.args[0]) if node.args else ""
                    found.setdefault(name, []).append((code, text))
    return found


def _template(node: ast.expr) -> str:
    """Show an error's text with dots where its values go; a text built elsewhere is left out."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return ""


def error_page() -> str:
    """Describe every error: what to do next, its code, and the narrower codes it comes with."""
    narrower = narrow_codes()
    lines = [
        "# Errors",
        "",
        MADE,
        "",
        "Errors are grouped by what to do next. Each has a stable `code`; programs branch on the class and on it.",
        "They hold ids and typed reasons, never payloads, receipts or connection strings.",
        "",
        "```",
        *_tree(errors.TenureError),
        "```",
        "",
    ]
    for one in error_classes():
        doc = inspect.cleandoc(one.__doc__ or "")
        summary, _, rest = doc.partition("\n\n")
        lines += [f"## {one.__name__}", "", f"Code `{one.code}`. {summary}", ""]
        attributes = re.findall(r"^ {4}(\w+): (.+)$", rest, flags=re.MULTILINE)
        lines += [f"- `{name}`: {meaning}" for name, meaning in attributes] + ([""] if attributes else [])
        rows: dict[str, set[str]] = {}
        for code, text in narrower.get(one.__name__, []):
            rows.setdefault(code, set()).add(text)
        if rows:
            texts = {code: "<br>".join(sorted(text for text in found if text)) for code, found in rows.items()}
            lines += [table(("narrower code", "text"), sorted((f"`{code}`", text) for code, text in texts.items())), ""]
    lines += [
        "## Stop",
        "",
        inspect.cleandoc(errors.Stop.__doc__ or "").partition("\n\n")[0],
        "",
    ]
    return "\n".join(lines)


def _tree(top: type[errors.TenureError], indent: str = "") -> Iterator[str]:
    """Draw the classes below one, each with its group where it is first named."""
    if not indent:
        yield top.__name__
    below = [one for one in error_classes() if one.__bases__ == (top,)]
    for one in below:
        last = one is below[-1]
        group = f"  {one.group}" if one.group != top.group else ""
        yield f"{indent}{'└─' if last else '├─'} {one.__name__}{group}"
        yield from (
            _tree(one, indent + ("   " if last else "│  "))
            if any(deeper.__bases__ == (one,) for deeper in error_classes())
            else ()
        )


def events() -> str:
    """Describe the closed vocabulary of the trail."""
    rows = [
        (
            f"`{one.value}`",
            EVENT_MEANING[one],
            named(STATUS_AFTER[one]) or "as before",
            "yes" if one in APPENDABLE else "",
        )
        for one in EventName
    ]
    return "\n".join(
        [
            "# Events",
            "",
            MADE,
            "",
            "Every job has a trail: an append-only list of events. The vocabulary is closed, and checked before",
            "anything is written. Every change of status has its event in the same transaction; creation is the",
            "job's own row.",
            "",
            table(("event", "what happened", "status after it", "callers may append it"), rows),
            "",
        ]
    )


def roles() -> str:
    """Show which role may run which procedure: the table that every store asks."""
    rows = [(f"`{name}`", *("yes" if role in MAY[name] else "" for role in Role)) for name in sorted(MAY)]
    return "\n".join(
        [
            "# Roles",
            "",
            MADE,
            "",
            "Which role may run which procedure; [why](../explanation/roles.md), and",
            "[how to give them](../how-to/give-roles.md). A verb of the service, a command and a loop are made of",
            "these procedures; what a role may not run is refused with `ROLE_DENIED` before anything is sent. What is",
            "not in this table, such as `migrate`, takes a store without a role.",
            "",
            table(("procedure", *(role.value for role in Role)), rows),
            "",
        ]
    )


def command_line() -> str:
    """Describe every command of the program from the program itself."""
    lines = [
        "# The command line",
        "",
        MADE,
        "",
        "Every command exits with 0 when it is done, 1 when it was refused or failed, 2 when the command line",
        "could not be read. `tenure --version` says which version it is.",
        "With `--json` an error is an object whose `error` is a code from [the page of errors](errors.md).",
        "",
        *_command(get_command(main.app), "tenure", 2),
    ]
    return "\n".join(lines)


def _command(command: Any, path: str, level: int) -> Iterator[str]:
    if command.hidden:
        return
    yield from (f"{'#' * level} {path}", "", *_help(command), "")
    arguments = [(f"`{one.metavar or one.name.upper()}`", _clean(one.help)) for one in _arguments(command)]
    if arguments:
        yield from (table(("argument", "meaning"), arguments), "")
    options = [
        (", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts]), _clean(one.help), _default(one))
        for one in command.params
        if one.param_type_name == "option" and not one.hidden and one.name != "help"
    ]
    if options:
        yield from (table(("option", "meaning", "default"), options), "")
    for name, below in getattr(command, "commands", {}).items():
        yield from _command(below, f"{path} {name}", min(level + 1, 4))


def _arguments(command: Any) -> Iterator[Any]:
    return (one for one in command.params if one.param_type_name == "argument" and not getattr(one, "hidden", False))


def _help(command: Any) -> list[str]:
    return textwrap.dedent(command.help or "").strip().splitlines()


def _clean(text: str | None) -> str:
    return " ".join((text or "").split())


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.envvar:
        names = option.envvar if isinstance(option.envvar, str) else ", ".join(option.envvar)
        return f"from `{names}`"
    # Versions of the library mark "no default" in different ways; only real values are shown.
    value = option.default
    return f"`{value}`" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def python_interface() -> str:
    """Describe every public name; the module beside this one does it."""
    text: str = import_module("api_page").api(table, MADE)
    return text


def pages() -> dict[Path, Callable[[], str]]:
    """Name every page and what writes it."""
    made = {"states.md": states, "errors.md": error_page, "events.md": events, "cli.md": command_line}
    made["roles.md"] = roles
    made["api.md"] = python_interface
    return {REFERENCE / name: write for name, write in made.items()}


def run() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not current")
    options = parser.parse_args()
    stale = []
    for path, write in pages().items():
        text = write()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not current, run `make docs`' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(run())
