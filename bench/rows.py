"""What is compared with what, and how much better we want to be."""

from __future__ import annotations

from dataclasses import dataclass, field

# Ours, the bare driver, and the bare driver with our statements: what needs no environment of its own.
OURS, RAW, SAME = "ours", "raw", "same"
RATE, P50, P99, EACH = "rate", "p50_ms", "p99_ms", "least_share"


@dataclass(frozen=True, slots=True)
class Side:
    """
    One system doing the work of a row.

    Attributes:
        system: `ours`, `raw`, `same`, or a module of bench.peers.
        at_least: How many times better we want to be; None for what is only shown.
        share: Of the row's jobs, for a system so slow that the whole would take minutes.
    """

    system: str
    work: str
    at_least: float | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """
    One comparison.

    Attributes:
        number: As in P1; several rows may share one.
        measure: Which number is compared.
        limit: What that number of ours must reach by itself: at least, or below where less is better.
        extra: What is shown beside it: a second measure and its limit.
    """

    number: str
    name: str
    title: str
    jobs: int
    ours: Side
    against: tuple[Side, ...]
    database: str = "postgresql"
    processes: int = 1
    measure: str = RATE
    limit: float | None = None
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def less_is_better(self) -> bool:
        """Whether a small number is a good one."""
        return self.measure in {P50, P99}

    @property
    def unit(self) -> str:
        """What the number counts."""
        return {RATE: "jobs/s", P50: "ms", P99: "ms", EACH: "of the jobs"}[self.measure]


def _drain(number: str, name: str, processes: int, *against: Side) -> Row:
    title = f"drain no-op async jobs, {processes} worker process{'es' if processes > 1 else ''}"
    floor = Side(RAW, "cycle")
    return Row(number, name, title, 10_000, Side(OURS, "drain"), (*against, floor), processes=processes)


ROWS: tuple[Row, ...] = (
    _drain("P1", "p1", 1, Side("pgqueuer", "drain", 1.3)),
    _drain("P2", "p2", 2, Side("pgqueuer", "drain", 1.2), Side("pgmq", "drain", 1.2)),
    _drain("P3", "p3-one", 1, Side("awa", "drain", 3)),
    _drain("P3", "p3-two", 2, Side("awa", "drain", 3)),
    Row(
        "P4",
        "p4",
        "enqueue, one job and one commit at a time, one client",
        2_000,
        Side(OURS, "single"),
        (Side(RAW, "single", 0.85),),
    ),
    Row(
        "P5",
        "p5",
        "enqueue in bulk; ours with idempotency keys and digests checked",
        10_000,
        Side(OURS, "bulk"),
        (Side("awa", "bulk", 0.8), Side("pgqueuer", "bulk", 1.2), Side(RAW, "bulk")),
    ),
    Row(
        "P6",
        "p6",
        "pick-up: from the commit of a job to the start of its handler, idle worker, p50",
        100,
        Side(OURS, "pickup"),
        (Side("oban", "pickup", 1), Side("chancy", "pickup", 1), Side("pgqueuer", "pickup", 1)),
        measure=P50,
        extra={P99: 10.0},
    ),
    Row(
        "P7",
        "p7",
        "claim and complete through the procedures, a hundred at a time, no handlers",
        10_000,
        Side(OURS, "cycle"),
        (Side(SAME, "cycle", 0.6), Side(RAW, "cycle")),
    ),
    Row(
        "P10",
        "p10",
        "one recorded effect or step in each job, acting in the same process",
        2_000,
        Side(OURS, "step"),
        (Side("dbos", "step", 10), Side("absurd", "step", 5)),
    ),
    Row(
        "P11",
        "p11-drain",
        "SQLite: drain no-op jobs, one process",
        10_000,
        Side(OURS, "drain"),
        (Side("dbos", "drain", 20, share=0.05), Side("huey", "drain", 2), Side(RAW, "cycle", 0.5)),
        database="sqlite",
    ),
    Row(
        "P11",
        "p11-bulk",
        "SQLite: enqueue in bulk",
        10_000,
        Side(OURS, "bulk"),
        (Side(RAW, "bulk", 0.5),),
        database="sqlite",
    ),
    Row(
        "P11",
        "p11-four",
        "SQLite: four processes on one file, the share of the one that got least",
        10_000,
        Side(OURS, "drain"),
        (Side("huey", "drain"),),
        database="sqlite",
        processes=4,
        measure=EACH,
        limit=0.15,
    ),
)
