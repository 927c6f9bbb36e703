"""Sessions of a thousand steps under the default budget. One prompt of ten is counted, and each behind an eviction.

    an agent's step --> meter --> over 80,000? --> policy, low watermark --> messages as shown --> counted by themselves

Agents mark all that they do, or one thing, or nothing. They call tools, a shell alone, or write commands as text.
Each marked exploration leaves a description, and all descriptions together are several budgets.
ACMSERVE_EXPLORATIONS is the number of explorations of the long form (`make explorations`). Nothing here starts an
engine, and a token is a word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction import registry
from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.eviction.cwl import Cwl
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.history import append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import AUTO, ObservationRule
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.server.budget.fitting import PromptFitting
from tests.context.eviction.test_context_meter import MEASURED, new_meter, state_of
from tests.support.context.annotated import Story, call
from tests.support.context.valid_chat import orphans, weigh

NUM_EXPLORATIONS = int(os.environ.get("ACMSERVE_EXPLORATIONS", "500"))
MAX_TOKENS = 80_000
DESCRIPTION = "found that it is so " * 48
FITTING = PromptFitting(None, TAKES_ALL)
CONTROL = "tests.context.eviction.test_long_sessions:LastingNotes"


class LastingNotes(Cwl):
    """The control. Algorithm 1 as the paper has it: marked episodes alone, and their descriptions stay for ever."""

    summary: ClassVar[str] = "marked episodes alone, whose descriptions stay"

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        return self.plan_episodes(view, target)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", {})
    registry.load(CONTROL)


def marking(num: int) -> Iterator[list[Message]]:
    """An agent that explores for ever and marks it. It never acts, so nothing it marks is an act."""
    story = Story()
    yield story.messages[:]
    for number in range(num):
        begun = len(story.messages)
        story.start(f"e{number}").step(("grep", "g " * 600), text="Look .").end(DESCRIPTION)
        yield story.messages[begun:]


def unmarking(num: int) -> Iterator[list[Message]]:
    """An agent that never calls `delimiter`: reads, and now and then an edit and a word of the user."""
    story = Story()
    yield story.messages[:]
    for number in range(num):
        begun = len(story.messages)
        story.step(("grep", "g " * 400), text="Look .").step(("read", "r " * 400), text="Read .")
        if number % 3 == 2:
            story.step(("edit", "e " * 100), text="Do .")
        if number % 50 == 49:
            story.user()
        yield story.messages[begun:]


def texting(num: int) -> Iterator[list[Message]]:
    """An agent without tools: each command stands in its text, and what the command printed comes from the user."""
    yield [{"role": "system", "content": "Be helpful ."}, {"role": "user", "content": "Fix it ."}]
    for number in range(num):
        command = f"cat file-{number}" if number % 3 != 2 else f"sed -i s/a/b/ file-{number}"
        said = {"role": "assistant", "content": f"THOUGHT: Look .\n\n```bash\n{command}\n```"}
        printed = f"<returncode>0</returncode>\n<output>\n{'r ' * 600}\n</output>"
        yield [said, {"role": "user", "content": printed}]


def bash_only(num: int) -> Iterator[list[Message]]:
    """An agent with `bash` alone. It edits by `sed -i` and by heredocs, so no tool's name says that it acts."""
    story = Story()
    yield story.messages[:]
    edit = "sed -i s/a/b/ f", "cat > f <<'END'\n" + "w " * 200 + "\nEND"
    for number in range(num):
        begun = len(story.messages)
        story.step(("bash", "r " * 600), text="Look .")
        if number % 3 == 2:
            story.step(("bash", "e " * 40), text="Do .")
            story.messages[-2]["tool_calls"] = [call("bash", story.num_calls, command=edit[number % 2])]
        yield story.messages[begun:]


def marks_once(num: int) -> Iterator[list[Message]]:
    """An agent that marks its first exploration and forgets about it. No word of the user divides what follows."""
    story = Story()
    yield story.messages[:]
    for number in range(num):
        begun = len(story.messages)
        if number == 0:
            story.start("first").step(("grep", "g " * 600), text="Look .").end(DESCRIPTION)
        story.step(("read", "r " * 600), text="Read .")
        if number % 3 == 2:
            story.step(("edit", "e " * 100), text="Do .")
        yield story.messages[begun:]


@dataclass
class Walked:
    """What was seen on the way. `largest` is the largest prompt, as it was counted from its messages."""

    largest: int = 0
    num_unmet: int = 0
    num_evictions: int = 0


def taken_in(state: SessionState, messages: list[Message]) -> SessionState:
    """The state with new messages, of which the server's own rule finds those that are observations."""
    before, grown = state.entries[-1].message, append_internal(state, messages)
    if not any(AUTO.takes(message, last) for last, message in pairwise([before, *messages])):
        return grown
    entries = list(grown.entries)
    for index in range(len(state.entries), len(entries)):
        is_one = AUTO.takes(entries[index].message, entries[index - 1].message)
        entries[index] = replace(entries[index], is_observation=is_one)
    return replace(grown, entries=tuple(entries))


def walk(steps: Iterator[list[Message]], policy: str, every: int = 10) -> Walked:
    """Follow an agent until its budget breaks. One of `every` prompts is counted, and each behind an eviction."""
    budget, meter, walked = parse_budget({"policy": policy}, window=131_072), new_meter(), Walked()
    assert budget.max_tokens == MAX_TOKENS
    state = meter.follow(state_of(next(steps)))
    for number, messages in enumerate(steps):
        state = meter.follow(taken_in(state, messages))
        is_over = meter.exceeds(budget)
        if is_over:
            plan = meter.plan(budget, MEASURED)
            state = meter.carry_out(plan, state)
            if registry.has_last_resorts(budget):
                plan, state = FITTING.take_last_resorts(meter, state, budget, plan)
            walked.num_evictions += 1
            walked.num_unmet += plan.unmet is not None
        if is_over or number % every == 0:
            shown = render(state)
            walked.largest = max(walked.largest, weigh(shown))
            assert not orphans(shown)
            if walked.largest > MAX_TOKENS:
                return walked
        # What was served is known, so nothing is set aside for what a template might add.
        counted = meter.counted()
        meter.calibrate(counted, counted.num_tokens)
    meter.check_integrity()
    return walked


Agent = Callable[[int], Iterator[list[Message]]]


EVER = (marking, unmarking, texting, bash_only, marks_once)


@pytest.mark.parametrize("policy", ["cwl", "pi-cwl", "chain"])
@pytest.mark.parametrize("agent", EVER)
def test_a_session_without_end_stays_under_its_budget(agent: Agent, policy: str) -> None:
    walked = walk(agent(NUM_EXPLORATIONS), policy)
    assert walked.largest <= MAX_TOKENS
    assert walked.num_unmet == 0
    assert walked.num_evictions > 3
    assert walked.largest > MAX_TOKENS / 2


@pytest.mark.parametrize("agent", [marking, unmarking, marks_once])
def test_without_the_second_level_and_inferred_episodes_the_budget_breaks(agent: Agent) -> None:
    walked = walk(agent(NUM_EXPLORATIONS), CONTROL)
    assert walked.largest > MAX_TOKENS
    assert walked.num_unmet > 0


def test_where_the_output_of_commands_counts_as_words_of_the_user_the_budget_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of `texting`."""
    monkeypatch.setattr(f"{__name__}.AUTO", ObservationRule("off"))
    walked = walk(texting(NUM_EXPLORATIONS), "cwl")
    assert walked.largest > MAX_TOKENS
    assert walked.num_unmet > 0
