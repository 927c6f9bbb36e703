"""`acm.map` and `acm.query_finished` of a chat request: read, or refused by the name of the bad value."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.maps.instructions import Instructions
from acmserve.errors import InvalidRequest
from acmserve.server.options.map_options import (
    MapOptions,
    UpdateOptions,
    parse_map_options,
    parse_query_finished,
)
from acmserve.validation import echo_json


def test_what_is_left_out_or_null_takes_its_default() -> None:
    assert parse_map_options(None) is None
    assert parse_map_options({"external_context_id": "corpus"}) == MapOptions("corpus")
    nothing = dict.fromkeys(("budget", "evolve_steps", "placement", "update"))
    assert parse_map_options({"external_context_id": "corpus", **nothing}) == MapOptions("corpus")


def test_everything_is_read() -> None:
    update = {"model": "big", "max_tokens": 300, "vllm_xargs": {"a": 1}}
    given = {"external_context_id": "c", "budget": 512, "evolve_steps": 0, "placement": "head", "update": update}
    assert parse_map_options(given) == MapOptions("c", 512, 0, "head", UpdateOptions("big", 300, {"a": 1}))
    named = ["reusable_results", "context_roadmap"]
    prompts = {"distiller": "{map} {trajectory} {ground_truth} {}", "cartographer": None}
    found = parse_map_options(
        {"external_context_id": "c", "sections": named, "update": {"ground_truth": "388", "prompts": prompts}}
    )
    assert found is not None
    assert found.sections == ("context_roadmap", "reusable_results")
    assert found.update.ground_truth == "388"
    assert found.update.prompts == Instructions(prompts["distiller"])
    assert (found.update.num_calls, found.update.evicts) == (2, True)
    ablated = parse_map_options({"external_context_id": "c", "update": {"calls": 1, "evict": False}})
    assert ablated == MapOptions("c", update=UpdateOptions(num_calls=1, evicts=False))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"external_context_id": None}, "acm.map.external_context_id"),
        ({"external_context_id": ""}, "acm.map.external_context_id"),
        ({"external_context_id": "x" * 257}, "acm.map.external_context_id"),
        ({"budget": 0}, "acm.map.budget"),
        ({"budget": "1k"}, "acm.map.budget"),
        ({"budget": True}, "acm.map.budget"),
        ({"evolve_steps": 1_000_001}, "acm.map.evolve_steps"),
        ({"placement": "middle"}, "acm.map.placement"),
        ({"wait": "yes"}, "acm.map.wait"),
        ({"size": 3}, "acm.map.size"),
        ({"update": []}, "acm.map.update"),
        ({"update": {"url": "x"}}, "acm.map.update.url"),
        ({"update": {"model": ""}}, "acm.map.update.model"),
        ({"update": {"max_tokens": 0}}, "acm.map.update.max_tokens"),
        ({"sections": []}, "acm.map.sections"),
        ({"sections": ["roadmap"]}, "acm.map.sections"),
        ({"sections": "context_roadmap"}, "acm.map.sections"),
        ({"update": {"ground_truth": 388}}, "acm.map.update.ground_truth"),
        ({"update": {"prompts": "short"}}, "acm.map.update.prompts"),
        ({"update": {"prompts": {"evictor": "x"}}}, "acm.map.update.prompts.evictor"),
        ({"update": {"prompts": {"distiller": "{map}"}}}, "acm.map.update.prompts.distiller"),
        ({"update": {"prompts": {"cartographer": ""}}}, "acm.map.update.prompts.cartographer"),
        (
            {"update": {"ground_truth": "388", "prompts": {"distiller": "{map} {trajectory}"}}},
            "acm.map.update.prompts.distiller",
        ),
        ({"update": {"calls": 3}}, "acm.map.update.calls"),
        ({"update": {"calls": True}}, "acm.map.update.calls"),
        ({"update": {"evict": "no"}}, "acm.map.update.evict"),
        ({"update": {"calls": 1, "prompts": {"distiller": "{map} {trajectory}"}}}, "acm.map.update.prompts"),
        ({"update": {"vllm_xargs": 3}}, "acm.map.update.vllm_xargs"),
        ({"update": {"vllm_xargs": {"session_id": "s"}}}, "acm.map.update.vllm_xargs.session_id"),
        ({"update": {"vllm_xargs": {"acm_scored_tokens": 1}}}, "acm.map.update.vllm_xargs.acm_scored_tokens"),
    ],
)
def test_a_bad_value_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_map_options({"external_context_id": "corpus"} | change)
    assert refused.value.field == field


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"acm\.map: must be an object"):
        parse_map_options("corpus")


@pytest.mark.parametrize("value", [None, True, False, "final"])
def test_what_ends_a_query_is_read(value: Any) -> None:
    assert parse_query_finished(value) is value


@pytest.mark.parametrize("value", [1, 0, "true", "FINAL", "", [], {}, 0.5])
def test_another_word_for_what_ends_a_query_is_refused_with_the_remedy(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_query_finished(value)
    assert refused.value.field == "acm.query_finished"
    assert refused.value.message == f"must be true, false or 'final', not {echo_json(value)}."
    assert refused.value.remedy == "Send 'final' with each request of a loop that ends with FINAL(...)."
