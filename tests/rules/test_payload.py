"""What may be stored as JSON: accepted values come back as they were, the others are refused with code and path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.rules.payload import (
    PAYLOAD_BYTES_MAX,
    check_json,
    check_payload,
    clean_text,
    decode,
    encode,
    parse,
)
from tenure.rules.survey import DEPTH_MAX
from tests.rules.corpus import ACCEPTED, MENDED, REFUSED, REFUSED_TEXTS, nested, nested_objects, same
from tests.rules.values import json_values


def refusal(function: Any, *args: Any, **kwargs: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        function(*args, **kwargs)
    return caught.value


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_value_comes_back_as_it_was(name: str) -> None:
    value = ACCEPTED[name]()
    check_json(value)
    text = encode(value)
    assert same(decode(text), value)
    assert same(decode(text.encode()), value)
    assert same(parse(text), value)
    assert encode(decode(text)) == text


@pytest.mark.parametrize("name", MENDED)
def test_a_character_given_as_two_surrogates_is_the_character(name: str) -> None:
    split, whole = MENDED[name]()
    check_json(split)
    assert encode(split) == encode(whole)
    assert same(decode(encode(split)), whole)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_value_is_named_by_code_and_path(name: str) -> None:
    make, code, path = REFUSED[name]
    value = make()
    for function in (check_json, encode):
        error = refusal(function, value)
        assert error.code == code
        assert str(error).startswith(path)
        assert len(str(error)) < 260


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_value_is_refused_inside_a_payload(name: str) -> None:
    make, code, path = REFUSED[name]
    error = refusal(check_payload, {"good": [1, "a"], "bad": make()})
    if code in {"PAYLOAD_TOO_LARGE", "TOO_DEEP"}:
        assert error.code == code  # the payload around it counts as well
    else:
        wanted = (path.replace("$", "$.bad", 1), "TOO_DEEP" if name == "nan_in_the_deep" else code)
        assert (str(error).startswith(wanted[0]), error.code) == (True, wanted[1])
    assert check_payload({"good": [1, "a"]}) == '{"good":[1,"a"]}'


@pytest.mark.parametrize("payload", [None, [], "a", 1, True, (("a", 1),), [("a", 1)]])
def test_a_payload_is_an_object(payload: Any) -> None:
    assert refusal(check_payload, payload).code == "PAYLOAD_INVALID"
    assert check_payload({}) == "{}"


def test_a_path_starts_with_the_given_root() -> None:
    assert str(refusal(check_json, {"a": [b""]}, root="policy")).startswith("policy.a[0] ")


def test_the_text_of_an_error_holds_no_value() -> None:
    secret = "s3cret-value"
    for value in (
        {"a": secret + "\0"},
        {"a": secret + "\ud800"},
        {"a": secret.encode()},
        {"b": [secret, float("nan")]},
    ):
        assert "s3cret" not in str(refusal(check_json, value))
    for text in (f'{{"a": "{secret}", }}', f'"{secret}', f'{{"a": {secret}}}'):
        assert "s3cret" not in str(refusal(parse, text))
        assert "s3cret" not in str(refusal(decode, text))


@pytest.mark.parametrize("make", [nested, nested_objects])
def test_the_depth_is_counted_from_the_outermost_container(make: Any) -> None:
    check_json(make(DEPTH_MAX))
    assert refusal(check_json, make(DEPTH_MAX + 1)).code == "TOO_DEEP"
    check_json(make(3), max_depth=3)
    assert refusal(check_json, make(4), max_depth=3).code == "TOO_DEEP"
    check_json(1, max_depth=0)
    assert refusal(check_json, [], max_depth=0).code == "TOO_DEEP"


def test_the_size_is_that_of_the_text_in_utf8() -> None:
    assert len(encode({"t": "x" * (PAYLOAD_BYTES_MAX - 8)})) == PAYLOAD_BYTES_MAX
    assert refusal(encode, {"t": "x" * (PAYLOAD_BYTES_MAX - 7)}).code == "PAYLOAD_TOO_LARGE"
    assert len(encode(["\U0001f600" * 10], max_bytes=44).encode()) == 44
    assert refusal(encode, ["\U0001f600" * 10], max_bytes=43).code == "PAYLOAD_TOO_LARGE"
    # Escapes are counted as they are written.
    assert len(encode(["\x01" * 10], max_bytes=64)) == 64
    assert refusal(encode, ["\x01" * 10], max_bytes=63).code == "PAYLOAD_TOO_LARGE"
    assert len(encode({"t": "x" * (2 * PAYLOAD_BYTES_MAX)}, max_bytes=None)) == 2 * PAYLOAD_BYTES_MAX + 8


@pytest.mark.parametrize(
    "value",
    [0, "", "aé", [], {}, [[]], [[0]], [{}], {"": 0}, {"a": [1, ""], "b": {"c": {}}}, [None, True, [0.5, {"x": "y"}]]],
)
def test_the_early_count_of_bytes_is_never_more_than_the_text_has(value: Any) -> None:
    size = len(encode(value).encode())
    check_json(value, max_bytes=size)
    assert encode(value, max_bytes=size)
    assert refusal(encode, value, max_bytes=size - 1).code == "PAYLOAD_TOO_LARGE"


@given(json_values)
def test_the_early_count_of_bytes_never_refuses_what_fits(value: Any) -> None:
    check_json(value, max_bytes=len(encode(value).encode()))


def test_what_is_wrong_and_too_large_is_refused_in_any_case() -> None:
    value = [0] * 600_000 + [float("nan")]
    assert refusal(check_json, value).code == "PAYLOAD_TOO_LARGE"
    assert refusal(check_json, value, max_bytes=None).code == "NON_FINITE_NUMBER"


@pytest.mark.parametrize("name", ["depth_of_a_bomb", "endless", "wide_ring", "million_digits"])
def test_hostile_values_are_refused_quickly_and_in_little_memory(name: str) -> None:
    value = REFUSED[name][0]()
    tracemalloc.start()
    try:
        started = time.process_time()
        refusal(encode, value)
        seconds = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Without the limits the first two would take more time and memory than any machine has.
    assert seconds < 1
    assert peak < 20 << 20


def test_many_split_keys_take_no_quadratic_time() -> None:
    value = {f"\ud83d\ude00{number}": number for number in range(20_000)}
    started = time.process_time()
    check_json(value)
    assert time.process_time() - started < 2


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED_TEXTS)
def test_a_text_from_outside_is_refused_by_code_and_place(name: str) -> None:
    text, code, where = REFUSED_TEXTS[name]
    error = refusal(parse, text)
    assert error.code == code
    assert where in str(error)
    assert parse(b' {"a": [1, 2.5, "\xc3\xa9"]} \n') == {"a": [1, 2.5, "é"]}


@pytest.mark.parametrize("name", [name for name, case in REFUSED_TEXTS.items() if case[1] != "PAYLOAD_TOO_LARGE"])
def test_a_stored_text_is_read_as_strictly(name: str) -> None:
    text, code, _ = REFUSED_TEXTS[name]
    if name == "raw_half_character":
        return_code = refusal(decode, json.dumps(json.loads(str(text)))).code
    elif name == "repeated_key_by_raw_surrogates":
        return_code = refusal(decode, '{"\U0001f600": 1, "\\ud83d\\ude00": 2}').code
    else:
        return_code = refusal(decode, text).code
    assert return_code == code


@pytest.mark.parametrize(
    "text, value",
    [
        ("null", None),
        (" [ ] ", []),
        ("-0", 0),
        ("-0.0", -0.0),
        ("1e2", 100.0),
        ("1E+2", 100.0),
        ("1e-400", 0.0),
        ("9007199254740993", 9007199254740993),
        ("1" * 4000, int("1" * 4000)),
        ("-" + "7" * 4000, -int("7" * 4000)),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\u00e9\\/\\n"', "é/\n"),
        ('{"a": 1, "A": 2, "": 3}', {"a": 1, "A": 2, "": 3}),
        ("[" * 100 + "]" * 100, nested(99, [])),
        ('["[[[[", "{{{{\\"[["]', ["[[[[", '{{{{"[[']),
        ("[" + ",".join(["[]"] * 500) + "]", [[] for _ in range(500)]),
        ('"' + "[" * 5000 + '\\"' + "{" * 5000 + '"', "[" * 5000 + '"' + "{" * 5000),
    ],
)
def test_a_good_text_is_read(text: str, value: Any) -> None:
    assert same(parse(text), value)
    assert same(parse(text.encode()), value)
    assert same(decode(text), value)


def test_split_characters_in_a_text_from_outside_are_mended() -> None:
    assert parse('["\ud83d\ude00"]') == ["\U0001f600"]


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 150_000, '["' + '\\"' * 250_000, '"' + "\\" * 500_000])
def test_hostile_texts_are_refused_quickly_and_in_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        started = time.process_time()
        refusal(parse, text)
        seconds = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 1
    assert peak < 20 << 20


def test_a_lowered_limit_of_the_interpreter_breaks_no_permitted_integer() -> None:
    program = """
