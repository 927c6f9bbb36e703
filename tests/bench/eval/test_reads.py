"""A text in parts, as results of calls, and what no budget may take of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.bench.eval.reads import NUM_PARTS, PART_TOKENS, as_reads, split, without_reads
from acmserve.bench.eval.tasks.registry import TASKS, make_samples
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.registry import POLICIES
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import PLACEHOLDER, render_without
from acmserve.context.transcript.outline import Outline
from tests.support.context.annotated import token_counts_of


@pytest.mark.parametrize("text", ["one two\nthree four five " * 40, "x" * 1000, "a b\n" * 30_000, "short", ""])
def test_parts_make_up_the_text(text: str) -> None:
    parts = split(text)
    assert "".join(parts) == text
    assert all(parts)
    assert len(parts) >= min(NUM_PARTS, len(text))
    assert max(map(len, parts), default=0) <= 1.1 * max(4 * PART_TOKENS, len(text) / NUM_PARTS)
    if "\n" in text:
        assert all(part.endswith(("\n", " ")) for part in parts)


def test_the_question_and_what_stands_around_the_reads_stays() -> None:
    (sample,) = make_samples(TASKS["babilong"], 1, 0, {"tokens": (300,)})
    reads = as_reads(sample)
    assert [one["role"] for one in without_reads(sample)] == ["user", "assistant"] * 4 + ["user"]
    assert without_reads(sample)[-1]["content"] == sample.question
    assert len(reads) == 9 + 2 * NUM_PARTS
    assert reads[0]["content"] == "Read parts 1 to 2."
    odd = replace(sample, context="a\n" * 36_000)
    assert len(split(odd.context)) == 18
    assert len(split("a\n" * 18_000)) == 9
    said = [one["content"] for one in as_reads(replace(sample, context="a\n" * 18_000)) if one["role"] == "user"]
    assert said[-2:] == ["Read part 9.", sample.question]
    (spoken,) = make_samples(TASKS["mrcr"], 1, 0, {"needles": (2,), "tokens": (300,)})
    assert as_reads(spoken) == spoken.messages()
    assert without_reads(spoken) == [{"role": "user", "content": spoken.question}]


def shown_reads(sample: EvalSample, policy: str, share: float) -> int:
    """How many of the parts are still shown under a budget of this share of the reads, on top of what stays."""
    messages = as_reads(sample)
    least, most = (view_of(some).shown_tokens() for some in (without_reads(sample), messages))
    view = view_of(messages)
    plan = POLICIES[policy]().plan(view, least + int(share * (most - least)))
    shown = render_without(messages, plan.omissions)
    return sum(one["role"] == "tool" and one["content"] != PLACEHOLDER for one in shown)


def view_of(messages: list[Message]) -> ConversationView:
    return ConversationView(Outline(messages), token_counts_of(messages))


@pytest.mark.parametrize("policy", ["chain", "cwl", "pi-cwl", "recency"])
@pytest.mark.parametrize("num_tokens", [125, 250, 1_000, 20_000])
def test_under_a_budget_of_60_per_cent_a_policy_leaves_a_part_of_the_text(policy: str, num_tokens: int) -> None:
    """A policy that leaves nothing of the text would be judged by the answers to an empty prompt."""
    (sample,) = make_samples(TASKS["babilong"], 1, 0, {"tokens": (num_tokens,)})
    num_parts = len(split(sample.context))
    assert 0.25 * num_parts <= shown_reads(sample, policy, 0.6) < num_parts
