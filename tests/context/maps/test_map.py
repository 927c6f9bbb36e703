"""A context map: sections, ids and counter, its text and the way back, what a person sets, and that it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.maps.item import MAX_ITEM_CHARS, MapItem, one_line
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.section import BY_NAME
from acmserve.context.maps.text import parse_map, render_map
from acmserve.context.maps.update import MapSettings, settle
from acmserve.context.storage.codecs.map import map_from, map_value
from acmserve.context.storage.codecs.rows import pack, unpack
from acmserve.errors import AcmError, IntegrityError, InvalidRequest
from tests.support.context.maps import RULES, SPECIAL, add, context_maps, delete, map_of, replace_item, taught

APPENDIX_F = """\
## CONTEXT ROADMAP
(Index of what the context contains and where to find it)

## CONTEXT UNDERSTANDING
(High-level understanding of the context: what it is, how it's organized, and what matters)

## DOMAIN CONSTANTS
(Exact parameters, formulas, thresholds, reference values, enum sets, and output field requirements defined by the \
context.)

## PARSING SCHEMA
(How to parse and navigate the context's format)

## REUSABLE RESULTS
(Reusable knowledge about the context)"""


def test_the_initial_map_is_that_of_the_paper() -> None:
    assert render_map(ContextMap()) == APPENDIX_F


def test_items_stand_in_their_sections_under_ids_of_one_counter() -> None:
    made = map_of(
        ("context_roadmap", "388 records"), ("reusable_results", "64 are numeric"), ("context_roadmap", "end")
    )
    assert [item.item_id for item in made.items] == ["cr-00001", "rr-00002", "cr-00003"]
    text = render_map(made)
    assert "find it)\n[cr-00001] 388 records\n[cr-00003] end\n\n## CONTEXT UNDERSTANDING" in text
    assert text.endswith("(Reusable knowledge about the context)\n[rr-00002] 64 are numeric")


def test_error_patterns_show_only_when_there_are_some() -> None:
    made = map_of(("error_patterns", "field 3 is empty at times"))
    assert "## ERROR PATTERNS\n(" in render_map(made)
    assert render_map(taught(made, delete("ep-00001"))) == APPENDIX_F


def test_a_number_is_never_given_twice() -> None:
    made = taught(map_of(("context_roadmap", "a")), delete("cr-00001"))
    assert taught(made, add("context_roadmap", "b")).items[0].item_id == "cr-00002"


def test_a_replaced_item_keeps_its_id_and_score() -> None:
    made = taught(map_of(("context_roadmap", "a")), replace_item("cr-00001", "b"), tags={"cr-00001": "helpful"})
    assert made.items == (MapItem(BY_NAME["context_roadmap"], 1, "b", 1),)


@given(context_maps())
def test_reading_back_what_was_written_gives_the_same_items(made: ContextMap) -> None:
    assert parse_map(render_map(made), made) == (made.items, made.last_number)


@given(context_maps())
def test_the_text_of_another_map_is_taken_with_its_ids(made: ContextMap) -> None:
    items, last_number = parse_map(render_map(made), ContextMap())
    assert items == tuple(replace(item, score=0) for item in made.items)
    assert last_number == max((item.number for item in made.items), default=0)


def test_a_person_edits_adds_and_deletes_lines() -> None:
    made = map_of(("context_roadmap", "a"), ("context_roadmap", "b"), ("domain_constants", "c"))
    text = (
        render_map(made).replace("[cr-00001] a", "[cr-00001] better").replace("[cr-00002] b", "- a new line\nanother")
    )
    edited = settle(made, MapSettings(text=text), RULES, 5.0)
    assert [item.line for item in edited.items] == [
        "[cr-00001] better",
        "[dc-00003] c",
        "[cr-00004] a new line",
        "[cr-00005] another",
    ]
    assert (edited.version, edited.history[-1].kind, edited.history[-1].at) == (made.version + 1, "edit", 5.0)
    assert settle(edited, MapSettings(text=render_map(edited)), RULES, 6.0) is edited


def test_the_id_of_a_deleted_item_becomes_a_new_one() -> None:
    made = taught(map_of(("context_roadmap", "a"), ("context_roadmap", "b")), delete("cr-00001"))
    items, _ = parse_map("## CONTEXT ROADMAP\n[cr-00001] a\n[cr-00002] b", made)
    assert [item.item_id for item in items] == ["cr-00002", "cr-00003"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("an item", "line 1 stands before any section"),
        ("## PLAYBOOK\nx", "line 1: 'PLAYBOOK' is no section"),
        ("## CONTEXT ROADMAP\n[dc-00003] c", r"line 2: \[dc-00003\] belongs to DOMAIN CONSTANTS"),
        ("## CONTEXT ROADMAP\n[cr-00001] a\n[cr-00001] b", "line 3: .* is there twice"),
        ("## CONTEXT ROADMAP\n\n[cr-00001] ", "line 3: is empty"),
        ("## CONTEXT ROADMAP\n" + "x" * 1001, "line 2: has 1,001 characters"),
        (f"## CONTEXT ROADMAP\nan end {SPECIAL}", "steers the chat template"),
        ("## CONTEXT ROADMAP\n" + "x\n" * 1000, "the budget is 1,024"),
        ("x" * 200_001, "at most 200,000"),
    ],
)
def test_a_text_that_cannot_be_a_map_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        settle(map_of(("context_roadmap", "a")), MapSettings(text=text), RULES, 0.0)
    assert refused.value.field == "text"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (MapSettings(budget=0), "budget"),
        (MapSettings(budget=20), "budget"),
        (MapSettings(budget=16_385), "budget"),
        (MapSettings(evolve_steps=-1), "evolve_steps"),
        (MapSettings(evolve_steps=1_000_001), "evolve_steps"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: MapSettings, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        settle(ContextMap(), settings, RULES, 0.0)
    assert refused.value.field == field


def test_a_smaller_budget_evicts_and_says_what() -> None:
    made = map_of(("parsing_schema", "p " * 40), ("context_roadmap", "r " * 40))
    smaller = settle(made, MapSettings(budget=RULES.count(made) - 1), RULES, 0.0)
    assert [item.item_id for item in smaller.items] == ["cr-00002"]
    assert [item.item_id for item in smaller.history[-1].evicted] == ["ps-00001"]


def test_a_map_is_frozen_by_its_steps_or_by_a_pin() -> None:
    made = ContextMap(evolve_steps=1)
    assert not made.frozen
    assert taught(made).frozen
    assert settle(made, MapSettings(pinned=True), RULES, 0.0).frozen
    assert not settle(taught(made), MapSettings(evolve_steps=2), RULES, 0.0).frozen


@given(st.text())
def test_an_item_is_one_clean_line(text: str) -> None:
    line = one_line(text)
    assert one_line(line) == line
    assert len(line.splitlines()) <= 1
    assert not set(line) & {"\n", "\x00", "\ud800", "\u200b"}


@given(context_maps())
def test_a_map_survives_its_file_equal(made: ContextMap) -> None:
    assert map_from(unpack(pack(map_value(made))), "here") == made


@pytest.mark.parametrize("damage", [{"items": 3}, {"budget": True}, {"items": [{"id": "zz-1"}]}, {"last_number": 0}])
def test_a_damaged_map_is_refused_by_name(damage: dict[str, object]) -> None:
    value = map_value(map_of(("context_roadmap", "a"))) | damage
    with pytest.raises(AcmError, match="here is damaged"):
        map_from(value, "here")


@pytest.mark.parametrize(
    "broken",
    [
        replace(map_of(("context_roadmap", "a")), last_number=0),
        replace(ContextMap(), budget=0),
        ContextMap(items=(MapItem(BY_NAME["context_roadmap"], 1, "two\nlines"),), last_number=1),
        ContextMap(items=(MapItem(BY_NAME["context_roadmap"], 1, "x" * (MAX_ITEM_CHARS + 1)),), last_number=1),
        ContextMap(items=(MapItem(BY_NAME["context_roadmap"], 1, "x"),) * 2, last_number=1),
    ],
)
def test_a_broken_map_is_noticed(broken: ContextMap) -> None:
    with pytest.raises(IntegrityError):
        broken.check_integrity()
