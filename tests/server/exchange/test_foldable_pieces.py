"""The messages of a prompt are found by their tokens, whatever the template writes around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from acmserve.context.transcript.message import Message
from acmserve.plan.request import MAX_FOLDABLE, SessionParams
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.foldable_pieces import PieceFinder
from acmserve.server.exchange.served_prompts import ServedContext
from tests.server.exchange.test_exchange import RECEIPT, Output

LONG = "The quick brown fox jumps over the lazy dog, and then it rests beside the old stone wall. "
MESSAGES: list[Message] = [
    {"role": "system", "content": "You are an agent that repairs programs and says what was done."},
    {"role": "user", "content": "Fix the bug in the parser of the configuration file."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "read"}}]},
    {"role": "tool", "content": "\n  import os\n" + "x = os.environ['HOME']\n" * 20, "tool_call_id": "1"},
    {"role": "assistant", "content": "The variable HOME is missing in the environment of the service."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Then look at this report, too."}, {"type": "text", "text": LONG}],
    },
]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder)


def written(messages: list[Message]) -> str:
    """A template that strips texts and writes calls in its own words."""
    parts = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        parts.append(f"<|im_start|>{message['role']}\n{(content or '<call>read</call>').strip()}<|im_end|>\n")
    return "".join(parts) + "<|im_start|>assistant\n"


def test_pieces_begin_where_the_messages_do(tokenizer: Any) -> None:
    prompt = tokenizer.encode(written(MESSAGES))
    spans = PieceFinder(tokenizer).find(prompt, MESSAGES)
    starts = [tokenizer.decode(prompt[start : start + 30]) for start, _ in spans]
    for text in ("Fix the bug", "import os", "The variable HOME", "Then look at this"):
        assert any(start.startswith(text) for start in starts), text
    ends = [tokenizer.decode(prompt[max(0, start - 8) : start]) for start, _ in spans]
    assert any(end.endswith("what was done.") for end in ends), "the user's message may be left out as a whole"
    assert all(0 < start < end <= len(prompt) for start, end in spans)
    assert not any(start.startswith("You are an agent") for start in starts), "nobody folds the system prompt"
    tool = next(span for span, start in zip(spans, starts, strict=True) if start.startswith("import os"))
    assert tool[1] - tool[0] > 100, "a piece reaches to the next one: that is its weight"


def test_equal_results_are_told_apart_by_their_order(tokenizer: Any) -> None:
    messages: list[Message] = [{"role": "tool", "content": LONG}] * 5
    prompt = tokenizer.encode(written(messages))
    spans = PieceFinder(tokenizer).find(prompt, messages)
    begins = [start for start, _ in spans if tokenizer.decode(prompt[start : start + 9]).startswith("The quick brown")]
    assert len(begins) == 5


def test_a_text_that_the_template_rewrites_is_passed_over(tokenizer: Any) -> None:
    prompt = tokenizer.encode(written(MESSAGES).replace("import os", "IMPORT OS").replace("HOME", "home"))
    spans = PieceFinder(tokenizer).find(prompt, MESSAGES)
    assert any(tokenizer.decode(prompt[start : start + 12]).startswith("Then look") for start, _ in spans)


def test_of_many_pieces_the_largest_are_named(tokenizer: Any) -> None:
    messages: list[Message] = [
        {"role": "tool", "content": f"Result number {number} of the search. " + ("more " * 30 if number % 2 else "")}
        for number in range(900)
    ]
    spans = PieceFinder(tokenizer).find(tokenizer.encode(written(messages)), messages)
    assert len(spans) == MAX_FOLDABLE
    assert min(end - start for start, end in spans) > 30


contents = st.one_of(st.none(), st.text(max_size=80), st.just(LONG))


@given(st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant", "system", "odd"]), contents), max_size=6))
def test_whatever_the_messages_pieces_lie_in_the_prompt(tokenizer: Any, pairs: list[tuple[str, str | None]]) -> None:
    messages: list[Message] = [{"role": role, "content": content} for role, content in pairs]
    prompt = tokenizer.encode(written(messages))
    for spans in (PieceFinder(tokenizer).find(prompt, messages), PieceFinder(tokenizer).find([], messages)):
        assert list(spans) == sorted(set(spans))
        assert all(0 <= start < end <= len(prompt) for start, end in spans)


def test_an_exchange_names_pieces_until_the_engine_has_no_use_for_them(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    prompt = {"type": "token", "prompt_token_ids": tokenizer.encode(written(MESSAGES))}

    def send() -> Exchange:
        exchange = Exchange(SessionParams("s"), served=lambda: context, messages=MESSAGES, remembers=False)
        assert exchange.prepare(prompt, 10_000) == prompt
        return exchange

    hybrid = {"edit_boundaries": {"kept": 2, "wanted": 3, "kv_bytes": 4096}}
    for boundaries, named_next in ((hybrid, True), ({"edit_boundaries": None}, False)):
        exchange = send()
        assert len(exchange.params.as_acm()["foldable"]) >= 4
        exchange.receive(Output("yes", finished=True, kv_transfer_params={"acm": {"receipt": RECEIPT | boundaries}}))
        assert bool(send().params.foldable) is named_next
