"""What the README shows runs, and what it says of itself is so."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from pathlib import Path

from tests.docs.pages import ROOT, Reader, pieces

README = ROOT / "README.md"
FOLLOW = """
```console mail
$ python -m aiosmtpd -n -l localhost:8025
```

```console
$ python accept.py
```

```console worker
$ tenure worker app:app
worker ... on sqlite:///jobs.db; Ctrl-C drains
```

<!-- until it says so -->
```console
$ tenure jobs list --store sqlite:///jobs.db
1 job
...  quote-17  send_quote  completed  DONE  1/5
```

<!-- press: worker Ctrl-C -->
<!-- press: mail Ctrl-C -->
"""


def test_the_screenful_of_code_runs(tmp_path: Path) -> None:
    made = tmp_path / "reader"
    made.mkdir()
    text = README.read_text(encoding="utf-8")
    code = [f"```python {piece.name}\n{piece.body}```" for piece in pieces(text) if piece.language == "python"]
    assert len(code) == 2
    with Reader(made) as reader:
        reader.follow("\n\n".join([*code, FOLLOW]))
        assert reader.followed == 6
        mails = reader.output_of("mail")
    assert mails.count("Subject: Your quote 17") == 1
    database = sqlite3.connect(made / "jobs.db")
    assert database.execute("SELECT id, sent FROM quotes").fetchall() == [(17, 1)]
    database.close()


def test_it_never_promises_what_nobody_can() -> None:
    text = README.read_text(encoding="utf-8").lower()
    assert re.search(r"exactly[\s-]once", text) is None
    assert "exactly one email exists" in text


def test_the_first_screen_is_short() -> None:
    first = README.read_text(encoding="utf-8").partition("```python")[0]
    assert len(first.splitlines()) < 20


def test_what_it_installs_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "".join(page.read_text("utf-8") for page in pages())
    extras = re.findall(r"pip install (?:'\.(?:/tenure)?|\"\$\(ls dist/\*\.whl\))\[([\w,]+)\]", text)
    assert len(extras) >= 3
    assert {extra for group in extras for extra in group.split(",")} <= project["optional-dependencies"].keys()
    assert project["requires-python"] == ">=3.11"


def test_it_names_no_registry() -> None:
    # Until the package is in one, a name alone would install somebody else's.
    for page in pages():
        assert re.search(r"pip install[^\n]*[ '\"]tenure\b", page.read_text("utf-8")) is None, page.name


def pages() -> list[Path]:
    return [README, *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]


def test_anchors_are_headings() -> None:
    wanted = re.findall(r"\]\(([\w/.-]+)#([\w-]+)\)", README.read_text(encoding="utf-8"))
    assert len(wanted) >= 3
    for page, anchor in wanted:
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, (page, anchor)
