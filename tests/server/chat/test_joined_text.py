"""Texts of several steps as one: the same however they are cut into deltas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.server.chat.joined_text import JoinedText

STEPS = st.lists(st.lists(st.text(alphabet="ab \n", max_size=4), max_size=6), min_size=1, max_size=4)


def join(steps: list[list[str]]) -> tuple[str, str]:
    """All that was returned, and `text`."""
    joined = JoinedText()
    shown = ""
    for index, deltas in enumerate(steps):
        shown += "".join(joined.add(delta) for delta in deltas)
        shown += joined.end_step(last=index == len(steps) - 1)
    return shown, joined.text


def test_parts_are_joined_by_one_blank_line() -> None:
    assert join([["Let me", " look.\n"], ["\n"], ["\n\nIt is ", "Paris."]])[0] == "Let me look.\n\nIt is Paris."


@given(st.lists(st.text(alphabet="ab \n", max_size=4), max_size=8))
def test_an_answer_of_one_step_is_unchanged(deltas: list[str]) -> None:
    assert join([deltas])[0] == "".join(deltas)


@given(STEPS)
def test_a_stream_says_what_the_whole_answer_says(steps: list[list[str]]) -> None:
    shown, text = join(steps)
    assert shown == text == join([["".join(deltas)] for deltas in steps])[0]
