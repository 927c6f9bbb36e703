"""What does not count of a message, and what makes another one of it."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.alignment.normal_form import digest_normal_form, normal_form
from tests.support.context.conversation import KEY, assistant, user


def text(said: str, **beside: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **beside}


def calls(call_id: str, arguments: Any) -> dict[str, Any]:
    function = {"name": "run", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": "ok", "tool_call_id": call_id}


IMAGE = {"type": "image_url", "image_url": {"url": "data:1"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("It is 7."), user([text("It is 7.")])),
        (user("It is 7."), user([text("It is 7.", cache_control={"type": "ephemeral"})])),
        (user("One\nand two"), user([text("One"), text("and two")])),
        (user("It is 7.\n"), user(" It is 7.")),
        (user(["It is 7."]), user([{"type": "input_text", "text": "It is 7."}])),
        (user([text("a"), IMAGE]), user([text("a"), {**IMAGE, "cache_control": {}}, {"type": "text", "text": ""}])),
        (assistant("7"), {**assistant("7"), "reasoning_content": "Hm.", "refusal": None, "tool_calls": []}),
        (assistant("7"), assistant([{"type": "thinking", "thinking": "Hm."}, text("7")])),
        (assistant("7"), assistant("<think>\nHm.</think>\n\n7")),
        (calls("c1", '{"a": [1, 2]}'), calls("c2", '{"a":[1,2]}')),
        (calls("c1", ""), calls("c1", "{}")),
        (result("c1"), result("c2")),
        ({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be brief."}),
    ],
)
def test_the_same_message_in_other_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert normal_form(one) == normal_form(other)
    assert digest_normal_form(one, KEY) == digest_normal_form(other, KEY)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("It is 7."), user("It is 8.")),
        (user("It is 7."), assistant("It is 7.")),
        (user([text("a"), IMAGE]), user([IMAGE, text("a")])),
        (user([text("a"), IMAGE]), user([text("a"), {**IMAGE, "image_url": {"url": "data:2"}}])),
        (calls("c1", '{"a": 1}'), calls("c1", '{"a": 2}')),
        (calls("c1", "not json"), calls("c1", "{}")),
        (user("a"), {**user("a"), "name": "ann"}),
        (user("<think>a</think>b"), user("b")),
        (assistant("a <think>b</think>"), assistant("a")),
        (assistant("<think>never ends"), assistant("")),
    ],
)
def test_another_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest_normal_form(one, KEY) != digest_normal_form(other, KEY)


def test_a_digest_names_the_version_of_its_form() -> None:
    digest = digest_normal_form(user("a"), KEY)
    assert (digest[0], len(digest)) == (2, 17)
