"""The SQL function hashes the same bytes as the library: what one made, the other must recognise."""

from __future__ import annotations

import json
import struct
import sys
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.digest import canonical, operation_digest, payload_digest
from tenure.rules.payload import encode, parse
from tests.contract.conftest import Benches
from tests.contract.function import ask
from tests.rules.corpus import ACCEPTED, MENDED
from tests.rules.values import json_values, texts

GOLDEN = json.loads((Path(__file__).parents[1] / "rules/golden/digests.json").read_text(encoding="utf-8"))
Postgres = psycopg.Connection[Any]

CANONICAL = """
    SELECT tenure.enqueue_canonical(given.text::json, '{.}', false)
    FROM unnest(%s::text[]) WITH ORDINALITY AS given (text, nth) ORDER BY nth
"""


@pytest.fixture
def postgres(benches: Benches) -> Iterator[Postgres]:
    """Give a connection to an empty store on PostgreSQL, set up as `tenure.enqueue` sets itself up."""
    bench = benches.get("postgresql-blocking")
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute("SET extra_float_digits = 1")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection
    bench.reset()


def written(connection: Postgres, documents: list[str]) -> list[str]:
    """Give the canonical form of each text as the database writes it."""
    # Around each a list, because a scalar is written by the list or object that holds it.
    rows = connection.execute(CANONICAL.encode(), [[f"[{text}]" for text in documents]]).fetchall()
    return [row[0][1:-1] for row in rows]


def same_bytes(connection: Postgres, values: list[Any]) -> None:
    ours = [canonical(value).decode() for value in values]
    assert written(connection, [encode(value) for value in values]) == ours
    # Another writer: all but ASCII escaped, and white space between the parts.
    long = [max((len(str(part)) for part in numbers(value)), default=0) > 4000 for value in values]
    spaced = [json.dumps(value, indent=1) for value, is_long in zip(values, long, strict=True) if not is_long]
    assert written(connection, spaced) == [one for one, is_long in zip(ours, long, strict=True) if not is_long]


def numbers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from numbers(child)


def test_golden_values(postgres: Postgres) -> None:
    vectors = GOLDEN["values"]
    found = written(postgres, [vector["json"] for vector in vectors])
    assert [(vector["name"], text) for vector, text in zip(vectors, found, strict=True)] == [
        (vector["name"], vector["canonical"]) for vector in vectors
    ]


def test_golden_payloads_have_their_digest(postgres: Postgres) -> None:
    seen = 0
    for nth, vector in enumerate(GOLDEN["payloads"] + GOLDEN["operations"]):
        payload = parse(vector["json"])
        # Vectors of the digest alone: with envelopes of another hand, and with a kind that no job may have.
        if not {"execution", "governance"}.isdisjoint(payload) or not {":", "#"}.isdisjoint(vector["kind"]):
            continue
        seen += 1
        version, tenant = vector.get("kind_version", 1), vector.get("tenant", "acme")
        given = {"organization": "acme", "tenant": tenant, "project": "golden", "idempotency_key": f"k-{nth}"}
        job_id, _ = ask(postgres, {**given, "kind": vector["kind"], "kind_version": version, "payload": vector["json"]})
        row = postgres.execute("SELECT payload_digest, operation_digest FROM tenure.job WHERE job_id = %s", [job_id])
        assert row.fetchone() == (
            payload_digest(vector["kind"], payload),
            operation_digest(
                tenant=tenant, job_id=job_id, kind=vector["kind"], kind_version=version, epoch=1, payload=payload
            ),
        )
        if "job" not in vector:
            assert payload_digest(vector["kind"], payload) == vector["digest"]
    assert seen >= 5


def test_every_accepted_value_of_the_corpus(postgres: Postgres) -> None:
    values = [make() for name, make in ACCEPTED.items() if "depth_at" not in name and "empty_at" not in name]
    values += [make()[1] for make in MENDED.values()]
    assert written(postgres, [encode(value) for value in values]) == [canonical(value).decode() for value in values]


