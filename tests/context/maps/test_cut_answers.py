"""Answers of models that are cut off in their list: what is whole counts, and the rest is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from acmserve.context.maps.answers import read_charted, read_distilled
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.update import Learned, learn
from acmserve.errors import InvalidRequest
from tests.support.context.maps import RULES, add, charted, distilled
from tests.support.operations import growth


def candidate(value: str) -> dict[str, str]:
    return {"section": "context_roadmap", "value": value, "transferability": "all", "rationale": "layout"}


@pytest.mark.parametrize("indent", [None, 1])
def test_an_answer_that_is_cut_anywhere_keeps_the_entries_in_front_of_the_cut(indent: int | None) -> None:
    wanted = [candidate('says "cache_candidates": [{}]'), candidate("two } ] [ {"), candidate("three")]
    text = json.dumps(json.loads(distilled('"cache_candidates": [', {}, wanted)), indent=indent)
    seen = set()
    for at in range(len(text)):
        try:
            found = read_distilled(text[:at], ContextMap())
        except InvalidRequest:
            continue
        assert list(found.candidates) == wanted[: len(found.candidates)]
        assert found.ignored == ("what was cut off",)
        seen.add(len(found.candidates))
    assert seen == {1, 2, 3}
    assert read_distilled(text, ContextMap()).ignored == ()


def test_edits_that_were_cut_off_are_told_in_the_history() -> None:
    made = ContextMap()
    whole = charted(add("context_roadmap", "first"), add("context_roadmap", "second"), reasoning="Layout.")
    cut = read_charted(whole[: whole.index("second")])
    after = learn(made, Learned(read_distilled(distilled(), made), cut, made), RULES, 0.0)
    assert [item.text for item in after.items] == ["first"]
    assert after.history[-1].ignored == ("what was cut off",)


@pytest.mark.parametrize("filling", [" ", ",", '{"a": ', "{}", '"operations": [', "\\n"])
def test_a_cut_answer_is_read_in_linear_work(filling: str) -> None:
    """A whole entry stands in front: without a closing brace nothing would be read at all."""

    def text(num_chars: int) -> str:
        return '{"reasoning": "", "operations": [{"type": "ADD"}, ' + filling * (num_chars // len(filling))

    def work(num_chars: int) -> Callable[[], object]:
        answer = text(num_chars)
        return lambda: read_charted(answer)

    start = time.thread_time()
    found = read_charted(text(60_000))
    assert time.thread_time() - start < 1.0
    assert (found.operations[0], found.ignored) == ({"type": "ADD"}, ("what was cut off",))
    assert growth(work, 15_000) < 5.5
