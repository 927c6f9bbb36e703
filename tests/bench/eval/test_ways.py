"""The list of ways: the PEEK paper's ablations, right answers, what no policy can take from, what branches ask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import AutoTokenizer

from acmserve.bench.eval.bench import SMALL_MAP
from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.map_ablations import MAP_ABLATIONS, with_ablation
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.reads import as_reads
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, TASKS, make_samples
from acmserve.bench.eval.ways import ABLATIONS, BY_TOOLS, CODE_WAYS, DEFAULT_WAYS, NAMED, find_way
from acmserve.cli import main as cli
from acmserve.context.maps.map import DEFAULT_BUDGET, DEFAULT_EVOLVE_STEPS, ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.section import SECTIONS
from acmserve.server.models.tokenizer import ServedTokenizer
from acmserve.server.options.loop_options import LoopOptions, parse_loop_options
from acmserve.server.options.map_options import parse_map_options
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says


@pytest.mark.parametrize("name", MAP_ABLATIONS)
def test_an_ablation_changes_one_thing_that_the_server_takes(name: str) -> None:
    plain = parse_map_options({"external_context_id": "c", "budget": DEFAULT_BUDGET})
    found = parse_map_options({"external_context_id": "c", **with_ablation({"budget": DEFAULT_BUDGET}, name)})
    assert plain is not None
    assert found is not None
    fields = ("budget", "evolve_steps", "update")
    assert sum(getattr(found, field) != getattr(plain, field) for field in fields) == 1
    assert found.evolve_steps != DEFAULT_EVOLVE_STEPS


def loop_options_of(name: str, default_max_tool_calls: int = 4) -> LoopOptions:
    """What the server reads from the one request of a way."""
    sample = make_samples(TASKS["pi-llm"], 1, 0, TASKS["pi-llm"].parameters)[0]
    asked: list[dict[str, Any]] = []
    one = cast("Play", SimpleNamespace(sample=sample, ask=lambda messages, acm: asked.append(acm) or ""))
    find_way(name).play(one)
    (acm,) = asked
    options = parse_loop_options(acm, default_max_tool_calls)
    assert options is not None
    return options


@pytest.mark.parametrize("name", sorted(BY_TOOLS))
def test_how_many_tools_an_answer_may_call_is_said_by_the_server(name: str) -> None:
    """`bench eval` starts a server that allows four. A request that named a number would have its own."""
    assert loop_options_of(name, default_max_tool_calls=4).max_tool_calls == 4


@pytest.mark.parametrize(("name", "is_required"), [("tools", False), ("tools-guided", False), ("tools-required", True)])
def test_a_first_call_is_required_as_in_the_sculptor_paper_where_the_way_says_so(name: str, is_required: bool) -> None:
    assert loop_options_of(name).first_call_required is is_required


@pytest.mark.parametrize("policy", ["cwl", "pi-cwl"])
def test_a_budget_by_episodes_adds_no_words_to_the_prompt(policy: str) -> None:
    """Its episodes are inferred. A lesson on a tool that cannot be called would be all that differs from `reads`."""
    sample = make_samples(TASKS["babilong"], 1, 0, {"tokens": (125,)})[0]
    asked: list[tuple[Any, Any]] = []

    def ask(messages: Any, acm: Any, **fields: Any) -> str:
        asked.append((messages, acm))
        return ""

    one = SimpleNamespace(sample=sample, ask=ask, budget=0.6, count_tokens=lambda messages, **_: len(str(messages)))
    find_way(f"budget:{policy}").play(cast("Play", one))
    [(messages, acm)] = asked
    assert messages == as_reads(sample)
    assert acm.keys() == {"budget"}


def test_what_a_person_asks_of_an_update_stays_under_an_ablation() -> None:
    given = {"budget": 700, "update": {"max_tokens": 90}}
    assert with_ablation(given, "") == given
    assert with_ablation(given, "b512") == {"budget": 512, "update": {"max_tokens": 90}}
    assert with_ablation(given, "no-eviction") == {"budget": 700, "update": {"max_tokens": 90, "evict": False}}


def test_ablations_are_of_the_map_and_of_the_agent_and_named_by_nobody_else() -> None:
    assert {f"{kind}:{name}" for kind in ("map", "rlm-map") for name in MAP_ABLATIONS} == ABLATIONS
    assert ABLATIONS | {"map:labelled", "rlm-map:labelled", "rlm-shared", "tools-required"} == NAMED
    assert not NAMED & set(DEFAULT_WAYS)
    assert {name for name in ABLATIONS if name.startswith("rlm")} <= CODE_WAYS
    assert all(find_way(name).learns for name in (*NAMED - {"tools-required"}, "map", "rlm-map"))


class WithMaps(ToyModel):
    """A server with acmserve, as far as a way with a map asks it."""

    def __call__(self, path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/acm/sessions":
            return 200, {"object": "list", "data": []}
        return super().__call__(path, body, key)


@pytest.mark.parametrize(("way", "is_told"), [("map", False), ("map:labelled", True), ("rlm-map:labelled", True)])
def test_a_labelled_map_is_told_the_right_answer_of_each_question(way: str, is_told: bool, tmp_path: Path) -> None:
    """The map's models are told, by the field that the server takes. What a person asks of an update stays."""
    toy = WithMaps(lambda body: says("FINAL(none)", {"prompt_tokens": 9, "completion_tokens": 1}))
    flags = ["--tasks", "oolong", "--samples", "1", "--ways", way, "--map", '{"update": {"max_tokens": 90}}']
    with openai_server(toy) as url:
        assert cli(["eval", url, *flags, "--output", str(tmp_path)]) == 0
    known = samples_of(parser().parse_args(["http://nowhere", *flags]))
    asked = [parse_map_options(body["acm"]["map"]) for body in toy.bodies]
    updates = [options.update for options in asked if options is not None]
    assert [update.ground_truth for update in updates] == [one.gold if is_told else None for one in known]
    assert {update.max_tokens for update in updates} == {90}


