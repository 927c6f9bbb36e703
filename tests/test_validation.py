"""Checks return what they were given or name the field. Echoes are short ASCII, whatever was sent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import InvalidRequest
from acmserve.validation import (
    MAX_ECHO_CHARS,
    check_boolean,
    check_object,
    echo,
    echo_json,
    listing,
    nearest,
    short_ascii,
)


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": None, "b": [2]}, MappingProxyType({"b": 1})])
def test_an_object_of_known_keys_is_returned_as_it_is(value: Mapping[str, Any]) -> None:
    assert check_object(value, "acm", known=("a", "b")) is value


@pytest.mark.parametrize("value", [None, [], "a", 1, True, [("a", 1)]])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_object(value, "acm.map", known=("a",))
    assert refused.value.field == "acm.map"
    assert refused.value.message == f"must be an object, not {value!a}"


def test_an_unknown_key_is_named_with_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_object({"a": 1, "c\u00e9": 2}, "acm", known=("a", "b"))
    assert refused.value.field == r"acm.c\xe9"
    assert refused.value.message == "unknown key; acm knows 'a' or 'b'"


@pytest.mark.parametrize("key", ["fidelty", "Fidelity", "fidel_ity", "fideltiy"])
def test_a_misspelt_key_is_told_what_was_meant(key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_object({key: 1}, "acm", known=("budget", "fidelity"))
    assert refused.value.message.endswith("acm knows 'budget' or 'fidelity'. Did you mean 'fidelity'?")


@pytest.mark.parametrize("key", ["", "fid", "fidelity" * 20, "tools"])
def test_nothing_is_guessed_of_a_key_that_is_near_to_none(key: str) -> None:
    assert nearest(key, ("budget", "fidelity")) is None


def test_an_endless_key_is_cut_short() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_object({"k" * 10_000: 1}, "acm", known=())
    assert refused.value.field == "acm." + "k" * 57 + "..."


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_returned(value: bool) -> None:
    assert check_boolean(value, "acm.forget") is value


@pytest.mark.parametrize("value", [None, 0, 1, "true", "", []])
def test_what_is_no_boolean_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_boolean(value, "acm.forget")
    assert (refused.value.field, refused.value.message) == ("acm.forget", f"must be true or false, not {value!a}")


def test_choices_are_listed() -> None:
    assert (listing(()), listing(("a",)), listing(("a", "b", "c"))) == ("", "'a'", "'a' or 'b' or 'c'")


@pytest.mark.parametrize(
    ("value", "shown", "shown_json"),
    [
        ("fold", "'fold'", "'fold'"),
        ("\u00e9", r"'\xe9'", r"'\xe9'"),
        (None, "None", "null"),
        (True, "True", "true"),
        (1.5, "1.5", "1.5"),
        (7, "7", "7"),
        (2**64 - 1, "18446744073709551615", "18446744073709551615"),
        (2**64, "18446744073709551616", "a very large number"),
        ({"a": 1}, "{'a': 1}", "an object"),
        ([1], "[1]", "an array"),
        ((1,), "(1,)", "tuple"),
        ("x" * 60, "'" + "x" * 56 + "...", "'" + "x" * 60 + "'"),
        ("x" * 61, "'" + "x" * 56 + "...", "'" + "x" * 57 + "...'"),
    ],
)
def test_values_are_echoed(value: object, shown: str, shown_json: str) -> None:
    assert (echo(value), echo_json(value)) == (shown, shown_json)


@given(st.text())
def test_short_text_is_kept_and_all_of_it_is_ascii(text: str) -> None:
    short = short_ascii(text)
    assert short.isascii()
    assert len(short) <= MAX_ECHO_CHARS
    if text.isascii() and len(text) <= MAX_ECHO_CHARS:
        assert short == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_echoes_are_short_ascii(value: object) -> None:
    """Each character of a text may become ten of ASCII: backslash, U and eight digits."""
    assert echo(value).isascii()
    assert len(echo(value)) <= MAX_ECHO_CHARS
    assert echo_json(value).isascii()
    assert len(echo_json(value)) <= 10 * MAX_ECHO_CHARS + 2
