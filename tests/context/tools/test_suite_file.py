"""A suite of a deployment: its words reach the model, what is wrong with it is named by its key."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acmserve.context.schema.suite_registry import SUITE_FILES, editing_suites
from acmserve.context.session.render import render
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.tools.suites import SUITES, find_operation, load_suites, suite_tools
from acmserve.errors import AcmError, InvalidRequest
from tests.support.context.conversation import call, done, lines, refusal, state_of, user
from tests.support.docs.pages import read_page
from tests.support.server.own_suite import OWN_SUITE, parameter, tool


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The registries as they were."""
    before = dict(SUITE_FILES), dict(SUITES)
    yield
    for registry, entries in zip((SUITE_FILES, SUITES), before, strict=True):
        for name in registry.keys() - entries.keys():
            del registry[name]  # type: ignore[attr-defined]


def load(tmp_path: Path, value: Any) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    load_suites(str(path))
    return str(path)


def test_its_words_reach_the_model_and_its_calls_are_carried_out(tmp_path: Path) -> None:
    path = load(tmp_path, OWN_SUITE)
    load_suites(path)
    assert [entry["function"]["name"] for entry in suite_tools("mine")] == ["cut", "hide", "show", "grep"]
    assert "mine" in editing_suites()
    assert find_operation(("cwl", "mine"), "hide") == "fold"
    cut = call(state_of(user(lines(90))), "cut", suite="mine", start_marker="line 0", end_marker="line 89")
    assert done(cut)
    assert len(cut.fragment_ids) == 5
    piece = cut.fragment_ids[1]
    hidden = call(cut.state, "hide", suite="mine", piece=piece)
    assert hidden.result.startswith(f"Hidden: {piece}. {{{piece} is folded")
    assert f"<{piece} " in str(render(hidden.state)[0]["content"])
    again = refusal(hidden.state, call(hidden.state, "hide", suite="mine", piece=piece))
    assert again.endswith(f'Call show("{piece}") to read it.')
    assert call(hidden.state, "show", suite="mine", fragment_id=piece).changed
    assert "match" in call(hidden.state, "grep", suite="mine", query="line 7").result


def test_folds_in_a_row_are_said_in_its_words_and_stay_so_in_the_file(tmp_path: Path) -> None:
    """Without `more` the server has its own."""
    value = changed(setting("markers/more", "<{count} more to {last}, {tokens}>"))
    load(tmp_path, value)
    state = done(call(state_of(user(lines(90))), "cut", suite="mine", start_marker="line 0", end_marker="line 89"))
    ids = [fragment.fragment_id for fragment in state.fragments]
    for piece in ids[:4]:
        state = done(call(state, "hide", suite="mine", piece=piece))
    first, *others = (fragment.num_tokens for fragment in state.fragments[:4])
    told = f"<{ids[0]} {first}><3 more to {ids[3]}, {sum(others)}>\n"
    stored = state_from(json.loads(json.dumps(state_value(state))), "here")
    for shown in (state, stored):
        assert str(render(shown)[0]["content"]).startswith(told)
    state = done(call(state, "show", suite="mine", fragment_id=ids[0]))
    state = done(call(state, "show", suite="mine", fragment_id=ids[3]))
    assert f"<{ids[1]} {others[0]}><1 more to {ids[2]}, {others[1]}>\n" in str(render(state)[0]["content"])


def changed(change: Callable[[Any], Any]) -> Any:
    value = copy.deepcopy(OWN_SUITE)
    change(value)
    return value


def setting(path: str, given: Any) -> Callable[[Any], None]:
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("/"))

    def change(value: Any) -> None:
        for step in steps:
            value = value[step]
        value[last] = given

    return change


