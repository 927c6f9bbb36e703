"""Which call a result answers: the rule written down naively, results that come twice, and what the search costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript import outline as module
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Outline, Use, pair_results
from acmserve.errors import IntegrityError

IDS = ("", "a", "b", "c")


def calling(*ids: str) -> Message:
    calls = [{"id": name, "type": "function", "function": {"name": "grep", "arguments": "{}"}} for name in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answering(name: str) -> Message:
    return {"role": "tool", "content": "x", "tool_call_id": name}


def naive_pairs(messages: list[Message]) -> list[Use | None]:
    """By the latest message that calls the id: its first call without a result, else its last. No id is any id."""
    pairs: list[Use | None] = []
    for entry, message in enumerate(messages):
        found: list[Use] = []
        if message["role"] == "tool":
            name, spoken = message["tool_call_id"], [n for n in range(entry) if messages[n]["role"] == "assistant"]
            for n in reversed(spoken if name else spoken[-1:]):
                calls: Any = messages[n].get("tool_calls", ())
                found = [Use(n, i) for i, call in enumerate(calls) if name in ("", call["id"])]
                if found:
                    break
        pairs.append(next((use for use in found if use not in pairs), found[-1] if found else None))
    return pairs


histories = st.lists(
    st.one_of(
        st.lists(st.sampled_from(IDS), max_size=4).map(lambda ids: calling(*ids)),
        st.sampled_from([*IDS, "unknown"]).map(answering),
        st.sampled_from([*IDS, "unknown"]).map(answering),
        st.just({"role": "user", "content": "Go on ."}),
    ),
    max_size=16,
)


@given(histories)
@settings(max_examples=400, deadline=None)
def test_the_pairing_is_the_naive_rule(messages: list[Message]) -> None:
    pairs = naive_pairs(messages)
    assert [use for _, use in pair_results(messages)] == pairs
    outline = Outline(messages)
    outline.check_integrity()
    assert [line.use for line in outline.lines] == pairs
    for use in outline.uses():
        assert outline.results(use) == [entry for entry, answered in enumerate(pairs) if answered == use]


def test_a_second_result_is_one_more_of_the_same_call() -> None:
    messages = [calling("a", "b"), answering("a"), answering("b"), answering("a"), calling("a"), answering("b")]
    outline = Outline(messages)
    assert outline.lines[0].results == [[1, 3], [2, 5]]
    assert outline.lines[4].results == [[]]
    outline.lines[0].results[0].pop()
    with pytest.raises(IntegrityError, match="result 3 answers"):
        outline.check_integrity()


@pytest.mark.parametrize("number", [400, 4000])
def test_results_in_reverse_order_cost_no_more_than_in_order(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Structure, not time: calls are compared a few times each, however many stand beside them."""
    num_compared = 0

    class Counted(Use):
        __hash__ = Use.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal num_compared
            num_compared += 1
            return super().__eq__(other)

    monkeypatch.setattr(module, "Use", Counted)
    ids = [f"call_{n}" for n in range(number)]
    pairs = pair_results([calling(*ids), *map(answering, reversed(ids)), answering("")])
    assert num_compared <= 2 * number
    assert [use for _, use in pairs[1:]] == [*((0, n) for n in reversed(range(number))), (0, number - 1)]
