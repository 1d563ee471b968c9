"""Strategies for JSON values, with the characters and numbers that go wrong drawn more often than chance would."""

from __future__ import annotations

from hypothesis import strategies as st

# No NUL and no surrogates: the first is refused, the second cannot be written.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
odd_characters = st.sampled_from(
    '"\\/\b\f\n\r\t\x01\x1f\x7f\x80é\u0301\u2028\u202e\ud7ff\ue000\ufb33\uffff😀\U0010ffff'
)
texts = st.text(characters | odd_characters, max_size=20)

safe_integers = st.integers(-(2**53) + 1, 2**53 - 1)
big_integers = st.sampled_from([2**53, 2**63, 2**64, 10**21, 10**400, 10**700, 10**3999]).flatmap(
    lambda centre: st.integers(centre - 2, centre + 2) | st.integers(-centre - 2, -centre + 2)
)
odd_floats = st.sampled_from(
    [0.0, -0.0, 1.0, 1e-4, 9.999e-5, 1e-6, 1e-7, 1e15, 1e16, 2.0**53, 1e20, 1e21, 1e22, 5e-324]
)
floats = st.floats(allow_nan=False, allow_infinity=False) | odd_floats | safe_integers.map(float)


def _values(scalars: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        scalars, lambda children: st.lists(children, max_size=6) | st.dictionaries(texts, children, max_size=6)
    )


plain_values = _values(st.none() | st.booleans() | safe_integers | floats | texts)
json_values = _values(st.none() | st.booleans() | safe_integers | big_integers | floats | texts)