def test_the_agent_says_with_each_request_what_ends_its_question(tmp_path: Path) -> None:
    """FINAL(...) does, and what the loop says does not. The last request ends it outright, whatever the answer is."""
    toy = WithMaps(lambda body: says("It must be a tree.", {"prompt_tokens": 9, "completion_tokens": 1}))
    flags = ["--tasks", "oolong", "--set", "oolong.questions=2", "--samples", "1", "--ways", "rlm-map", "--steps", "3"]
    with openai_server(toy) as url:
        assert cli(["eval", url, *flags, "--output", str(tmp_path)]) == 0
    asked = [body["acm"] for body in toy.bodies]
    assert [one["query_finished"] for one in asked] == ["final", "final", "final", True] * 2
    assert {tuple(one["observations"]) for one in asked} == {("REPL output:",)}
    assert len({body["session_id"] for body in toy.bodies}) == 2


@pytest.mark.parametrize("task", DEFAULT_TASKS)
def test_a_policy_is_played_where_it_has_something_to_take(task: str) -> None:
    sample = make_samples(TASKS[task], 1, 0, TASKS[task].parameters)[0]
    says_more = any(one["role"] == "user" for one in sample.history)
    assert (find_way("budget:clear_tool_uses").refuses(sample) == "") is bool(sample.context)
    assert (find_way("budget:user_messages").refuses(sample) == "") is says_more
    assert find_way("budget:chain").refuses(sample) == ""


def test_an_agent_opens_as_many_branches_as_that_of_the_context_folding_paper() -> None:
    asked: list[Any] = []
    play: Any = SimpleNamespace(sample=SimpleNamespace(messages=list), ask=lambda *given: asked.append(given) or "")
    assert find_way("branches").play(play) == ""
    [(_, acm)] = asked
    options = parse_loop_options(acm, 1)
    assert options is not None
    assert (options.max_branches, options.preset) == (10, "branch")


def test_a_small_map_is_full_with_few_items(smollm2_folder: Path) -> None:
    """It holds its headers and an item of a short line, and not three. One of 256 tokens holds them."""
    rules = MapRules(ServedTokenizer(AutoTokenizer.from_pretrained(smollm2_folder)))
    small = ContextMap(budget=json.loads(SMALL_MAP)["budget"])
    rules.check_budget(small.budget, "budget")
    line = "Each line has a date, a user and an instance of a crate, in the order of the dates."
    one = small.added(SECTIONS[0], line)
    three = one.added(SECTIONS[1], line).added(SECTIONS[2], line)
    assert rules.fits(one)
    assert not rules.fits(three)
    assert rules.fits(replace(three, budget=MAP_ABLATIONS["b256"][1]["budget"]))
