"""Canonical bytes and digests: one value, one digest, in every process; different values, different digests."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules import digest as module
from tenure.rules.digest import canonical, digest, operation_digest, payload_digest, request_digest, same
from tenure.rules.payload import decode, encode, parse, write
from tenure.rules.survey import DEPTH_MAX, ODD_FLOAT, survey
from tests.rules.corpus import ACCEPTED, MENDED, REFUSED, nested
from tests.rules.oracle import number, oracle
from tests.rules.values import floats, json_values, plain_values, safe_integers, texts

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("digests.json").read_text(encoding="utf-8"))
JOB = UUID("0197f3a2-7c11-7d4e-8b5a-1f2e3d4c5b6a")


def named(part: str) -> Any:
    return pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in GOLDEN[part]])


def sha(text: str) -> str:
    return "v1:" + hashlib.sha256(text.encode()).hexdigest()


# --- the golden file: a change here is a new version of the digest ----------------------------------------------------


def test_there_are_enough_golden_vectors() -> None:
    assert len(GOLDEN["values"]) >= 50
    assert len(GOLDEN["payloads"]) >= 5
    assert len(GOLDEN["operations"]) >= 4


@named("values")
def test_golden_values(vector: dict[str, str]) -> None:
    value = parse(vector["json"])
    assert canonical(value).decode() == vector["canonical"]
    assert digest(value) == request_digest(value) == vector["digest"] == sha(vector["canonical"])
    assert digest(decode(encode(value))) == vector["digest"]


@named("payloads")
def test_golden_payload_digests(vector: dict[str, str]) -> None:
    assert payload_digest(vector["kind"], parse(vector["json"])) == vector["digest"] == sha(vector["hashed"])
    # What is hashed is itself the canonical text of one object.
    assert canonical(json.loads(vector["hashed"])).decode() == vector["hashed"]


@named("operations")
def test_golden_operation_digests(vector: dict[str, Any]) -> None:
    made = operation_digest(
        tenant=vector["tenant"],
        job_id=UUID(vector["job"]),
        kind=vector["kind"],
        kind_version=vector["kind_version"],
        epoch=vector["epoch"],
        payload=parse(vector["json"]),
    )
    assert made == vector["digest"] == sha(vector["hashed"])
    assert canonical(json.loads(vector["hashed"])).decode() == vector["hashed"]


# Bit patterns of doubles and their texts, from the table of samples in appendix B of RFC 8785.
@pytest.mark.parametrize(
    "bits, text",
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_floats_of_the_standard(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text
    assert number(value) == text  # and the oracle is held to the standard as well


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_floats_that_the_standard_refuses(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(Invalid, match=r"^\$ is NaN or infinite") as caught:
        canonical(value)
    assert caught.value.code == "NON_FINITE_NUMBER"


# --- one value, one digest --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_corpus_keeps_its_canonical_bytes(name: str) -> None:
    value = ACCEPTED[name]()
    again = decode(encode(value))
    assert canonical(value) == canonical(again) == oracle(value).encode()
    assert digest(value) == digest(again)
    # Control: canonical text is JSON and means the same value (floats of whole value come back as integers).
    assert canonical(parse(canonical(value).decode())) == canonical(value)


@pytest.mark.parametrize("name", MENDED)
def test_a_split_character_has_the_digest_of_the_character(name: str) -> None:
    split, whole = MENDED[name]()
    assert canonical(split) == canonical(whole) == oracle(whole).encode()


@pytest.mark.parametrize("name", [name for name, case in REFUSED.items() if not name.startswith("too_")])
def test_what_cannot_be_stored_has_no_digest(name: str) -> None:
    make, code, path = REFUSED[name]
    for function in (canonical, digest, request_digest):
        with pytest.raises(Invalid) as caught:
            function(make())
        assert caught.value.code == code
        assert str(caught.value).startswith(path)


def test_a_digest_has_no_limit_of_the_storage_but_an_end() -> None:
    assert digest("x" * (2 << 20)) == sha('"' + "x" * (2 << 20) + '"')
    with pytest.raises(Invalid) as caught:
        digest("x" * (17 << 20))
    assert caught.value.code == "PAYLOAD_TOO_LARGE"


@given(json_values)
def test_canonical_bytes_equal_those_of_the_oracle(value: Any) -> None:
    assert canonical(value) == oracle(value).encode()


@given(plain_values)
def test_without_big_integers_every_way_writes_what_the_library_writes(value: Any) -> None:
    wanted = rfc8785.dumps(value)
    assert canonical(value) == wanted
    assert write(value, members=module._members, number=module._number).encode() == wanted


# Floats that the standard library writes like RFC 8785, and keys that sort alike: what is meant for the fast way.
fast_values = st.recursive(
    st.none() | st.booleans() | safe_integers | texts | st.floats(0.0001, 1e15).filter(lambda x: not x.is_integer()),
    lambda children: (
        st.lists(children)
        | st.dictionaries(
            st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\0")), children
        )
    ),
)


@given(fast_values)
def test_the_fast_way_writes_what_the_library_writes(value: Any) -> None:
    assert survey(value, max_bytes=None) & module._NOT_FOR_THE_FAST_WAY == 0
    assert module._write_sorted(value).encode() == rfc8785.dumps(value) == canonical(value)


@given(floats)
def test_a_float_goes_the_fast_way_only_where_both_write_it_alike(value: float) -> None:
    if not survey(value, max_bytes=None) & ODD_FLOAT:
        assert repr(value) == number(value)
    assert canonical(value).decode() == number(value)


def test_many_random_floats_equal_those_of_the_oracle() -> None:
    draw = random.Random(1)
    counted = 0
    for _ in range(20_000):
        (value,) = struct.unpack("<d", draw.randbytes(8))
        if value - value == 0:
            counted += 1
            assert canonical(value).decode() == number(value)
    assert counted > 19_000


@settings(max_examples=30)  # many members of many shapes: each example is large
@given(st.dictionaries(texts, json_values, min_size=2, max_size=8), st.integers(0, 2**32))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], seed: int) -> None:
    names = list(value)
    random.Random(seed).shuffle(names)
    assert digest({name: value[name] for name in names}) == digest(value)


@given(safe_integers)
def test_a_whole_float_is_the_integer(value: int) -> None:
    assert digest(float(value)) == digest(value)


@given(st.integers(2**53, 10**30) | st.integers(-(10**30), -(2**53)))
def test_integers_beyond_the_safe_ones_keep_every_digit(value: int) -> None:
    assert canonical(value).decode() == str(value)
    assert digest(value) != digest(value + 1)


def test_from_1e21_on_a_float_is_not_the_integer_written_out() -> None:
    assert canonical(1e20) == canonical(10**20) == b"100000000000000000000"
    assert (canonical(1e21), canonical(10**21)) == (b"1e+21", b"1000000000000000000000")
    # A float is the decimal number that its shortest text shows, not the binary one behind it.
    assert canonical(2.0**68) == b"295147905179352830000"
    assert canonical(2**68) == b"295147905179352825856"


DIFFERENT = [
    ["ab", "c"],
    ["a", "bc"],
    ["abc"],
    ["a", "b", "c"],
    "abc",
    {"ab": "c"},
    {"a": "bc"},
    [["a"], "bc"],
    1,
    "1",
    True,
    [1],
    {"1": 1},
    0,
    False,
    None,
    "null",
    "",
    [],
    {},
    [[]],
    [{}],
    [None],
    {"": None},
    {"a": 1},
    {"a": 1, "b": 2},
    {"a": None},
    {"a": {}},
    "\u00e9",
    "e\u0301",
    "\u212b",
    "\u00c5",
    "A",
    "a",
    "a ",
    9007199254740992,
    9007199254740993,
    0.1,
    0.1 + 0.2,
    0.3,
    5e-324,
    {"a": [1, 2]},
    {"a": [2, 1]},
    {"a": [1], "b": [2]},
]


def test_different_values_have_different_digests() -> None:
    for left, right in itertools.combinations(DIFFERENT, 2):
        assert digest(left) != digest(right), (left, right)
        assert payload_digest("k", {"v": left}) != payload_digest("k", {"v": right}), (left, right)
    # Control: these are the same by the rule.
    for alike in ([1, 1.0, parse("1e0"), parse("10e-1")], [0, 0.0, -0.0], [100, 1e2], [["a"], ("a",)]):
        assert len({digest(value) for value in alike}) == 1


@given(json_values, json_values)
def test_equal_digests_mean_equal_canonical_text(left: Any, right: Any) -> None:
    assert (digest(left) == digest(right)) == (oracle(left) == oracle(right))


def test_every_process_gives_the_same_digest() -> None:
    program = """