PARAMETERS = "tools/0/parameters/properties"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "version": (setting("version", 2), "version: is 2, this acmserve reads 1"),
    "an unknown key": (setting("tool", []), r"mine\.json\.tool: unknown key"),
    "no name": (lambda value: value.pop("name"), "name: is missing"),
    "no tools": (setting("tools", []), "tools: must be a list of tools"),
    "a name twice": (setting("tools/1/name", "cut"), r"tools\[1\]\.name: 'cut' is the name of an earlier tool"),
    "a name that is taken": (setting("name", "sculptor"), "name: 'sculptor' is another suite"),
    "an operation": (setting("tools/0/operation", "fuse"), r"tools\[0\]\.operation: does not know 'fuse'"),
    "no description": (lambda v: v["tools"][0].pop("description"), r"tools\[0\]\.description: is missing"),
    "no schema": (setting("tools/0/parameters", {"type": "list"}), r"tools\[0\]\.parameters: must be the JSON schema"),
    "a wrong schema": (
        setting(f"{PARAMETERS}/start_marker/type", "text"),
        r"tools\[0\]\.parameters\.properties\.start_marker\.type: is no JSON schema",
    ),
    "an unknown parameter": (
        setting(f"{PARAMETERS}/depth", {"type": "string", "description": "x"}),
        r"properties\.depth: is nothing that fragment takes",
    ),
    "another type": (
        setting(f"{PARAMETERS}/start_marker", {"type": "integer", "description": "x"}),
        r"start_marker\.type: must be 'string'",
    ),
    "wider bounds": (
        setting(f"{PARAMETERS}/num_fragments", {"type": "integer", "description": "x", "minimum": 1, "maximum": 99}),
        r"num_fragments\.maximum: has to be given, 20 at the most",
    ),
    "no bounds": (
        setting(f"{PARAMETERS}/num_fragments", {"type": "integer", "description": "x", "maximum": 9}),
        r"num_fragments\.minimum: has to be given, 1 at the least",
    ),
    "a wider choice": (
        setting(f"{PARAMETERS}/role", {"type": "string", "description": "x", "enum": ["user", "tool"]}),
        r"role\.enum: may have 'user' or 'assistant' or 'all'",
    ),
    "a choice of objects": (
        setting(f"{PARAMETERS}/role", {"type": "string", "description": "x", "enum": [{}]}),
        r"role\.enum: may have 'user' or 'assistant' or 'all'",
    ),
    "a bound that is no float": (
        setting(
            f"{PARAMETERS}/num_fragments", {"type": "integer", "description": "x", "minimum": 1, "maximum": 10**400}
        ),
        r"num_fragments\.maximum: has to be given, 20 at the most",
    ),
    "what is needed is optional": (
        setting("tools/1/parameters/required", []),
        r"tools\[1\]\.parameters\.required: lacks 'piece'",
    ),
    "an argument": (
        setting("tools/1/arguments", {"id": "piece"}),
        r"tools\[1\]\.arguments\.id: is no argument of fold",
    ),
    "no markers": (lambda value: value.pop("markers"), "markers: is missing, but hide hides text"),
    "a marker without id": (setting("markers/folded", "[hidden]"), r"markers\.folded: does not name the fragment"),
    "a marker without the last id": (setting("markers/more", "and more"), r"markers\.more: does not name the last"),
    "a field of more": (setting("markers/more", "{last} {id}"), r"markers\.more: knows no \{id\}"),
    "a marker's field": (setting("markers/folded", "{id} {size}"), r"markers\.folded: knows no \{size\}"),
    "an attribute": (setting("results/fold", "{result.__class__}"), r"results\.fold: knows no \{result\.__class__\}"),
    "an open brace": (setting("results/fold", "{result"), r"results\.fold: is no template"),
    "results of nothing": (setting("results/fuse", "x"), r"results\.fuse: is no operation"),
    "a prompt": (setting("prompts/mine", 3), r"prompts\.mine: must be a text, not 3"),
    "a name that transcripts know": (
        lambda value: value["tools"].append(tool("delimiter", "mark", parameter("action"))),
        r"tools\[4\]\.name: has to be 'delimiter'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_by_its_key_and_nothing_is_loaded(tmp_path: Path, name: str) -> None:
    change, words = WRONG[name]
    with pytest.raises(InvalidRequest, match=words) as raised:
        load(tmp_path, changed(change))
    assert "mine.json" in raised.value.field
    assert "mine" not in SUITES
    assert "mine" not in SUITE_FILES


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match=r"--suite /nowhere\.json cannot be read"):
        load_suites("/nowhere.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InvalidRequest, match="is not valid JSON"):
        load_suites(str(tmp_path / "x.json"))


def test_the_file_of_the_documentation_is_a_suite(tmp_path: Path) -> None:
    shown = read_page("docs/guides/tool-loop.md").partition("<<'END'\n")[2].partition("END\n")[0]
    load(tmp_path, json.loads(shown))
    assert [entry["function"]["name"] for entry in suite_tools("mine")] == ["cut", "hide"]
