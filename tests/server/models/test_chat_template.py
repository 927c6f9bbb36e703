"""The chat template with tools: SmolLM2's own where there are no tools, and an append only grows it at the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from acmserve.models.smollm2 import prepare
from tests.support.server.scripted_server import TEMPLATE
from tests.support.server.scripts import tool_call

TOKENIZER = AutoTokenizer.from_pretrained(prepare())
TOOLS = [{"type": "function", "function": {"name": "fold_fragment", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "id": "1", "function": {"name": "fold_fragment", "arguments": {"fragment_id": "f1a2b3"}}}
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(alphabet="ab{}<>\n '\"", max_size=12)}
)


def render(messages: list[dict[str, Any]], own: bool = False, **given: Any) -> str:
    template = None if own else TEMPLATE.read_text()
    text = TOKENIZER.apply_chat_template(messages, chat_template=template, tokenize=False, **given)
    assert isinstance(text, str)
    return text


@given(st.lists(MESSAGE, min_size=1, max_size=5), st.booleans())
def test_without_tools_it_is_smollm2s_own(messages: list[dict[str, Any]], add_generation_prompt: bool) -> None:
    own = render(messages, own=True, add_generation_prompt=add_generation_prompt)
    assert render(messages, add_generation_prompt=add_generation_prompt) == own


@pytest.mark.parametrize("content", ["I fold.\n", "", None])
def test_a_call_is_rendered_as_the_model_writes_it(content: str | None) -> None:
    question = [{"role": "user", "content": "Fold."}]
    prompt = render(question, tools=TOOLS, add_generation_prompt=True)
    said = f"{content or ''}{tool_call('fold_fragment', fragment_id='f1a2b3')}"
    called = [*question, {"role": "assistant", "content": content, "tool_calls": [CALL, CALL]}]
    results = [{"role": "tool", "tool_call_id": "1", "content": "Folded."}] * 2
    after = render([*called, *results], tools=TOOLS, add_generation_prompt=True)
    assert after.startswith(prompt + said)
    assert after.count("<tool_response>\nFolded.\n</tool_response>") == 2
    assert after.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "fold_fragment"' in prompt


@pytest.mark.parametrize("arguments", ['{"fragment_id": "f1a2b3"}', {"fragment_id": "f1a2b3"}])
def test_arguments_are_rendered_as_text_or_as_an_object(arguments: object) -> None:
    call = {"function": {"name": "fold_fragment", "arguments": arguments}}
    text = render([{"role": "user", "content": ""}, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert tool_call("fold_fragment", fragment_id="f1a2b3") in text
