"""Maps for tests: a tokenizer that counts words, hostile answers of models, and strategies for both."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from acmserve.context.maps.answers import read_charted, read_distilled
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.section import SECTION_NAMES
from acmserve.context.maps.update import Learned, learn

SPECIAL = "<|im_end|>"


class WordTokenizer:
    """A token is a word with the white space before it."""

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in re.finditer(r"\s*\S+|\s+", text)]


RULES = MapRules(WordTokenizer(), (SPECIAL,))


def distilled(diagnosis: str = "", tags: dict[str, str] | None = None, candidates: Sequence[Any] = ()) -> str:
    return json.dumps({"diagnosis": diagnosis, "item_tags": tags or {}, "cache_candidates": list(candidates)})


def charted(*operations: Any, reasoning: str = "") -> str:
    return json.dumps({"reasoning": reasoning, "operations": list(operations)})


def add(section: str, content: str) -> dict[str, str]:
    return {"type": "ADD", "section": section, "content": content}


def replace_item(item_id: str, content: str) -> dict[str, str]:
    return {"type": "REPLACE", "item_id": item_id, "content": content}


def delete(item_id: str) -> dict[str, str]:
    return {"type": "DELETE", "item_id": item_id}


def taught(context_map: ContextMap, *operations: Any, tags: dict[str, str] | None = None) -> ContextMap:
    """The map after one update with these answers."""
    learned = Learned(
        read_distilled(distilled(tags=tags), context_map), read_charted(charted(*operations)), context_map
    )
    return learn(context_map, learned, RULES, 0.0)


def map_of(*items: tuple[str, str], budget: int = 1024) -> ContextMap:
    """A map with these (section, text) items, numbered from 1."""
    context_map = ContextMap(budget=budget, evolve_steps=64)
    for first in range(0, len(items), 60):
        context_map = taught(context_map, *(add(section, text) for section, text in items[first : first + 60]))
    return context_map


texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["a", "two words", "## CONTEXT ROADMAP", "[cr-00001] x", "(in brackets)", "- dash", "line\nbreak"]),
    st.text(alphabet="\n\r\v\u2028\x00\u200b \ud800\U0001f600ab", max_size=30),
    st.integers(1, 60).map(lambda number: "word " * number),
)
ids = st.builds("{}-{:05d}".format, st.sampled_from(["cr", "cu", "dc", "ps", "rr", "ep", "xx"]), st.integers(0, 12))
operations = st.one_of(
    st.builds(add, st.sampled_from([*SECTION_NAMES, "nowhere"]), texts),
    st.builds(replace_item, ids, texts),
    st.builds(delete, ids),
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)),
)
tags = st.dictionaries(ids, st.sampled_from(["helpful", "harmful", "stale", "neutral", "great"]), max_size=6)


@st.composite
def context_maps(draw: st.DrawFn) -> ContextMap:
    """A map that some updates have made, most of their operations sensible."""
    context_map = ContextMap(budget=draw(st.integers(70, 160)), evolve_steps=64)
    for _ in range(draw(st.integers(0, 4))):
        wanted = draw(st.lists(operations, max_size=6))
        context_map = taught(context_map, *wanted, tags=draw(tags))
    return context_map
