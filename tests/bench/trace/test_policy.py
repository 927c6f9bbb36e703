"""The prompts that the policies of `bench trace` make. Without a server."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter
from acmserve.bench.agent.recording import Recording, record
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.trace.prompts import BUDGET_POLICIES, NO_POLICY, Limits, Prompt, plan_prompts
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
