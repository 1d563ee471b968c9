"""The pages for producers in other languages: what they show runs, and the tables say what the database has."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure import errors
from tenure.stores.migrate import load
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "enqueue-from-another-language.md"
REFERENCE = ROOT / "docs" / "reference" / "sql.md"


def cells(path: Path, heading: str) -> list[list[str]]:
    """Give the rows of the table under a heading."""
    _, _, text = path.read_text("utf-8").partition(f"\n## {heading}\n")
    table = re.findall(r"^\|(.*)\|$", text.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in table[2:]]


@pytest.fixture
def shop(postgres_database: str) -> str:
    """Give a migrated database with the table of the page."""
    with tenure.open_store(postgres_database) as store:
        store.migrate()
    with psycopg.connect(postgres_database) as connection:
        connection.execute("CREATE TABLE quotes (id integer PRIMARY KEY, accepted boolean)")
    return postgres_database


def test_what_the_page_shows_runs_and_python_does_the_work(shop: str) -> None:
    text = PAGE.read_text("utf-8")
    (sql,) = re.findall(r"^```sql\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(sql.encode())
    blocks = re.findall(r"^```python psycopg\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        assert '"postgresql://localhost/shop"' in block
        own = block.replace('"postgresql://localhost/shop"', repr(shop))
        exec(compile(own, f"{PAGE.name}, block {number}", "exec"), namespace)
    with psycopg.connect(shop) as connection:
        assert connection.execute("SELECT id FROM quotes ORDER BY id").fetchall() == [(17,), (18,), (19,)]
    with tenure.open_store(shop) as store:
        service = tenure.DurableJobService(store)
        done = []
        while claim := service.claim_job("A", start=True):
            assert tenure.validate_execution_identity_for_dispatch(claim.job) == []
            done.append((claim.job.idempotency_key, claim.job.payload["quote"]))
            service.complete_job(claim.lease, result=None)
        assert sorted(done) == [("quote-17", 17), ("quote-18", 18), ("quote-19", 19)]


def test_the_table_of_arguments_is_the_functions_own(shop: str) -> None:
    with psycopg.connect(shop) as connection:
        row = connection.execute("SELECT pg_get_function_arguments('tenure.enqueue'::regproc)").fetchone()
    assert row is not None
    there = []
    for argument in row[0].split(", "):
        name, _, rest = argument.partition(" ")
        kind, _, default = rest.partition(" DEFAULT ")
        there.append([f"`{name}`", kind, re.sub(r"::[a-z ]+$", "", default)])
    assert [row[:3] for row in cells(REFERENCE, "Arguments")] == there
    assert len(there) == 18


def test_the_table_of_errors_has_every_code_of_the_function_and_the_library_knows_them() -> None:
    # Its parts were made with it; later migrations make it anew, last in their file.
    name = "FUNCTION tenure.enqueue("
    first, *later = [one.sql for one in load("tenure.stores.postgres") if name in one.sql]
    sql = first + "".join(one[one.index(name) :] for one in later)
    raised = set(re.findall(r"enqueue_refuse(?:_at)?\(\s*'([A-Z_]+)'", sql)) | set(re.findall(r"DETAIL = '(\w+)'", sql))
    raised |= set(re.findall(r"WHEN '([A-Z_]{5,})'", sql))
    raised -= {"KEY", "TEXT"}
    rows = cells(REFERENCE, "Errors")
    documented = {code for row in rows for code in re.findall(r"`([A-Z_]{5,})`", row[1])}
    assert raised == documented
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    assert {code for code in raised if f"`{code}`" not in page} == set()
    states = {row[0].strip("`") for row in rows if row[0].startswith("`TN")}
    assert states == set(re.findall(r"ERRCODE = '(TN\w+)'", sql))
    assert {errors.Invalid.__name__, errors.Conflict.__name__, errors.Unavailable.__name__} <= {
        cell for row in cells(PAGE, "When it is refused") for cell in row
    }
