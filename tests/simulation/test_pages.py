"""The pages about the model list what there is, and what they show runs and prints what they say."""

from __future__ import annotations

import re

from tenure import lab
from tenure.faces.experiments.run import EXPERIMENTS
from tests.support.tree import ROOT

MODEL = ROOT / "docs" / "explanation" / "model.md"
LAB = ROOT / "docs" / "how-to" / "use-the-lab.md"


def table(text: str, heading: str) -> dict[str, list[str]]:
    """Read the first table under a heading: its first column, and the others."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!---|name \|)(.+) \|$", section, re.MULTILINE)
    return {cells[0].strip("`"): cells[1:] for cells in (row.split(" | ") for row in rows)}


def test_the_worlds_of_the_page_are_those_of_the_lab() -> None:
    told = table(MODEL.read_text("utf-8"), "The worlds")
    assert told == {name: [known.about] for name, known in lab.configurations().items()}


def test_the_promises_of_the_page_are_those_that_are_checked() -> None:
    told = table(MODEL.read_text("utf-8"), "The promises")
    assert told == {name: [promise.rstrip(".")] for name, promise in lab.PROMISES.items()}


def test_the_variants_of_the_page_are_those_of_the_lab() -> None:
    told = table(LAB.read_text("utf-8"), "The variants")
    assert told == {known.name: [known.promise, known.breaks] for known in lab.variants()}


def test_what_the_page_shows_runs_and_prints_what_it_says() -> None:
    text = LAB.read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(code) == 3
    namespace: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(code, 1):
        exec(compile(block, f"use-the-lab.md, block {number}", "exec"), namespace)
    printed = re.search(r"^```\n(1 .*?)\n```", text, re.DOTALL | re.MULTILINE)
    assert printed is not None
    assert str(namespace["report"].violation) == printed[1]  # type: ignore[attr-defined]


def test_the_experiments_of_the_page_are_those_that_run() -> None:
    text = LAB.read_text("utf-8")
    told = table(text, "Faults on a real database")
    assert told == {one.name: [one.fault] for one in EXPERIMENTS}
    told = table(text, "The broken variants of the experiments")
    variants = {name: [f"`{one.name}`", wrong] for one in EXPERIMENTS for name, wrong in one.breaks.items()}
    assert told == variants
