"""
Give every other system an environment of its own at fixed versions, in bench/peers/.venv/, which git does not see.

    python -m bench.peers.install              all of them
    python -m bench.peers.install oban dbos    some

An environment is made anew when its versions here change. Packages come from wherever pip is set up to find them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(__file__).resolve().parent / ".venv"
# The measuring side looks into PostgreSQL with it, in every environment.
_PSYCOPG = "psycopg[binary]==3.3.9"


@dataclass(frozen=True, slots=True)
class Environment:
    """
    What a system needs.

    Attributes:
        python: The oldest Python it runs on, where that is newer than ours.
    """

    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)


ENVIRONMENTS: dict[str, Environment] = {
    "pgqueuer": Environment(("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0", _PSYCOPG)),
    "pgmq": Environment(("pgmq[async]==1.1.4", "asyncpg==0.32.0", "uvloop==0.23.0", _PSYCOPG)),
    "awa": Environment(("awa-pg==0.6.9", _PSYCOPG)),
    "oban": Environment(("oban==0.7.0", "uvloop==0.23.0", "psycopg-pool==3.3.3", _PSYCOPG), python=(3, 12)),
    "chancy": Environment(("chancy==0.26.0", "psycopg-pool==3.3.3", _PSYCOPG)),
    "dbos": Environment(("dbos==3.4.0", "sqlalchemy==2.1.9", _PSYCOPG)),
    "absurd": Environment(("absurd-sdk==0.5.1", "absurdctl==0.5.1", _PSYCOPG)),
    "huey": Environment(("huey==3.5.4",)),
}


def interpreter(name: str) -> Path | None:
    """Give the Python of a system's environment; None where it is not installed at these versions."""
    folder = PLACE / name
    stamp = folder / "stamp"
    current = stamp.is_file() and stamp.read_text(encoding="utf-8") == _stamp(name)
    return folder / "bin" / "python" if current else None


def install(name: str) -> None:
    """
    Make one environment, if it is not there already.

    Raises:
        RuntimeError: There is no Python that is new enough.
        subprocess.CalledProcessError: pip did not find or could not install something.
    """
    if interpreter(name) is not None:
        return
    wanted = ENVIRONMENTS[name]
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([_python(wanted.python), "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted.packages], check=True)
    (folder / "stamp").write_text(_stamp(name), encoding="utf-8")


def _stamp(name: str) -> str:
    return "\n".join(ENVIRONMENTS[name].packages)


def _python(oldest: tuple[int, int]) -> str:
    """Find a Python: ours if it will do, else by name, else where pyenv keeps its own."""
    names = [sys.executable, *(f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4))]
    kept = Path.home() / ".pyenv" / "versions"
    names += [str(path) for path in sorted(kept.glob("3.*/bin/python"))]
    test = f"import sys; sys.exit(sys.version_info < {oldest})"
    for name in names:
        path = shutil.which(name)
        # A name on the PATH may be a shim that leads nowhere, so each is run.
        if path is not None and subprocess.run([path, "-c", test], capture_output=True, check=False).returncode == 0:
            return path
    raise RuntimeError(f"Python {oldest[0]}.{oldest[1]} or newer is needed and was not found")


def main() -> None:
    """Install what the command line names; one that fails does not keep the others from being installed."""
    failed = []
    for name in sys.argv[1:] or list(ENVIRONMENTS):
        print(f"{name} ...", file=sys.stderr)
        try:
            install(name)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
