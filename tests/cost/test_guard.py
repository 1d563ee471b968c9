"""What a job costs, counted and never timed, is at most a tenth above what was committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cost import baseline
from tests.cost.measure import least
from tests.cost.work import BATCH, PIECES, Piece, claiming

# Noise only adds, so a figure that is too high is looked at again.
LOOKS = 5


def judge(piece: Piece, allowed: baseline.Pieces, make: Callable[[], str], looks: int = LOOKS) -> str:
    """Measure until all is well or the looks are used up; gives what is to be said against it."""
    mine = allowed.get(piece.name, {})
    cost = piece.measure(make())
    figures = cost.each()
    for _ in range(looks - 1):
        if not baseline.complaints(piece.name, figures, mine):
            return ""
        cost = piece.measure(make())
        figures = least(figures, cost.each())
    found = baseline.complaints(piece.name, figures, mine)
    return baseline.verdict(found, cost.detail()) if found else ""


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_work_costs_no_more_than_was_accepted_on_postgresql(
    piece: Piece, make_postgres: Callable[[], str], server_name: str
) -> None:
    said = judge(piece, baseline.pieces_for(server_name, baseline.load()), make_postgres)
    assert not said, said


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_work_costs_no_more_than_was_accepted_on_sqlite(piece: Piece, make_sqlite: Callable[[], str]) -> None:
    said = judge(piece, baseline.pieces_for("sqlite", baseline.load()), make_sqlite)
    assert not said, said


def test_real_work_that_costs_more_is_refused(make_postgres: Callable[[], str], server_name: str) -> None:
    """The same jobs, claimed in batches of half the size; in whole ones they are accepted above."""
    allowed = baseline.pieces_for(server_name, baseline.load())
    [piece] = [one for one in PIECES if one.on_store is not None and one.name.startswith("claim")]
    smaller = Piece(piece.name, piece.units, piece.prepare, claiming(BATCH // 2))
    said = judge(smaller, allowed, make_postgres, looks=1)
    assert "transactions rose from 0.005 to 0.01 each (+100%)" in said
    assert "statements rose" in said
    assert "round_trips rose" in said
    # How to accept it, and what it is made of.
    assert baseline.ACCEPT in said
    assert "claim_batch 20" in said
    assert "event_pkey" in said


def test_the_server_counted_the_same_transactions(make_postgres: Callable[[], str]) -> None:
    """What is counted as it leaves is all there is: the server's own count differs by openings and our readings."""
    [piece] = [one for one in PIECES if one.name == "enqueue, one by one"]
    cost = piece.measure(make_postgres())
    assert cost.server is not None
    # A notification follows a commit in its round trip, or has a short transaction of its own; there are few.
    told = cost.talk.statements["notify"]
    assert piece.units <= cost.talk.transactions <= piece.units + told
    assert told >= 1
    assert piece.units <= cost.server.commits <= piece.units + told + 20


FIGURES = {"statements": 10.0, "buffers": 20.0, "wal_bytes": 1000.0}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_eleven_in_a_hundred_more_is_refused_and_nine_is_accepted(name: str) -> None:
    assert baseline.complaints("claim", FIGURES, FIGURES) == []
    assert baseline.complaints("claim", {**FIGURES, name: FIGURES[name] * 1.09}, FIGURES) == []
    assert baseline.complaints("claim", {**FIGURES, name: FIGURES[name] * 0.5}, FIGURES) == []
    [said] = baseline.complaints("claim", {**FIGURES, name: FIGURES[name] * 1.11}, FIGURES)
    assert said == f"claim: {name} rose from {FIGURES[name]:g} to {FIGURES[name] * 1.11:g} each (+11%)"


def test_what_was_free_may_not_begin_to_cost() -> None:
    assert baseline.complaints("claim", {"statements": 0.0}, {"statements": 0.0}) == []
    [said] = baseline.complaints("claim", {"statements": 0.1}, {"statements": 0.0})
    assert said.endswith("rose from 0 to 0.1 each (from nothing)")


def test_a_piece_or_a_figure_without_a_baseline_is_refused() -> None:
    assert len(baseline.complaints("new", FIGURES, {})) == 1
    [said] = baseline.complaints("claim", FIGURES, {name: FIGURES[name] for name in ("statements", "buffers")})
    assert "wal_bytes" in said


def test_a_release_that_was_never_measured_is_held_to_the_nearest() -> None:
    known = {f"postgresql {one}": {"claim": {"statements": float(one)}} for one in (15, 18)} | {"sqlite": {}}
    for release, held_to in ((14, 15), (15, 15), (16, 15), (17, 18), (18, 18), (21, 18)):
        assert baseline.pieces_for(f"postgresql {release}", known) == {"claim": {"statements": float(held_to)}}
    with pytest.raises(AssertionError, match="no figures of postgresql"):
        baseline.pieces_for("postgresql 15", {"sqlite": {}})


def test_every_committed_figure_belongs_to_work_that_is_measured() -> None:
    names = {piece.name for piece in PIECES}
    for database, pieces in baseline.load().items():
        assert names <= pieces.keys(), f"{database} lacks pieces; make them with: {baseline.ACCEPT}"
        assert len(pieces) == len(names) + 2  # and the idle worker, and the idle relay
