"""The how-to pages hold what runs: each page's Python, top to bottom, as a reader would type it."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import tenure
from tests.docs.pages import ROOT
from tests.support.postgres import Databases

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
    "deliver-messages.md": "tests/connectors/test_pages.py",
    "recover-a-restored-database.md": "tests/authority/test_page.py",
}
HERE = [
    "consume-once.md",
    "embed-a-worker.md",
    "enqueue-in-your-transaction.md",
    "fair-queues.md",
    "give-roles.md",
    "pause-drain-transfer.md",
    "publish-on-your-connection.md",
    "relay-messages.md",
    "require-an-approval.md",
    "results-in-object-storage.md",
    "see-what-is-going-on.md",
]


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


# A worker of a PostgreSQL database without a ledger says so in its log, and these programs are to say nothing.
PAGE_APP = """
import tenure
shop = {{"organization": "studio", "project": "sales", "authority_ledger": "shop.ledger"}}
app = tenure.Tenure({url!r}, **shop, actor="user:42")
@app.job("send_quote")
async def send_quote(ctx: tenure.AsyncContext, payload: dict[str, int]) -> None: ...
app.migrate()
with app.store.transaction() as tx:
    tx.execute("CREATE TABLE quotes (id integer PRIMARY KEY, accepted boolean)")
"""
# What a page holds for each library, the quotes that its blocks accept, and how a program with it ends.
LIBRARIES = {
    "psycopg": (2, [18, 19], ""),
    "sqlalchemy": (2, [20, 21, 22, 23], "engine.dispose()"),
    "asyncpg": (1, [24], ""),
    "django": (1, [25], "connection.close()"),
    "aiosqlite": (1, [26], ""),
}


def marked(path: Path, library: str) -> list[str]:
    return re.findall(rf"^```python {library}\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def run_program(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    # A worker on PostgreSQL that was given no ledger says so, once.
    said = [line for line in done.stderr.splitlines() if not line.startswith("no authority ledger is configured")]
    assert (done.returncode, said) == (0, []), done.stderr


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_what_the_page_shows_for_a_library_runs(library: str, postgres_url: str, tmp_path: Path) -> None:
    count, quotes, end = LIBRARIES[library]
    code = marked(HOW_TO / "enqueue-in-your-transaction.md", library)
    assert len(code) == count
    databases = Databases(postgres_url)
    url = f"sqlite:///{tmp_path}/shop.db" if library == "aiosqlite" else databases.create()
    info = {} if library == "aiosqlite" else conninfo_to_dict(url)
    own = "\n".join(code)
    if library == "aiosqlite":
        assert '"shop.db"' in own
    elif library == "django":
        assert '"HOST": "localhost", "NAME": "shop"' in own
        given = {"HOST": info["host"], "NAME": info["dbname"], "USER": info["user"], "PORT": info["port"]}
        own = own.replace('"HOST": "localhost", "NAME": "shop"', repr(given)[1:-1])
    else:
        assert "://localhost/shop" in own
        own = own.replace("://localhost/shop", url.removeprefix("postgresql"))
    run_program(PAGE_APP.format(url=url) + own + f"\n{end}\napp.close()\n", tmp_path)
    app = tenure.Tenure(url, organization="studio", project="sales")
    with app.store.transaction() as tx:
        assert [row[0] for row in tx.execute("SELECT id FROM quotes ORDER BY id").fetchall()] == quotes
    assert [job.payload["quote"] for job in app.service.list_jobs()] == quotes
    app.close()
    databases.close()


PUBLISHING = """
import asyncio
async def main():
    async with app.worker() as worker:
        made = await app.aenqueue(count_quotes, {}, key="count")
        service = await app.aservice()
        while (await service.get_job(made.job.id)).status != "completed":
            await asyncio.sleep(0.02)
    await app.aclose()
asyncio.run(main())
app.close()
"""


def test_what_the_page_on_publishing_shows_for_asyncpg_runs(postgres_url: str, tmp_path: Path) -> None:
    code = marked(HOW_TO / "publish-on-your-connection.md", "asyncpg")
    assert len(code) == 1
    databases = Databases(postgres_url)
    url = databases.create()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE counted (n integer)")
    own = code[0].replace("://localhost/shop", url.removeprefix("postgresql"))
    run_program(PAGE_APP.format(url=url) + own + PUBLISHING, tmp_path)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT n FROM counted").fetchall() == [(0,)]
    databases.close()


def test_every_page_with_code_is_run() -> None:
    with_code = {path.name for path in HOW_TO.glob("*.md") if blocks(path)}
    assert with_code == {*HERE, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert name in (ROOT / test).read_text("utf-8"), f"{test} does not run {name}"
