"""In which form a summary is asked for, and what the answer says of the form that was not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from acmserve.context.eviction.compact import Summary
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.budget.conversation_summary import (
    WROTE_NOTHING,
    LivePrompt,
    SummaryAsked,
    ask_for_summary,
    with_instruction,
)
from acmserve.server.budget.enforcement import summary_json
from acmserve.server.models.summarizer import HttpSummarizer, ServedSummarizer

RECEIPT = {"kept_tokens": 90, "moved_tokens": 0, "computed_tokens": 12}
ASKED = SummaryAsked([{"role": "user", "content": "Why?"}], 100, "user: Why?", 4, "Only names.", 2)


def live_prompt(model: str = "m") -> LivePrompt:
    def never(messages: Sequence[Message]) -> Any:
        raise AssertionError("no request is made here")

    return LivePrompt(model, never, never)


@dataclass
class Writer:
    """Says what it was told to, and remembers in which form it was asked."""

    behind: Summary | Exception
    max_tokens: int = 50
    forms: list[str] = field(default_factory=list)

    def live_refusal(self, model: str) -> str:
        return "" if model == "m" else "another model writes"

    def live_instruction(self, instructions: str = "") -> str:
        return instructions

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        self.forms.append("appended")
        assert (shown, instructions) == (ASKED.shown, ASKED.instructions)
        if isinstance(self.behind, Exception):
            raise self.behind
        return self.behind

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        self.forms.append("flattened")
        assert (text, num_tokens, instructions) == ("user: Why?", 6, "Only names.")
        return Summary("From the text.", 30, 4)


def asked(writer: Writer, live: LivePrompt | None, window: int = 1_000) -> Summary:
    return asyncio.run(ask_for_summary(writer, ASKED, live, window))


def test_behind_the_conversation_the_receipt_is_told() -> None:
    writer = Writer(Summary("Because.", 102, 3, RECEIPT))
    summary = asked(writer, live_prompt())
    assert (summary.text, writer.forms) == ("Because.", ["appended"])
    assert summary_json(summary) == {"input_tokens": 102, "output_tokens": 3, "form": "appended", **RECEIPT}


@pytest.mark.parametrize(
    ("behind", "live", "window", "reason", "forms"),
    [
        (Summary("x"), None, 1_000, "nothing is known", ["flattened"]),
        (Summary("x"), live_prompt("other"), 1_000, "another model writes", ["flattened"]),
        (Summary("x"), live_prompt(), 351, "the window is 351", ["flattened"]),
        (Summary(" \n"), live_prompt(), 1_000, WROTE_NOTHING, ["appended", "flattened"]),
        (Unavailable("roles must alternate"), live_prompt(), 1_000, "must alternate", ["appended", "flattened"]),
        (InvalidRequest("messages", "too long"), live_prompt(), 1_000, "too long", ["appended", "flattened"]),
    ],
)
def test_where_that_cannot_be_the_text_is_read_and_the_reason_told(
    behind: Any, live: LivePrompt | None, window: int, reason: str, forms: list[str]
) -> None:
    writer = Writer(behind)
    summary = asked(writer, live, window)
    assert (summary.text, writer.forms) == ("From the text.", forms)
    told = summary_json(summary)
    assert told is not None
    assert told["form"] == "flattened"
    assert reason in told["reason"]
    assert "computed_tokens" not in told


def test_only_the_model_of_the_conversation_is_asked_behind_it() -> None:
    state: Any = object()
    assert ServedSummarizer(state, "", 50).live_refusal("m") == ""
    assert ServedSummarizer(state, "m", 50).live_refusal("m") == ""
    assert "small" in ServedSummarizer(state, "small", 50).live_refusal("m")
    assert "another server" in HttpSummarizer("http://127.0.0.1:9", "m", 50).live_refusal("m")


@pytest.mark.parametrize(
    ("messages", "roles", "last"),
    [
        ([], ["user"], "Sum up."),
        ([{"role": "user", "content": "Why?"}], ["user"], "Why?\n\nSum up."),
        ([{"role": "user", "content": None}], ["user"], "\n\nSum up."),
        ([{"role": "assistant", "content": "So."}], ["assistant", "user"], "Sum up."),
        ([{"role": "tool", "tool_call_id": "c", "content": "4"}], ["tool", "user"], "Sum up."),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}],
            ["user"],
            [{"type": "text", "text": "Why?"}, {"type": "text", "text": "\n\nSum up."}],
        ),
    ],
)
def test_no_two_messages_of_the_user_stand_in_a_row(messages: list[Any], roles: list[str], last: Any) -> None:
    before = [dict(message) for message in messages]
    made = with_instruction(messages, "Sum up.")
    assert [message["role"] for message in made] == roles
    assert made[-1]["content"] == last
    assert messages == before
