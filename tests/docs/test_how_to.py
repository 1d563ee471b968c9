"""The how-to pages hold what runs: each page's Python, top to bottom, as a reader would type it."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path

import psycopg
import pytest

import tenure
from tests.docs.pages import ROOT

HOW_TO = ROOT / "docs" / "how-to"
# Beside what they test; `test_every_page_with_code_is_run` looks that they are there.
ELSEWHERE = {
    "run-a-worker.md": "tests/loops/test_pages.py",
    "stop-a-worker.md": "tests/loops/test_pages.py",
    "test-crashes.md": "tests/crash/test_page.py",
    "use-the-lab.md": "tests/simulation/test_pages.py",
    "write-a-provider.md": "tests/connectors/test_pages.py",
    "send-mail.md": "tests/connectors/test_pages.py",
    "test-with-the-simulator.md": "tests/connectors/test_pages.py",
}
HERE = ["consume-once.md", "relay-messages.md", "embed-a-worker.md", "enqueue-in-your-transaction.md", "fair-queues.md"]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", HERE)
def test_what_a_page_shows_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Other tests of this process may have stores open that live as long as it does.
    before = set(threading.enumerate())
    code = blocks(HOW_TO / name)
    assert code
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(code, 1):
        exec(compile(block, f"{name}, block {number}", "exec"), namespace)
    for opened in {"connection", "app"} & namespace.keys():
        namespace[opened].close()  # type: ignore[attr-defined]
    namespace.clear()
    gc.collect()
    left = [
        thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith(("tenure", "worker"))
    ]
    assert left == []


def test_what_the_page_shows_for_psycopg_runs(postgres_url: str) -> None:
    text = (HOW_TO / "enqueue-in-your-transaction.md").read_text("utf-8")
    code = re.findall(r"^```python psycopg\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(code) == 2
    app = tenure.Tenure(postgres_url, organization="studio", project="sales", actor="user:42")

    @app.job("send_quote")
    async def send_quote(ctx: tenure.AsyncContext, payload: dict[str, int]) -> None: ...

    app.migrate()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE quotes (id integer PRIMARY KEY, accepted boolean)")
    namespace: dict[str, object] = {"__name__": "page", "app": app, "send_quote": send_quote}
    for number, block in enumerate(code, 1):
        assert '"postgresql://localhost/shop"' in block
        own = block.replace('"postgresql://localhost/shop"', repr(postgres_url))
        exec(compile(own, f"enqueue-in-your-transaction.md, psycopg block {number}", "exec"), namespace)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT id, accepted FROM quotes ORDER BY id").fetchall() == [(18, True), (19, True)]
    assert [job.payload["quote"] for job in app.service.list_jobs()] == [18, 19]
    app.close()


def test_every_page_with_code_is_run() -> None:
    with_code = {path.name for path in HOW_TO.glob("*.md") if blocks(path)}
    assert with_code == {*HERE, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert name in (ROOT / test).read_text("utf-8"), f"{test} does not run {name}"
