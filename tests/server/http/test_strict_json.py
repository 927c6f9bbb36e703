"""Strict JSON: two walks that say the same of any value, one of them fast, and refusals that name the place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import InvalidRequest
from acmserve.server.http import strict_json
from acmserve.server.http.strict_json import check_json, is_strict, parse_json
from acmserve.validation import MAX_JSON_DEPTH

TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(["\ud83d", "\ude00", "\ud83d\ude00", "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int, kind: str) -> Any:
    """`depth` containers, one in the other."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def is_refused(value: Any) -> bool:
    try:
        check_json(value)
    except InvalidRequest:
        return True
    return False


@given(VALUES)
def test_both_walks_agree(value: Any) -> None:
    assert is_strict(value) == (not is_refused(value))


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_both_walks_agree_at_the_deepest_level(kind: str) -> None:
    for depth in range(MAX_JSON_DEPTH - 2, MAX_JSON_DEPTH + 3):
        assert is_strict(nested(depth, kind)) == (not is_refused(nested(depth, kind))) == (depth <= MAX_JSON_DEPTH)


def test_halves_of_a_pair_do_not_meet() -> None:
    """In two elements they are two halves, in one text a pair that the parser has joined."""
    assert not is_strict(["\ud83d", "\ude00"])
    assert parse_json(b'["\\ud83d\\ude00"]') == ["\U0001f600"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a": {"b": [1, NaN]}}', "a.b[1]"),
        (b'{"a": 1e999}', "a"),
        (b'[{"text": "\\ud83d"}]', "[0].text"),
        (b"[" * 70 + b"]" * 70, "[0]" * 64),
        (b"[" * 100_000, "body"),
        (b'{"a": }', "body"),
        (b"\xff", "body"),
    ],
)
def test_a_refusal_names_the_place(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_json(body)
    assert refused.value.field.startswith(field[:20])
    assert refused.value.remedy


def test_a_long_body_is_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes ten times as long as the parser: nobody makes the server search a body of 64 MiB."""
    monkeypatch.setattr(strict_json, "MAX_NAMED_BYTES", 100)
    monkeypatch.setattr(strict_json, "check_json", lambda value: pytest.fail("searched"))
    with pytest.raises(InvalidRequest, match="no strict JSON"):
        parse_json(json.dumps(["a" * 100, math.nan]).encode())


@given(st.binary())
def test_any_bytes_give_a_value_that_json_can_say_or_a_refusal(body: bytes) -> None:
    try:
        value = parse_json(body)
    except InvalidRequest:
        return
    assert json.loads(json.dumps(value, allow_nan=False).encode("utf-8")) == value
