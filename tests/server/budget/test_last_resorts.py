"""What goes at the very last under the default policy. No engine runs, and the summarizer is down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.transcript.message import Message
from acmserve.server.budget.budgets import PromptOverhead
from tests.support.context.annotated import Story
from tests.support.server.acm_app import Words, make_server

NUM = 40
STAGES = ["cwl", "clear_tool_uses", "recency", "compact", "user_messages"]
DESCRIPTION = "it is so " * 8


class WordRenderer:
    """A template that writes a few words around each message."""

    def __init__(self, num_around: int) -> None:
        self.num_around = num_around

    def written(self, messages: Sequence[Message]) -> str:
        around = "<mark> " * self.num_around
        return "".join(
            f"{around}{message.get('content') or ''} {message.get('tool_calls') or ''}" for message in messages
        )

    def num_tokens(self, messages: Sequence[Message]) -> int:
        return len(Words().starts(self.written(messages)))


def marked(num: int) -> list[Message]:
    """An agent that explores for ever, marks it, and never acts."""
    story = Story()
    for number in range(num):
        story.start(f"e{number}").step(("grep", "g " * 30), text="Look .").end(DESCRIPTION)
    return story.messages


def served(messages: list[Message], renderer: Any) -> tuple[Any, list[Message]]:
    """What the request is told of its budget, and what is shown. A count of it shows the same."""
    server = make_server(down=True)
    server.budgets.default = server.budgets.parse({"max_tokens": 900, "low_watermark": 600}, "budget")
    session, beside = server.store.create("", "s"), PromptOverhead(renderer=renderer)
    state = adopt(session.state, messages).state
    counted, _ = server.preview(session, state, beside, None)
    enforced = asyncio.run(server.enforce(session, state, beside, None))
    assert counted.omissions == enforced.state.omissions, "a count and a turn differ"
    return enforced.report, render(enforced.state)


@pytest.mark.parametrize("renderer", [None, WordRenderer(2)])
def test_descriptions_go_where_nothing_else_keeps_the_budget_and_the_answer_says_so(renderer: Any) -> None:
    report, shown = served(marked(NUM), renderer)
    assert report["unmet"] is None
    assert report["tokens"] <= 900
    assert [stage["policy"] for stage in report["stages"]] == [*STAGES, "descriptions"]
    last = report["stages"][-1]
    assert last["reason"] is None
    dropped = [item for item in report["evicted"] if "drop_descriptions" in item["levels"]]
    assert last["evicted_tokens"] > 0 < len(dropped) < NUM
    texts = "".join(str(message["content"]) for message in shown)
    assert [f"[explored e{n}: " in texts for n in range(NUM)] == [n >= len(dropped) for n in range(NUM)]


def test_where_the_budget_is_kept_without_them_they_stay_and_no_stage_is_told() -> None:
    report, _ = served(marked(16), None)
    assert report["unmet"] is None
    assert report["evicted_tokens"] > 0
    assert [stage["policy"] for stage in report["stages"]] == STAGES
    assert not any("drop_descriptions" in item["levels"] for item in report["evicted"])
