"""The tests have the same names in every process, or no two of them could share the work."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.tree import ROOT


def start(seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "tests",
        ],
        cwd=ROOT,
        # Another seed is another order of every set.
        env={name: value for name, value in os.environ.items() if "XDIST" not in name} | {"PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def names(process: subprocess.Popen[str]) -> list[str]:
    shown, _ = process.communicate()
    assert process.returncode == 0, shown[-2000:]
    return [line for line in shown.splitlines() if "::" in line]


def test_names_are_the_same_in_every_process() -> None:
    with start("1") as first, start("2") as second:
        one, two = names(first), names(second)
    assert len(one) > 100
    assert [name for name in one if " at 0x" in name] == []
    assert one == two
