"""Answers with an end: the longest JSON that a schema allows fits its tokens, and a cut one keeps what is whole."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from acmserve.context.maps.answer_room import bounded
from acmserve.context.maps.answers import read_at_once, read_charted, read_distilled
from acmserve.context.maps.item import MAX_ITEM_CHARS
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.prompts import MapQuestion, ask_at_once, ask_cartographer, ask_distiller
from acmserve.context.maps.update import Learned, learn
from acmserve.errors import InvalidRequest
from tests.support.context.maps import RULES, add, charted, distilled, map_of

CHARS_PER_TOKEN = 3
READERS: Mapping[str, Any] = {
    "distiller": read_distilled,
    "cartographer": lambda text, _: read_charted(text),
    "update": read_at_once,
}


def questions(made: ContextMap) -> list[MapQuestion]:
    review = read_distilled(distilled("Good."), made)
    return [ask_distiller(made, "[user]"), ask_at_once(made, "[user]", 9), ask_cartographer(made, review, "?", 9)]


def longest(schema: Mapping[str, Any]) -> Any:
    """The longest value of a schema, as a model writes it that never ends a text by itself."""
    if "anyOf" in schema:
        return max(map(longest, schema["anyOf"]), key=lambda value: len(json.dumps(value)))
    if schema["type"] == "object":
        return {name: longest(one) for name, one in schema["properties"].items()}
    if schema["type"] == "array":
        return [longest(schema["items"])] * schema["maxItems"]
    return max(schema["enum"], key=len) if "enum" in schema else "x" * schema["maxLength"]


@pytest.mark.parametrize("num_items", [0, 12])
@pytest.mark.parametrize("max_tokens", [400, 512, 1024, 4096])
def test_the_longest_answer_is_json_that_fits(max_tokens: int, num_items: int) -> None:
    made = map_of(*[("context_roadmap", f"item {number}") for number in range(num_items)])
    for question in questions(made):
        answer = json.dumps(longest(bounded(question.schema, max_tokens)))
        assert len(answer) <= max_tokens * CHARS_PER_TOKEN
        READERS[question.name](answer, made)
        cut = json.dumps(longest(bounded(question.schema, 4 * max_tokens)))
        assert len(cut) > max_tokens * CHARS_PER_TOKEN


def test_a_long_answer_has_all_the_entries_that_were_asked_for() -> None:
    question, _, edits = questions(ContextMap())
    kept = bounded(question.schema, 4096)["properties"]["cache_candidates"]
    assert kept["maxItems"] == question.schema["properties"]["cache_candidates"]["maxItems"]
    assert bounded(question.schema, 512)["properties"]["cache_candidates"]["maxItems"] == 1
    assert "maxLength" not in json.dumps(question.schema)
    added = bounded(edits.schema, 16_384)["properties"]["operations"]["items"]["anyOf"][0]
    assert added["properties"]["content"]["maxLength"] == MAX_ITEM_CHARS


def test_what_an_entry_says_has_the_room_of_an_item() -> None:
    entry = bounded(questions(ContextMap())[0].schema, 1024)["properties"]["cache_candidates"]["items"]["properties"]
    assert entry["value"]["maxLength"] == 4 * entry["rationale"]["maxLength"] >= 320
    assert (
        entry["section"]
        == questions(ContextMap())[0].schema["properties"]["cache_candidates"]["items"]["properties"]["section"]
    )


def test_without_room_every_text_keeps_a_few_words() -> None:
    made = map_of(*[("context_roadmap", f"item {number}") for number in range(40)])
    for question in questions(made):
        READERS[question.name](json.dumps(longest(bounded(question.schema, 16))), made)


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
def test_a_cut_answer_is_read_in_bounded_time(filling: str) -> None:
    text = '{"reasoning": "", "operations": [' + filling * (60_000 // len(filling))
    start = time.process_time()
    with contextlib.suppress(InvalidRequest):
        assert read_charted(text).ignored == ("what was cut off",)
    assert time.process_time() - start < 1.0
