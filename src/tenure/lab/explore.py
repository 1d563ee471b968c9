"""The lab's front door: explore one configuration, with the rules as they are or with one of them broken."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from tenure.errors import Invalid
from tenure.lab import invariants, tenancy
from tenure.lab.catalogue import TENANTS, configurations
from tenure.lab.configuration import Configuration, Order
from tenure.lab.report import Report, Step, Trace
from tenure.lab.search import Broken, Progress, Search, Space
from tenure.lab.trace import Teller, edges_of
from tenure.lab.variants import Variant, applied, second_locks, variants

DEFAULT = "keys"

PROMISES: Mapping[str, str] = {
    "I1": "At most one live lease for a job at any time; it is live or may be taken, never both and never neither.",
    **{name: known.promise for name, known in invariants.INVARIANTS.items()},
    "I10": "Nothing of one tenant is given, claimed or sent in the scope of another.",
    "rest": "Where nothing fails any more, the job can come to rest, or a person has been asked.",
}


def explore(
    configuration: str | Configuration | None = None,
    variant: str | Variant | None = None,
    *,
    progress: Progress | None = None,
    limit: int | None = None,
) -> Report:
    """
    Visit every state that a configuration can reach, or the shortest way to a broken promise.

    Explorations of one process take turns, because a variant breaks a rule for the whole process: do not explore in a
    process that serves jobs.

    Args:
        configuration: A name or one of your own; the variant's, or `keys`, when None.
        variant: A broken rule; only the promise that it is said to break is checked then.
        progress: Called now and then with the states done and the states known.
        limit: Stop when more states than this are known; the report is not complete then.
    Raises:
        Invalid: There is no configuration or variant of that name.
    """
    wrong = _variant(variant)
    where = _configuration(configuration or (wrong.configuration if wrong else DEFAULT))
    if where.name == TENANTS:
        return _tenants(wrong)
    names = frozenset({wrong.promise} if wrong and wrong.promise else PROMISES) - {"I10"}
    order = wrong.order if wrong else Order()
    began = perf_counter()
    with applied(wrong):
        search = Search(Space(where, order), names, progress, limit)
        broken = search.run()
        trace = None if broken is None else trace_of(search, broken)
    return Report(
        configuration=where.name,
        variant=None if wrong is None else wrong.name,
        complete=search.complete and broken is None,
        states=len(search.states),
        transitions=search.transitions,
        depth=search.depth,
        rule_calls=search.space.machine.rule_calls,
        invariants=tuple(name for name in PROMISES if name in names),
        counters=search.tally(),
        expected=tuple(sorted(where.sees)),
        violation=trace,
        seconds=perf_counter() - began,
    )


def _tenants(wrong: Variant | None) -> Report:
    """The small world of two tenants."""
    began = perf_counter()
    found = tenancy.visit(tenancy.without_tenant) if wrong else tenancy.visit()
    steps = [Step(move.actor, move.action, move.text) for move in found.path]
    return Report(
        configuration=TENANTS,
        variant=None if wrong is None else wrong.name,
        complete=found.said is None,
        states=found.states,
        transitions=found.transitions,
        depth=found.depth,
        rule_calls=found.transitions,
        invariants=("I10",),
        counters={said: int(action in found.seen) for action, said in tenancy.ACTIONS.items()},
        expected=tuple(sorted(configurations()[TENANTS].sees)),
        violation=None if found.said is None else Trace("I10", PROMISES["I10"], found.said, steps),
        seconds=perf_counter() - began,
    )


def trace_of(search: Search, broken: Broken) -> Trace:
    """The steps to a broken promise."""
    space = search.space
    path = search.path(broken.before)
    teller = Teller(space)
    steps = []
    before = path[0]
    for slot, edge, after in edges_of(space, path, broken):
        steps.append(Step(*teller.tell(before, slot, edge, after)))
        before = after
    return Trace(broken.name, PROMISES[broken.name], broken.said, steps)


def _variant(given: str | Variant | None) -> Variant | None:
    if given is None or isinstance(given, Variant):
        return given
    known = {variant.name: variant for variant in (*variants(), *second_locks())}
    if given not in known:
        raise Invalid(f"there is no variant {given!r}; the lab has: {', '.join(sorted(known))}", code="UNKNOWN_VARIANT")
    return known[given]


def _configuration(given: str | Configuration) -> Configuration:
    if isinstance(given, Configuration):
        return given
    known = configurations()
    if given not in known:
        raise Invalid(
            f"there is no configuration {given!r}; the lab has: {', '.join(sorted(known))}",
            code="UNKNOWN_CONFIGURATION",
        )
    return known[given]