import json, sys
from uuid import UUID
from tenure.rules.digest import digest, operation_digest, payload_digest
from tenure.rules.payload import parse
golden = json.load(open(sys.argv[1], encoding="utf-8"))
made = [digest(parse(v["json"])) for v in golden["values"]]
made += [payload_digest(v["kind"], parse(v["json"])) for v in golden["payloads"]]
made += [operation_digest(tenant=v["tenant"], job_id=UUID(v["job"]), kind=v["kind"], kind_version=v["kind_version"],
         epoch=v["epoch"], payload=parse(v["json"])) for v in golden["operations"]]
print(json.dumps([hash("a"), made]))
"""
    wanted = [vector["digest"] for part in ("values", "payloads", "operations") for vector in GOLDEN[part]]
    hashes = set()
    for seed in ("0", "1", "100", "4294967295"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).with_name("golden") / "digests.json")],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Kathmandu"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        text_hash, made = json.loads(done.stdout)
        hashes.add(text_hash)
        assert made == wanted
    assert len(hashes) == 4  # the seeds did change something


# --- what each digest binds -------------------------------------------------------------------------------------------


def test_the_payload_digest_binds_kind_and_payload_and_no_envelope() -> None:
    payload = {"amount": 10, "to": "a@b.example"}
    made = payload_digest("charge", payload)
    assert made == payload_digest("charge", {"to": "a@b.example", "amount": 10.0})
    sealed = {"execution": {"trace": "t-1"}, **payload, "governance": {"issued_at": "2026-01-01T00:00:00.000000Z"}}
    assert made == payload_digest("charge", sealed)
    for kind, other in [
        ("refund", payload),
        ("charge", {**payload, "amount": 20}),
        ("charge", {**payload, "amount": "10"}),
        ("charge", {**payload, "more": None}),
        ("charge", {"amount": 10}),
        ("charge", {"payload": payload}),
        ("charge", {**payload, "data": {"execution": {"trace": "t-1"}}}),
        ("charge", {**payload, "Execution": {"trace": "t-1"}}),
    ]:
        assert payload_digest(kind, other) != made
    assert sealed.keys() == {"execution", "governance", "amount", "to"}  # the argument is left as it is


def test_the_operation_digest_binds_each_of_its_fields() -> None:
    fields: dict[str, Any] = {
        "tenant": "studio",
        "job_id": JOB,
        "kind": "charge",
        "kind_version": 1,
        "epoch": 1,
        "payload": {"amount": 10},
    }
    made = operation_digest(**fields)
    assert made == operation_digest(**{**fields, "payload": {"amount": 10.0}})
    changes: dict[str, list[Any]] = {
        "tenant": ["studio2", "Studio", "studio "],
        "job_id": [UUID(int=JOB.int + 1)],
        "kind": ["charges"],
        "kind_version": [2],
        "epoch": [2],
        "payload": [{"amount": 11}, {}, {"amount": 10, "execution": {"trace": "t-1"}}],
    }
    assert changes.keys() == fields.keys()
    others = [operation_digest(**{**fields, name: value}) for name, values in changes.items() for value in values]
    assert len({made, *others}) == len(others) + 1


def test_neighbouring_fields_do_not_run_into_each_other() -> None:
    def made(tenant: str, kind: str, version: int, epoch: int) -> str:
        return operation_digest(tenant=tenant, job_id=JOB, kind=kind, kind_version=version, epoch=epoch, payload={})

    assert len({made("ab", "c", 1, 11), made("a", "bc", 1, 11), made("ab", "c", 11, 1), made("b", "ca", 1, 11)}) == 4
    crafted = 'c","kind_version":2,"payload":{},"tenant":"ab'
    assert made("ab", crafted, 1, 1) != made("ab", "c", 2, 1)
    assert payload_digest('k","payload":{"a":1}', {}) != payload_digest("k", {"a": 1})


def test_a_payload_may_be_as_deep_in_a_digest_as_in_the_store() -> None:
    payload = {"v": nested(DEPTH_MAX - 1)}
    assert payload_digest("k", payload).startswith("v1:")
    assert operation_digest(tenant="t", job_id=JOB, kind="k", kind_version=1, epoch=1, payload=payload).startswith(
        "v1:"
    )
    deeper = {"v": nested(DEPTH_MAX)}
    with pytest.raises(Invalid, match=r"^\$\.v\[0\]") as caught:
        payload_digest("k", deeper)
    assert caught.value.code == "TOO_DEEP"


def test_paths_in_a_digest_are_those_of_the_payload() -> None:
    with pytest.raises(Invalid, match=r"^\$\.at is of type bytes"):
        payload_digest("k", {"at": b""})
    with pytest.raises(Invalid, match=r"^kind holds half"):
        payload_digest("k\ud800", {})
    with pytest.raises(Invalid, match=r"^operation\.tenant holds a NUL"):
        operation_digest(tenant="\0", job_id=JOB, kind="k", kind_version=1, epoch=1, payload={})


def test_a_job_id_has_one_spelling() -> None:
    fields: dict[str, Any] = {"tenant": "t", "kind": "k", "kind_version": 1, "epoch": 1, "payload": {}}
    with pytest.raises(Invalid) as caught:
        operation_digest(job_id=str(JOB).upper(), **fields)
    assert caught.value.code == "NOT_AN_ID"
    assert operation_digest(job_id=JOB, **fields) == operation_digest(job_id=UUID(str(JOB).upper()), **fields)


@pytest.mark.parametrize(
    "one,other,alike",
    [
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ({"a": [1]}, {"a": [True]}, False),
        (2**53, 2.0**53, True),
        (2**53 + 1, 2.0**53, False),
        (1, 1.0, True),
        ({"a": 1, "b": [0]}, {"b": [0.0], "a": 1}, True),
        ("e\u0301", "\u00e9", False),
    ],
)
def test_two_values_are_the_same_when_their_canonical_bytes_are(one: Any, other: Any, alike: bool) -> None:
    assert same(one, other) == same(other, one) == alike
    assert same(one, one)
    assert same(other, other)
