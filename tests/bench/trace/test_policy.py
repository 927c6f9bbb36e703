"""The prompts that the policies of `bench trace` make. Without a server."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter
from acmserve.bench.agent.recording import RecordedStep, Recording, record
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.trace.compaction import SUMMARY_TOKENS
from acmserve.bench.trace.plan import own_limits
from acmserve.bench.trace.prompts import BUDGET_POLICIES, COMPACTION, NO_POLICY, Limits, Prompt, plan_prompts
from acmserve.errors import AcmError

LIMITS = Limits(6_000, 3_600)
PolicyPrompts = Callable[[str], list[Prompt]]


class Words:
    """A token is a word or what stands between words, in texts and in prompts."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\w+|[^\w\s]+", text)]

    def apply_chat_template(self, messages: list[Plain], **_: Any) -> str:
        return "".join(f"<{message['role']}>\n{message['content']}\n" for message in messages)

    def __call__(self, text: str, **_: Any) -> Any:
        tokens = [self._ids.setdefault(match[0], len(self._ids)) for match in re.finditer(r"\w+|[^\w\s]+", text)]
        return type("Encoded", (), {"input_ids": tokens})


WORDS = Words()
WRITER = PromptWriter(WORDS)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(make_trace(read_library(), WORDS, 3), "three tasks", seed=5)


@pytest.fixture(scope="module")
def planned(recording: Recording) -> PolicyPrompts:
    """The prompts under a policy, made once."""
    return cache(lambda policy: prompts_of(recording, policy))


def prompts_of(recording: Recording, policy: str, limits: Limits = LIMITS) -> list[Prompt]:
    return plan_prompts(recording, policy, limits, WRITER, WORDS)


def test_without_a_policy_every_prompt_goes_on_from_the_one_before(recording: Recording) -> None:
    prompts = prompts_of(recording, NO_POLICY)
    assert len(prompts) == len(recording.steps)
    assert not any(prompt.is_edited for prompt in prompts)
    assert all(len(before.tokens) < len(after.tokens) for before, after in pairwise(prompts))
    assert len(prompts[-1].tokens) > LIMITS.max_tokens


@pytest.mark.parametrize("policy", BUDGET_POLICIES)
def test_a_policy_keeps_to_the_budget_and_edits(recording: Recording, planned: PolicyPrompts, policy: str) -> None:
    prompts = planned(policy)
    assert len(prompts) == len(recording.steps)
    assert max(len(prompt.tokens) for prompt in prompts) <= LIMITS.max_tokens
    assert any(prompt.is_edited for prompt in prompts)
    # What the agent has just heard is in every prompt.
    for step, prompt in zip(recording.steps, prompts, strict=True):
        assert str(step.new[-1]["content"]) in prompt.messages[-1]["content"]


@pytest.mark.parametrize("policy", BUDGET_POLICIES)
def test_edits_come_in_batches_and_are_rare(planned: PolicyPrompts, policy: str) -> None:
    prompts = planned(policy)
    assert 1 <= sum(prompt.is_edited for prompt in prompts) <= len(prompts) / 6


def test_the_same_recording_gives_the_same_prompts(recording: Recording, planned: PolicyPrompts) -> None:
    assert prompts_of(recording, "cwl") == planned("cwl")


def test_a_budget_that_nothing_fits_into_is_refused(recording: Recording) -> None:
    with pytest.raises(AcmError, match="give a larger budget"):
        prompts_of(recording, "recency", Limits(600, 300))


def test_compaction_asks_behind_the_conversation_and_goes_on_with_the_summary(recording: Recording) -> None:
    prompts = prompts_of(recording, COMPACTION)
    asked = [number for number, prompt in enumerate(prompts) if "Summarize the work" in prompt.messages[-1]["content"]]
    assert len(asked) >= 2
    assert len(prompts) == len(recording.steps) + len(asked)
    assert max(len(prompt.tokens) for prompt in prompts) <= LIMITS.max_tokens
    for number in asked:
        before, summary, after = prompts[number - 1 : number + 2]
        assert summary.tokens[: len(before.tokens) - 3] == before.tokens[:-3], "an append, but for the end of a message"
        assert (summary.is_edited, after.is_edited) == (False, True)
        assert 0 < summary.num_answered <= SUMMARY_TOKENS
        assert "Summary of the work so far" in str(after.messages)
        assert len(after.tokens) < len(before.tokens)
        # The system, what was asked first with the summary behind it, and the newest step.
        assert [message["role"] for message in after.messages] == ["system", "user", "assistant", "user"]
        assert after.pause == 0, "the pause stands in front of the first of both"
    assert sum(prompt.pause for prompt in prompts) == pytest.approx(sum(step.pause for step in recording.steps))


def test_compaction_is_refused_where_the_last_step_is_too_large(recording: Recording) -> None:
    with pytest.raises(AcmError, match="give a larger budget"):
        prompts_of(recording, COMPACTION, Limits(600, 300))


def chatty(num_steps: int = 8) -> Recording:
    """Each prompt ends in a message that the next one leaves out, as some agents count their calls."""
    steps = []
    for number in range(num_steps):
        said = [{"role": "assistant", "content": f"I look at {number}."}] if number else []
        told = {"role": "user", "content": f"Result {number}: " + "many words of it " * 20}
        steps.append(RecordedStep((*said, told), fleeting=({"role": "user", "content": f"{99 - number} calls left"},)))
    return Recording("chatty", (), tuple(steps))


@pytest.mark.parametrize("policy", [NO_POLICY, *BUDGET_POLICIES, COMPACTION])
def test_what_is_fleeting_ends_its_own_prompt_and_no_other(policy: str) -> None:
    """It counts for the budget, and to leave it out is no edit of the policy."""
    limits = Limits(2_000, 1_000)
    prompts = prompts_of(chatty(), policy, limits)
    assert len(prompts) == 8
    assert not any(prompt.is_edited for prompt in prompts)
    for number, prompt in enumerate(prompts):
        shown = "\n".join(message["content"] for message in prompt.messages)
        assert re.findall(r"\d+ calls left", shown) == [f"{99 - number} calls left"]
        assert shown.endswith("calls left")
    assert [prompt.num_answered for prompt in prompts] == [5] * 7 + [0]


def test_a_conversation_reaches_a_budget_of_its_own_half_way(recording: Recording) -> None:
    limits = own_limits(recording, WRITER, WORDS)
    sizes = [len(prompt.tokens) for prompt in prompts_of(recording, NO_POLICY)]
    longest = max(after - before for before, after in pairwise(sizes))
    assert limits.max_tokens - sizes[0] >= (sizes[-1] - sizes[0]) // 2
    assert limits.max_tokens - sizes[0] >= longest + SUMMARY_TOKENS
    assert sizes[0] < limits.low_watermark < limits.max_tokens < sizes[-1]
    for policy in (*BUDGET_POLICIES, COMPACTION):
        prompts = prompts_of(recording, policy, limits)
        assert max(len(prompt.tokens) for prompt in prompts) <= limits.max_tokens
        assert any(prompt.is_edited for prompt in prompts)
