"""What the commands of a step do: of calls in the words of many agents, and of commands in the assistant's text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript.commands.effect import MAX_ARGUMENT_CHARS, NOTHING_KNOWN, CommandEffect, effects_of
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import read_parts

WRITES = CommandEffect(writes=True)
EDIT = "sed -i s/a/b/ f"


def calling(*arguments: object, name: str = "bash") -> Message:
    calls = [{"id": str(n), "function": {"name": name, "arguments": one}} for n, one in enumerate(arguments)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def effect(message: Message) -> CommandEffect:
    [found] = effects_of(read_parts([message]))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": EDIT},
        {"description": "Edits", "timeout": 3, "command": EDIT},
        {"command": EDIT, "description": "Edits", "run_in_background": False},
        {"cmd": EDIT, "workdir": "/repo", "yield_time_ms": 1000},
        {"command": ["bash", "-lc", EDIT], "workdir": "/repo"},
        {"command": ["/bin/zsh", "-c", EDIT]},
        {"command": ["mv", "a", "b c"]},
        {"command": ["apply_patch", "*** Begin Patch\n*** End Patch"]},
        {"commands": ["ls", EDIT]},
        {"command": 'cat > "f" <<EOF\n"a"\nEOF', "is_input": "false"},
        {"command": "create", "path": "f", "file_text": "a"},
        {"command": "str_replace", "path": "f", "old_str": "a", "new_str": "b"},
        {"command": "insert", "path": "f"},
        {"code": "open('a', 'w').write('b')"},
    ],
)
def test_a_call_writes_in_the_words_of_its_agent(arguments: dict[str, Any]) -> None:
    assert effect(calling(json.dumps(arguments))) == WRITES
    assert effect(calling(json.dumps(arguments, separators=(",", ":")))) == WRITES
    assert effect(calling(arguments)) == WRITES
    assert effect(calling({"command": "ls"}, json.dumps(arguments))) == WRITES


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": "ls"},
        {"command": ""},
        {"command": None},
        {"command": 3},
        {"command": []},
        {"command": ["ls", ">", "f"]},
        {"command": ["grep", "rm a", "f"]},
        {"command": {"a": "b"}},
        {"path": EDIT},
        {"content": '"command": "rm a"'},
        {"content": "command", "path": "rm a"},
        {"code": "print(a > b)"},
    ],
)
def test_a_call_of_which_nothing_is_known(arguments: dict[str, Any]) -> None:
    """A list is what is run, so a `>` in it is an argument."""
    assert effect(calling(json.dumps(arguments))) == NOTHING_KNOWN
    assert effect(calling(arguments)) == NOTHING_KNOWN


@pytest.mark.parametrize("arguments", ["", "{", '{"command": ', '"command"', "rm a", "[1]", "null", None, 3, [EDIT]])
def test_arguments_that_are_no_object_say_nothing(arguments: object) -> None:
    assert effect(calling(arguments)) == NOTHING_KNOWN


def test_an_editor_that_views_writes_nothing_whatever_its_name() -> None:
    view = {"command": "view", "path": "f"}
    found = effect(calling(json.dumps(view), {"path": "f"}, view, name="str_replace_based_edit_tool"))
    assert found == CommandEffect(viewed=frozenset({0, 2}))
    assert effect(calling(view, {"command": "create"})) == CommandEffect(writes=True, viewed=frozenset({0}))


def test_only_the_beginning_of_long_arguments_is_read() -> None:
    long = "a" * MAX_ARGUMENT_CHARS
    assert effect(calling(json.dumps({"command": "rm a; " + long, "x": 1}))) == WRITES
    assert effect(calling(json.dumps({"content": long, "command": "rm a"}))) == NOTHING_KNOWN
    assert effect(calling({"command": ["rm"] + [long] * 1000})) == WRITES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"THOUGHT: I edit.\n\n```bash\n{EDIT}\n```", WRITES),
        (f"```mswea_bash_command\n{EDIT}\n```\n", WRITES),
        (f"```sh\nls\n```\nthen\n```shell\n{EDIT}", WRITES),
        ("```bash\ncat > f <<'EOF'\n```\nEOF\n```", WRITES),
        ("```bash\nls\n```\nmv a b", NOTHING_KNOWN),
        (f"```\n{EDIT}\n```", NOTHING_KNOWN),
        (f"```python\n{EDIT}\n```", NOTHING_KNOWN),
        (f"`{EDIT}`", NOTHING_KNOWN),
        (EDIT, NOTHING_KNOWN),
    ],
)
def test_a_command_in_the_text(text: str, expected: CommandEffect) -> None:
    assert effect({"role": "assistant", "content": text}) == expected
    assert effect({"role": "assistant", "content": [{"type": "text", "text": text}]}) == expected
    assert effect({"role": "user", "content": text}) == NOTHING_KNOWN
    assert effect(calling({"path": "f"}) | {"content": text}) == NOTHING_KNOWN, "the calls are what is done"


def test_the_outline_keeps_the_effect_and_no_text() -> None:
    outline = Outline([{"role": "user", "content": "Fix it."}, calling({"command": EDIT}), calling({"command": "ls"})])
    assert [line.effect for line in outline.lines] == [NOTHING_KNOWN, WRITES, NOTHING_KNOWN]
    assert outline.lines[0].effect is outline.lines[2].effect


_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.just(EDIT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["command", "code", "x"]), inner),
    max_leaves=8,
)


@given(_values | _values.map(json.dumps) | st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_arguments_are_an_error(arguments: object) -> None:
    assert effect(calling(arguments)).viewed <= {0}
