"""A server with nothing set, and Anthropic's client as it comes: the first edited turn is computed in the pause before.

What is edited is cleared by the vendor's own `context_management`. The control is the same conversation with `off`. It
has a cache salt of its own, so it finds nothing of the first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest

from tests.support import http
from tests.support.server.block_story import Blocks
from tests.support.server.scripts import log_lines, new_session

MODEL = "smollm2"
TOOLS: list[Any] = [
    {"name": "read", "description": "Read a page.", "input_schema": {"type": "object", "properties": {"query": {}}}}
]
NUM_LINES = 7
QUESTION = f"And this page says:\n{log_lines(8, first=900)}\nWhich place comes first?"


@dataclass
class Stranger:
    """Plays one conversation with a pause behind each turn. `more` goes into each body beside what the client sends."""

    server: str
    more: dict[str, Any] = field(default_factory=dict)
    session: str = field(default_factory=new_session)
    story: Blocks = field(default_factory=lambda: Blocks().user("Read the pages, then answer in a few words."))
    answers: list[Any] = field(default_factory=list)

    def read(self, num_pages: int) -> None:
        """The agent reads pages."""
        for _ in range(num_pages):
            first = NUM_LINES * self.story.num_calls
            self.story.step(("read", log_lines(NUM_LINES, first=first)))

    def asked(self, client: anthropic.Anthropic, trigger: int) -> dict[str, Any]:
        """One turn and its receipt. The session is idle again when the call returns."""
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": trigger},
            "keep": {"type": "tool_uses", "value": 2},
        }
        answer: Any = client.beta.messages.create(
            model=MODEL,
            max_tokens=8,
            messages=self.story.messages,  # type: ignore[arg-type]
            tools=TOOLS,
            betas=["context-management-2025-06-27"],
            context_management={"edits": [edit]},  # type: ignore[list-item]
            extra_headers={"X-Session-ID": self.session},
            extra_body={"temperature": 0, **self.more},
        )
        self.story.messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        self.answers.append(answer)
        self.wait_until_idle()
        receipt: dict[str, Any] = answer.acm["receipt"]
        return receipt

    def precompute(self) -> dict[str, Any]:
        """What the server says of the session."""
        salt = {"X-Cache-Salt": self.more["cache_salt"]} if self.more else {}
        answer = http.get(f"{self.server}/v1/acm/sessions/{self.session}", headers=salt)
        found: dict[str, Any] = answer.raise_for_status().json()["precompute"]
        return found

    def wait_until_idle(self) -> None:
        """Until the server has computed what may come next."""
        for _ in range(6000):
            if not self.precompute()["working"]:
                return
            time.sleep(0.05)
        pytest.fail("the server never ends computing what may come next")

    def play(self, client: anthropic.Anthropic) -> dict[str, Any]:
        """Two turns below the trigger, and one behind which the oldest pages are cleared, with the receipt of that."""
        self.read(3)
        counted = client.beta.messages.count_tokens(model=MODEL, messages=self.long_story(), tools=TOOLS)
        trigger = counted.input_tokens + 100
        for receipt in (self.asked(client, trigger), self.second(client, trigger)):
            assert (receipt["precomputed_tokens"], receipt["moved_tokens"]) == (0, 0)
        self.story.user(QUESTION)
        return self.asked(client, trigger)

    def second(self, client: anthropic.Anthropic, trigger: int) -> dict[str, Any]:
        """The second turn, which comes near the trigger."""
        self.story.user("Read on.")
        self.read(2)
        return self.asked(client, trigger)

    def long_story(self) -> Any:
        """What the second turn will send, about."""
        story = Blocks().user("Read the pages, then answer in a few words.")
        for number in range(5):
            story.step(("read", log_lines(NUM_LINES, first=NUM_LINES * number)))
        return story.messages


def cleared(answer: Any) -> list[int]:
    """How many tool uses each edit has cleared."""
    return [edit.cleared_tool_uses for edit in answer.context_management.applied_edits]


def test_the_first_edited_turn_of_a_stranger_is_precomputed(server: str) -> None:
    with anthropic.Anthropic(base_url=server, api_key="unused", max_retries=0) as client:
        by_default = Stranger(server)
        receipt = by_default.play(client)
        without = Stranger(server, {"acm": {"precompute": "off"}, "cache_salt": new_session()})
        control = without.play(client)
    assert [one.precompute()["mode"] for one in (by_default, without)] == ["exact", "off"]
    for stranger in (by_default, without):
        assert [cleared(answer) for answer in stranger.answers] == [[], [], [3]], "only the last turn is edited"
    texts = [[answer.content[0].text for answer in one.answers] for one in (by_default, without)]
    assert texts[0] == texts[1]
    assert receipt["prompt_tokens"] == control["prompt_tokens"]
    assert (control["precomputed_tokens"], receipt["moved_tokens"], control["moved_tokens"]) == (0, 0, 0)
    assert receipt["precomputed_tokens"] > 300, receipt
    assert receipt["computed_tokens"] + 300 < control["computed_tokens"], (receipt, control)
