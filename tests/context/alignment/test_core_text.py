"""Spans of one message are found in another one: respelled, changed around them, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.alignment.core_text import CoreText, TextMap
from acmserve.context.transcript.message import text_at
from tests.support.context.conversation import user


def carried(old: Any, new: Any, start: int, end: int, part: int | None = None) -> list[tuple[int | None, str]]:
    spans = TextMap(user(old), user(new)).carry((part, start, end))
    return [(at, text_at(user(new), at)[first:last]) for at, first, last in spans]


LINES = "first line here\nsecond line here\nthird line here\n"


@pytest.mark.parametrize(
    ("new", "found"),
    [
        (LINES, [(None, "second line here\n")]),
        (LINES.strip(), [(None, "second line here\n")]),
        ([{"text": LINES}], [(0, "second line here\n")]),
        (["first line here", "second line here", "third line here"], [(1, "second line here")]),
        (["first line here\nsecond", "line here\nthird line here"], [(0, "second"), (1, "line here\n")]),
        (f"A reminder in front.\n{LINES}", [(None, "second line here\n")]),
        (f"{LINES}A reminder behind.", [(None, "second line here\n")]),
        ("other words\nsecond line here\nand others", [(None, "second line here\n")]),
        ("first line here\nthird line here\n", []),
        ("", []),
    ],
)
def test_a_line_is_found_where_it_stands_now(new: Any, found: list[tuple[int | None, str]]) -> None:
    start = LINES.index("second")
    assert carried(LINES, new, start, start + len("second line here\n")) == found


def test_of_several_places_the_one_with_the_same_surroundings_counts() -> None:
    old = "alpha block\nthe same words\nbeta block\nthe same words\nend"
    new = "X\nalpha block\nthe same words\nnew between\nbeta block\nthe same words\nend Y"
    second = old.rindex("the same")
    ((part, start, end),) = TextMap(user(old), user(new)).carry((None, second, second + 14))
    assert (part, start, end) == (None, new.rindex("the same"), new.rindex("the same") + 14)


def test_a_short_text_is_not_looked_for_between() -> None:
    assert carried("a1 a2 a3", "b1 a2 b3", 3, 5) == []


WORDS = st.lists(st.sampled_from(["one", "two", "three", "four", "\n", " ", "\n\n"]), min_size=1, max_size=30)


@given(WORDS, st.data())
def test_in_other_words_every_span_keeps_its_characters(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    new = [{"type": "text", "text": part} for part in parts]
    found = "".join(said for _, said in carried(text, new, start, end))
    assert "".join(found.split()) == "".join(text[start:end].split())


@given(st.text(max_size=40))
def test_characters_and_places_belong_together(text: str) -> None:
    found = CoreText(user(text))
    spans = found.spans(0, len(found.text))
    assert "".join("".join(text[start:end].split()) for _, start, end in spans) == found.text