odd_keys = st.sampled_from(["", "a", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\U0001f600", "\ufb33", "\ud7ff"])
keys = st.lists(odd_keys | texts, min_size=1, max_size=3).map("".join)


@given(values=st.lists(json_values | st.dictionaries(keys, json_values, max_size=6), min_size=1, max_size=12))
@example(values=[1e21, 1e-7, -0.0, 5e-324, 1.7976931348623157e308, 2**53 - 1, 2**53, 2**53 + 1, 10**400, -(10**400)])
@example(values=[1e23, 9.5e-7, 1e20, 123456789012345680.0, 2.0**-44, 1e16, 999999999999999.9, 1e15, 1e-5, 1e-6])
@example(values=[{"\U0001f600": 1, "\ue000": 2, "\uffff": 3, "\ud7ff": 4}, {"é": "e\u0301", "e\u0301": "é"}])
@example(values=[{"execution": {"b": 1, "a": 2}}, {"a": [{}, [], "", {"": {}}]}, 'a"\\/\b\f\n\r\t\x01\x1f\x7f\u2028'])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_generated_values(postgres: Postgres, values: list[Any]) -> None:
    same_bytes(postgres, values)


@given(bits=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_doubles_by_their_bits(postgres: Postgres, bits: list[int]) -> None:
    doubles = [struct.unpack("<d", struct.pack("<Q", one))[0] for one in bits]
    finite = [one for one in doubles if one - one == 0]
    assert written(postgres, [repr(one) for one in finite]) == [canonical(one).decode() for one in finite]


def test_doubles_in_the_middle_of_two_decimals(postgres: Postgres) -> None:
    """Where PostgreSQL writes other digits than all others: powers of ten and of two, short numbers beyond 2^53."""
    doubles = [float(f"{digits}e{power}") for digits in (1, 3, 5, 9, 17) for power in range(-323, 308)]
    doubles += [2.0**power for power in range(-1074, 1024)]
    doubles += [
        float(odd * 5**fives * 2**twos) for odd in (1, 3, 7, 11) for fives in range(24) for twos in range(3, 80, 7)
    ]
    texts = [repr(one) for one in doubles]
    assert written(postgres, texts) == [canonical(one).decode() for one in doubles]
    (stock,) = postgres.execute("SELECT 1e23::float8::text").fetchone() or ("",)
    assert (stock, written(postgres, ["1e23"])) == ("9.999999999999999e+22", ["1e+23"])


@pytest.mark.parametrize(
    "token,text",
    [
        ("1e-400", "0"), ("-1e-400", "0"), ("2.4703282292062327e-324", "0"), ("2.4703282292062329e-324", "5e-324"),
        ("0." + "0" * 400 + "1", "0"), ("1" + "0" * 50 + "e-99999999999999999999", "0"), ("0e999999999999", "0"),
        ("0.0e99999", "0"), ("0." + "0" * 330 + "1e330", "0.1"), ("1" + "0" * 330 + "e-330", "1"),
        ("1E+2", "100"), ("1e02", "100"), ("1.50", "1.5"), ("-0.0", "0"), ("-0", "0"), ("-0e5", "0"),
        ("17976931348623157" + "0" * 292 + ".0", "1.7976931348623157e+308"),
        ("179769313486231580793e288", "1.7976931348623157e+308"),
        ("0.00000000000000000000000000000000000000000000000001", "1e-50"),
    ],
)  # fmt: skip
def test_spellings_of_numbers(postgres: Postgres, token: str, text: str) -> None:
    assert canonical(parse(token)).decode() == text
    assert written(postgres, [token]) == [text]


@pytest.mark.parametrize(
    "token", ["1e309", "-1e309", "1.7976931348623159e308", "9" * 400 + ".0", "1e99999999999", "0.1e400"]
)
def test_numbers_beyond_every_double_are_refused(postgres: Postgres, token: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        written(postgres, [f'{{"v": [1, {token}]}}'])
    assert (caught.value.sqlstate, caught.value.diag.message_detail) == ("TNINV", "NON_FINITE_NUMBER")


def test_ids_are_in_the_order_of_their_making(postgres: Postgres) -> None:
    ids: list[UUID] = []
    for nth in range(50):
        fields = {"organization": "acme", "project": "ids", "idempotency_key": f"k-{nth}", "kind": "k", "payload": "{}"}
        ids.append(ask(postgres, fields)[0])
    assert ids == sorted(ids)
    assert {(one.version, one.variant) for one in ids} == {(7, "specified in RFC 4122")}
    at = datetime.fromtimestamp((ids[-1].int >> 80) / 1000, UTC)
    assert abs((at - datetime.now(UTC)).total_seconds()) < 60


def test_what_can_be_printed_is_the_same_character_for_character(postgres: Postgres) -> None:
    rows = postgres.execute(
        "SELECT n FROM generate_series(0, 1114111) AS n WHERE tenure.enqueue_printable(n)"
    ).fetchall()
    found = {row[0] for row in rows}
    ours = {point for point in range(sys.maxunicode + 1) if chr(point).isprintable()}
    # The list is that of the oldest Python; newer ones know more characters.
    assert found == ours if unicodedata.unidata_version == "14.0.0" else found <= ours
    assert len(found) > 100_000


# --- texts of any writer: refused by both with one code, or the same by both ------------------------------------------

pieces = st.sampled_from(
    ["\\u0000", "\\ud83d", "\\uDE00", "\\ud83d\\ude00", "\\\\", "u0000", "ud83d", "\\/", '\\"', "\\u00e9", "\\uD7FF",
     "\\ue000", "\U0010ffff", "\U0010ffff\U0010fffe", "\U0010ffff\U0010fffe0000", "\U0001f600", "é", "\\n", "a", " "]
)  # fmt: skip
# Of two things that are wrong in one text either may be named.
whole = pieces.filter(lambda piece: piece not in {"\\u0000", "\\ud83d", "\\uDE00"})
escaped = st.lists(pieces, max_size=6).map("".join)
tokens = st.builds(
    lambda sign, whole, rest, power: f"{sign}{whole}{rest}{power}",
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "1", "9", "17", "9007199254740993", "1" + "0" * 330, "9" * 309]),
    st.sampled_from(["", ".0", ".5", ".0000001", "." + "0" * 330 + "1", ".7976931348623157", ".7976931348623159"]),
    st.just("") | st.builds("{}{}".format, st.sampled_from(["e", "E", "e+", "e-"]), st.integers(0, 700)),
)


def judged(connection: Postgres, text: str) -> str:
    """Give the digest of a payload, or the code with which the function refuses it."""
    given = {"organization": "acme", "project": "judged", "idempotency_key": "k", "kind": "k", "payload": text}
    with connection.transaction(force_rollback=True):
        try:
            job_id, _ = ask(connection, given)
        except Invalid as refusal:
            return refusal.code
        row = connection.execute("SELECT payload_digest FROM tenure.job WHERE job_id = %s", [job_id]).fetchone()
        assert row is not None
        return str(row[0])


def expected(text: str) -> str:
    try:
        return payload_digest("k", parse(text))
    except Invalid as refusal:
        return refusal.code


@given(
    text=st.one_of(
        escaped.map('{{"k":["{}"]}}'.format),
        escaped.map('{{"o":{{"{}":1}}}}'.format),
        st.builds('{{"{}":1,"{}":2}}'.format, whole, whole),
        tokens.map('{{"n":{}}}'.format),
    )
)
@example(text='{"k":["\\ud83d\\\\\\ude00"]}')
@example(text='{"k":["\\\\\\\\u0000"]}')
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_text_is_judged_as_the_library_judges_it(postgres: Postgres, text: str) -> None:
    assert judged(postgres, text) == expected(text)