import sys
from tenure.errors import Invalid
from tenure.rules.digest import canonical
from tenure.rules.payload import decode, encode, parse
assert sys.get_int_max_str_digits() == 640
number = 10**3999 + 12345
digits = "1" + "0" * 3994 + "12345"
for sign, value in (("", number), ("-", -number)):
    assert encode({"n": value, "x": 0.5}) == '{"n":' + sign + digits + ',"x":0.5}'
    assert decode('{"n":' + sign + digits + "}") == parse('{"n":' + sign + digits + "}") == {"n": value}
    assert canonical([value, 1.0]).decode() == "[" + sign + digits + ",1]"
    assert canonical([value, 0.5]).decode() == "[" + sign + digits + ",0.5]"
for read in (decode, parse):
    try:
        read("1" * 4001)
    except Invalid as error:
        print(error.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONINTMAXSTRDIGITS": "640"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["NUMBER_TOO_LONG"] * 2, "")


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    text = encode(value)
    assert same(decode(text), value)
    assert same(parse(text), value)
    assert same(json.loads(text), value)


@given(st.text() | st.text(alphabet='[]{}",:\\u0123456789 eE+-.truefalsn'))
def test_reading_any_text_gives_a_storable_value_or_a_typed_refusal(text: str) -> None:
    for read in (parse, decode):
        try:
            value = read(text)
        except Invalid:
            continue
        assert same(decode(encode(value)), value)
        # Control: what we read, the standard library reads alike.
        assert json.loads(text) == value


@given(st.binary())
def test_reading_any_bytes_gives_a_value_or_a_typed_refusal(data: bytes) -> None:
    for read in (parse, decode):
        try:
            value = read(data)
        except Invalid:
            continue
        assert json.loads(data.decode()) == value


# --- error texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "é 😀", "x" * 8192, "😀" * 2048, "line\nline\t\x1b[0m"])
def test_a_storable_text_is_left_alone(text: str) -> None:
    assert clean_text(text) == (text, False)


@pytest.mark.parametrize(
    "text, cleaned",
    [
        ("a\0b", "a\ufffdb"),
        ("\0", "\ufffd"),
        ("a\ud83d", "a\ufffd"),
        ("\ud83db", "\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("é\ud83d\ude00\ud83d!", "é😀\ufffd!"),
    ],
)
def test_what_no_store_takes_is_replaced(text: str, cleaned: str) -> None:
    assert clean_text(text) == (cleaned, True)


def test_a_long_text_is_cut_with_a_mark() -> None:
    cleaned, changed = clean_text("y\0" + "x" * 5_000_000)
    assert changed
    assert len(cleaned.encode()) == 8192
    assert cleaned.startswith("y\ufffdxxx")
    assert cleaned.endswith(" [cut from 5000002 characters]")
    assert clean_text("x" * 8193)[0].endswith("x [cut from 8193 characters]")


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200), st.integers(0, 200))
def test_a_cleaned_text_is_storable_within_its_limit(text: str, limit: int) -> None:
    cleaned, changed = clean_text(text, limit)
    assert len(cleaned.encode()) <= limit
    assert "\0" not in cleaned
    assert encode(cleaned)
    assert changed == (cleaned != text)
    # Cleaning again changes nothing more.
    assert clean_text(cleaned, limit) == (cleaned, False)
