"""Spans of one message are found in another one: respelled, changed around them, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.alignment import core_text
from acmserve.context.alignment.core_text import CoreText, SearchRoom, TextMap
from acmserve.context.transcript.call_arguments import ArgumentPart
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


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments of each call of a function."""
    calls: list[Any] = []
    function = getattr(core_text, name)

    def call(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    monkeypatch.setattr(core_text, name, call)
    return calls


def test_the_same_text_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, judged = counted(monkeypatch, "_positions"), counted(monkeypatch, "_num_fit")
    old = "the same words\n" * 200
    text_map = TextMap(user(old), user(f"X{old}Y"))
    for _ in range(20):
        for start in range(0, 50 * 15, 15):
            assert text_map.carry((None, start, start + 14)) == [(None, start + 1, start + 15)]
    assert len(searched) == 1
    assert len(judged) == 50 * 200


def test_what_is_looked_through_is_bounded_and_nothing_is_found_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, judged = counted(monkeypatch, "_positions"), counted(monkeypatch, "_num_fit")
    old = "".join(f"line {number % 400} is here\n" for number in range(800))
    room = SearchRoom(100_000)
    maps = [TextMap(user(old), user(f"{front}{old}Y"), room) for front in ("X", "XX")]
    found = {
        (number, start): maps[number].carry((None, start, start + 30))
        for start in range(0, 9_000, 30)
        for number in range(2)
    }
    for (number, start), spans in found.items():
        assert spans in ([], [(None, start + number + 1, start + number + 31)])
    assert 0 < sum(map(bool, found.values())) < 40
    assert len(searched) < 40
    assert len(judged) < 200
    assert maps[0].carry((None, 0, 5)) == []
    assert room.is_spent


def test_arguments_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch, "argument_texts")
    function = {"name": "write", "arguments": {"a": "the same", "b": "other", "c": "the same"}}
    message = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    changed = {"name": "write", "arguments": {"a": "the same", "d": "other", "e": "the same"}}
    text_map = TextMap(message, message | {"tool_calls": [{"type": "function", "function": changed}]})
    for _ in range(9):
        found = [text_map.carry((ArgumentPart(0, (name,)), 0, 3)) for name in "abcf"]
        assert found == [[(ArgumentPart(0, ("a",)), 0, 3)], [(ArgumentPart(0, ("d",)), 0, 3)], [], []]
    assert len(read) == 2


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
