"""The public interface as a user's strict type checker sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

USER = Path(__file__).with_name("user.py")


def check(program: Path, cache: Path) -> tuple[int, str]:
    # Like a user's own run: from another folder, with no settings but strictness.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(program)],
        cwd=cache,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_a_user_writes_is_accepted_and_what_is_wrong_is_found(tmp_path: Path) -> None:
    assert check(USER, tmp_path) == (0, "Success: no issues found in 1 source file\n")
    wrong = tmp_path / "wrong.py"
    text = USER.read_text(encoding="utf-8")
    assert text.count("assert_type(made.created, bool)") == 1
    wrong.write_text(
        text.replace("assert_type(made.created, bool)", "assert_type(made.created, int)"), encoding="utf-8"
    )
    status, said = check(wrong, tmp_path)
    assert status == 1
    assert "Found 1 error" in said
