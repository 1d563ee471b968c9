"""The tutorial works as printed: followed word by word, in real shells, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Reader, commands, pieces, says

TUTORIAL = ROOT / "docs" / "tutorial"


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "reader"
    made.mkdir()
    return made


def sooner(text: str) -> str:
    """Shorten the one wait of the page: a person needs time to press a key, and this reader does not."""
    assert text.count("timedelta(seconds=30)") == 1
    assert "After half a minute the dead worker's lease is over." in text
    return text.replace("timedelta(seconds=30)", "timedelta(seconds=5)")


def test_start(tmp_path: Path) -> None:
    with Reader(folder(tmp_path)) as reader:
        reader.follow((TUTORIAL / "start.md").read_text(encoding="utf-8"))
        assert reader.followed == 6
        assert reader.terminals.keys() == {"shell"}
    assert sorted(path.name for path in reader.folder.iterdir()) == ["first"]


def test_a_first_job_of_ones_own(tmp_path: Path) -> None:
    with Reader(folder(tmp_path)) as reader:
        reader.follow(sooner((TUTORIAL / "first-job.md").read_text(encoding="utf-8")))
        assert reader.followed == 18
        mails = reader.output_of("mail")
    # What the customers got: the mail of the killed worker was neither lost nor sent again.
    assert [mails.count(f"Subject: Your quote {number}") for number in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert "send_quote%3A" in mails


@pytest.mark.parametrize("name", ["start.md", "first-job.md"])
def test_nothing_on_a_page_is_only_decoration(name: str) -> None:
    text = (TUTORIAL / name).read_text(encoding="utf-8")
    shown = [piece for piece in pieces(text) if not piece.note]
    assert text.count("```") == 2 * len(shown)
    # What is not followed is the installation, which is the one thing that needs a network, and the demonstration.
    aside = [piece.body for piece in shown if piece.language != "console" and not piece.name]
    assert all("pip install" in body or body == "tenure demo\n" for body in aside)


def test_the_lines_of_the_app_are_as_few_as_promised() -> None:
    app = next(piece.body for piece in pieces((TUTORIAL / "first-job.md").read_text("utf-8")) if piece.name == "app.py")
    assert len([line for line in app.splitlines() if line.strip()]) <= 20


# --- whoever follows a page must notice when it is wrong --------------------------------------------------------------


def test_output_is_compared_by_words_in_order() -> None:
    output = "╭────╮\n│ id │ status │\n│ 7  │ done   │\n"
    assert says(output, "id status\n7 done\n") == ""
    assert says(output, "id ... done\n") == ""
    assert says(output, "7 done\nid\n") == "id"
    assert says(output, "7 lost\n") == "7 lost"


def test_a_wrong_page_is_noticed(tmp_path: Path) -> None:
    with Reader(folder(tmp_path)) as reader:
        reader.follow("```text note.txt\nhello\n```\n\n```console\n$ cat note.txt\nhello\n```\n")
        assert reader.followed == 2
        with pytest.raises(AssertionError, match="not found: 'goodbye'"):
            reader.follow("```console\n$ cat note.txt\ngoodbye\n```\n")
        with pytest.raises(AssertionError, match="status 1"):
            reader.follow("```console\n$ cat nothing.txt\n```\n")
        with pytest.raises(AssertionError, match="it ended"):
            reader.follow("```console other\n$ echo early\nlate\n```\n")
        with pytest.raises(AssertionError, match="unknown note"):
            reader.follow("<!-- jump -->\n")
    with pytest.raises(AssertionError, match="output before the first command"):
        commands("hello\n$ echo hello\n")
