"""A template that drops the reasoning of earlier turns rewrites the prompt when the user speaks: an edit in each step.

The template is ours, after the published rule of thinking models: what stands in front of `</think>` is shown until the
user's next message.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from acmserve.bench.precompute.thoughts import NUM_STEPS as LONG_STEPS
from acmserve.bench.precompute.thoughts import THOUGHT_TOKENS, dropping_template, make_chain
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.server.precompute.next_message import ends_with_thought
from tests.server.precompute.test_http import Chat
from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines
from tests.support.templates.fixtures import tokenizer

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
NUM_STEPS = 3
QUESTION = "What did you see?"


@dataclass
class Thinker(Chat):
    """An agent whose model thinks in front of each call. It resends all that the model said."""

    num_sent: int = 0
    template: str = field(default_factory=dropping_template)

    def send(self, *messages: dict[str, Any], line: str = "Noted.", salt: str | None = None, **acm: Any) -> Any:
        """One completion. With a `salt` it is that of a stranger without a session."""
        self.messages += messages
        body = {
            "model": MODEL,
            "messages": self.messages,
            "tools": [TOOL],
            "chat_template": self.template,
            "max_tokens": 400,
            "temperature": 0,
            "vllm_xargs": {"script_id": uuid.uuid4().hex, "script": [line]},
        }
        owner: dict[str, Any] = {"cache_salt": salt}
        if salt is None:
            owner = {"session_id": self.session, "acm": {"precompute": self.precompute, **acm}}
        said = http.post(f"{self.server}/v1/chat/completions", json=body | owner).raise_for_status().json()
        message = said["choices"][0]["message"]
        if salt is None:
            self.said.append(said["acm"])
            self.messages.append({name: value for name, value in message.items() if value})
        return said

    def work(self, fidelity: str) -> None:
        """A chain of steps, each with a thought, a call and a result, and an answer."""
        asked = {"role": "user", "content": f"{self.session}: look around."}
        for number in range(NUM_STEPS):
            thought = f"<think>\n{log_lines(6, first=97 * number)}\n</think>\n\n"
            call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
            said = self.send(asked, line=thought + call, fidelity=fidelity)
            (made,) = said["choices"][0]["message"]["tool_calls"]
            result = log_lines(3, first=5000 + 31 * number)
            asked = {"role": "tool", "tool_call_id": made["id"], "content": result}
        self.send(asked, line="<think>\nThat is all.\n</think>\n\nI have looked around.", fidelity=fidelity)


@pytest.mark.parametrize(("precompute", "fidelity"), [("predict", "exact"), ("off", "exact"), ("off", "reuse")])
def test_a_chain_of_thoughts_costs_an_append_when_the_user_speaks(
    scripted_server: str, precompute: str, fidelity: str
) -> None:
    agent = Thinker(scripted_server, precompute)
    agent.work(fidelity)
    agent.wait_until_idle()
    before = agent.receipt["prompt_tokens"]
    said = agent.send({"role": "user", "content": QUESTION}, fidelity=fidelity)
    receipt = agent.receipt
    assert receipt["prompt_tokens"] < before - 100 * NUM_STEPS, "the control: the template has dropped the thoughts"
    if (precompute, fidelity) == ("off", "exact"):
        assert receipt["computed_tokens"] > 100 * NUM_STEPS, "the control: all behind the first thought is computed"
        return
    assert receipt["computed_tokens"] <= 64 + 16 * (fidelity == "reuse") * NUM_STEPS, receipt
    if fidelity == "exact":
        assert receipt["precomputed_tokens"] > 100 * NUM_STEPS
        agent.messages.pop()
        fresh = agent.send(salt=uuid.uuid4().hex)
        assert fresh["usage"]["prompt_tokens"] == receipt["prompt_tokens"]
        assert fresh["choices"][0]["message"] == said["choices"][0]["message"]


@pytest.mark.parametrize("precompute", ["predict", "off"])
def test_thirty_steps_of_reasoning_cost_an_append_and_a_quarter_at_most(scripted_server: str, precompute: str) -> None:
    """The chain of `bench precompute --chains`, in tokens instead of seconds. It comes with one request."""
    agent = Thinker(scripted_server, precompute)
    ended = "<think>\nThat is all.\n</think>\n\nI have looked around."
    agent.send(*make_chain(0, tokenizer(), LONG_STEPS), line=ended, fidelity="exact")
    agent.wait_until_idle()
    before = agent.receipt["prompt_tokens"]
    said = agent.send({"role": "user", "content": QUESTION}, fidelity="exact")
    spoken = agent.receipt
    assert spoken["prompt_tokens"] < before - 0.9 * THOUGHT_TOKENS * LONG_STEPS
    agent.send({"role": "user", "content": QUESTION}, fidelity="exact")
    num_appended = agent.receipt["computed_tokens"]
    if precompute == "off":
        assert spoken["computed_tokens"] > 100 * num_appended, "the control: all behind the first thought is computed"
        return
    assert spoken["computed_tokens"] <= 1.25 * num_appended
    del agent.messages[-3:]
    fresh = agent.send(salt=uuid.uuid4().hex)
    assert fresh["usage"]["prompt_tokens"] == spoken["prompt_tokens"]
    assert fresh["choices"][0]["message"] == said["choices"][0]["message"]


def test_only_an_answer_after_a_thought_is_looked_at() -> None:
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nLook.", "tool_calls": [{"id": "c"}]}
    result, asked = {"role": "tool", "tool_call_id": "c", "content": "7"}, {"role": "user", "content": "Look."}
    answer = {"role": "assistant", "content": "It is 7."}
    ended = adopt(SessionState(), [asked, thought, result, answer]).state
    assert ends_with_thought(ended)
    for left in (1, 2, 3):
        assert not ends_with_thought(replace(ended, entries=ended.entries[:left]))
    assert not ends_with_thought(adopt(SessionState(), [asked, answer]).state)
    assert not ends_with_thought(adopt(ended, [asked, thought, result, answer, asked, answer]).state)
