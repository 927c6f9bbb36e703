"""The prompts that the policies of `bench trace` make, and the cache that they are compared with. Without a server."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.agent.ideal_prefix_cache import PrefixCache
from acmserve.bench.agent.plain_prompt import Plain, PromptWriter
from acmserve.bench.agent.recording import Recording, Step, record
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.trace.baselines import Remembering, Retrieving
from acmserve.bench.trace.bm25 import chunks_of, rank
from acmserve.bench.trace.policy import BUDGET_POLICIES, Budgeted, Limits, Prompt, Whole, plan_prompts
from acmserve.errors import AcmError

LIMITS = Limits(6_000, 3_600)
FidelityPlan = Callable[[str], list[Prompt]]


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
def planned(recording: Recording) -> FidelityPlan:
    """The prompts under a policy, made once."""
    return cache(lambda policy: prompts_of(recording, policy))


def prompts_of(recording: Recording, policy: str, limits: Limits = LIMITS) -> list[Prompt]:
    if policy in BUDGET_POLICIES:
        return plan_prompts(recording, Budgeted(policy, limits, recording.tools, WRITER, WORDS), WRITER)
    maker = {"bm25": Retrieving, "memagent": Remembering}[policy]
    return plan_prompts(recording, maker(limits, recording.tools, WRITER, WORDS), WRITER)


def test_without_a_policy_every_prompt_goes_on_from_the_one_before(recording: Recording) -> None:
    prompts = plan_prompts(recording, Whole(), WRITER)
    assert len(prompts) == len(recording.steps)
    assert not any(prompt.is_edited for prompt in prompts)
    assert all(len(before.tokens) < len(after.tokens) for before, after in pairwise(prompts))
    assert len(prompts[-1].tokens) > LIMITS.max_tokens


@pytest.mark.parametrize("policy", [*BUDGET_POLICIES, "bm25", "memagent"])
def test_a_policy_keeps_to_the_budget_and_edits(recording: Recording, planned: FidelityPlan, policy: str) -> None:
    prompts = planned(policy)
    assert len(prompts) == len(recording.steps)
    assert max(len(prompt.tokens) for prompt in prompts) <= LIMITS.max_tokens
    assert any(prompt.is_edited for prompt in prompts)
    # What the agent has just been told is in every prompt.
    for step, prompt in zip(recording.steps, prompts, strict=True):
        assert str(step.new[-1]["content"]) in prompt.messages[-1]["content"]


@pytest.mark.parametrize("policy", [*BUDGET_POLICIES])
def test_edits_come_in_batches_and_are_rare(planned: FidelityPlan, policy: str) -> None:
    prompts = planned(policy)
    assert 1 <= sum(prompt.is_edited for prompt in prompts) <= len(prompts) / 6


def test_the_same_recording_gives_the_same_prompts(recording: Recording, planned: FidelityPlan) -> None:
    assert prompts_of(recording, "compaction") == planned("compaction")


def test_summaries_and_memories_are_asked_for_where_they_are_needed(planned: FidelityPlan) -> None:
    for prompt in planned("compaction"):
        assert bool(prompt.asides) == (prompt.is_edited and not prompt.is_forced)
    updates = [aside for prompt in planned("memagent") for aside in prompt.asides]
    assert updates
    assert all("Update the memory" in aside.messages[0]["content"] for aside in updates)
    assert not any(prompt.asides for prompt in planned("cwl"))


def test_retrieval_shows_old_text_and_the_question(planned: FidelityPlan) -> None:
    shown = [prompt for prompt in planned("bm25") if prompt.is_edited]
    assert all("Parts of the conversation so far:" in prompt.messages[1]["content"] for prompt in shown)
    for prompt in shown:
        found = prompt.messages[1]["content"].partition("so far:\n")[2]
        assert any(f"Task {number}: say in" in found for number in (1, 2, 3))
        assert found.count("\n...\n") == 6


def test_a_budget_that_nothing_fits_into_is_refused(recording: Recording) -> None:
    with pytest.raises(AcmError, match="give a larger budget"):
        prompts_of(recording, "recency", Limits(600, 300))
    with pytest.raises(AcmError, match="give a larger one"):
        prompts_of(recording, "bm25", Limits(600, 300))


def test_what_is_fleeting_is_in_one_prompt_only_and_no_edit() -> None:
    steps = (
        Step(
            ({"role": "system", "content": "Go."}, {"role": "user", "content": "Task"}),
            fleeting=({"role": "user", "content": "turn one"},),
        ),
        Step(({"role": "assistant", "content": "Yes."}, {"role": "user", "content": "More"})),
    )
    first, second = plan_prompts(Recording("fleeting", (), steps), Whole(), WRITER)
    assert first.messages[-1] == {"role": "user", "content": "Task\nturn one"}
    assert [message["content"] for message in second.messages[1:]] == ["Task", "Yes.", "More"]
    assert not second.is_edited


def test_chunks_make_the_text_again_and_the_rare_word_wins() -> None:
    text = "one two three four five six seven"
    assert "".join(chunks_of(text, 3, WORDS)) == text
    assert len(chunks_of(text, 3, WORDS)) == 3
    assert chunks_of("", 3, WORDS) == []
    assert rank("Seven", chunks_of(text, 3, WORDS)) == [2]
    assert rank("the needle", ["the the the", "the needle", "hay"])[0] == 1
    assert rank("absent", ["the hay"]) == []


def naive_computed(prompts: list[list[int]]) -> list[int]:
    """Every prefix ever seen, one by one."""
    seen: set[tuple[int, ...]] = set()
    costs = []
    for prompt in prompts:
        found = 0
        while found < len(prompt) and tuple(prompt[: found + 1]) in seen:
            found += 1
        costs.append(len(prompt) - min(found, len(prompt) - 1) if prompt else 0)
        seen |= {tuple(prompt[:end]) for end in range(1, len(prompt) + 1)}
    return costs


@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 65_536, 2**31]), max_size=9), max_size=12))
def test_the_infinite_cache_is_that_of_every_prefix(prompts: list[list[int]]) -> None:
    cache = PrefixCache()
    assert [cache.computed(prompt) for prompt in prompts] == naive_computed(prompts)
