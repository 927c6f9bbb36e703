"""The limit of a task that needs no fold has room for what models say: long answers, and needless folds.

So it punishes neither. A needless fold loses all the same, since nobody can read what it hid.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.bench.learner.decisions import all_decisions, session_script
from acmserve.bench.learner.sessions import MAX_ANSWER_TOKENS, SUITE_FILE
from acmserve.bench.learner.tasks import SAID_TOKENS, TURN_TOKENS, held_out_tasks, training_tasks
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare
from acmserve.training.fold_or_fail import FoldOrFail

NUM = 40


class Counting:
    """Counts a chat with the tools of the suite as the template shows it."""

    def __init__(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(prepare())
        self._tokenizer.chat_template = TOOLS_TEMPLATE.read_text(encoding="utf-8")
        tools = json.loads(SUITE_FILE.read_text(encoding="utf-8"))["tools"]
        names = ("name", "description", "parameters")
        self._tools = [{"type": "function", "function": {name: tool[name] for name in names}} for tool in tools]
        self.prompt_tokens = self.chat([{"role": "user", "content": "Hello."}], is_asking=True)

    def text(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def chat(self, messages: list[dict[str, Any]], *, is_asking: bool = False) -> int:
        asked = {"add_generation_prompt": is_asking, "tokenize": False}
        return self.text(self._tokenizer.apply_chat_template(messages, tools=self._tools, **asked))


@pytest.fixture(scope="module")
def counting() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def short_tasks(counting: Counting) -> list[FoldOrFail]:
    made = [make(NUM, counting.text, counting.prompt_tokens) for make in (training_tasks, held_out_tasks)]
    return [task for some in made for task in some if not task.needs_fold]


def longest_answers(counting: Counting, task: FoldOrFail) -> int:
    """Tokens of a session whose answers are all as long as they may be."""
    messages = [
        {"role": role, "content": content}
        for turn in task.turns
        for role, content in (("user", turn), ("assistant", ""))
    ]
    return counting.chat(messages) + len(task.turns) * MAX_ANSWER_TOKENS


def test_an_answer_at_its_limit_fits(counting: Counting, short_tasks: list[FoldOrFail]) -> None:
    """The control: the 70 tokens of older runs had no room for it."""
    assert SAID_TOKENS == MAX_ANSWER_TOKENS + TURN_TOKENS
    for task in short_tasks:
        tokens = longest_answers(counting, task)
        assert tokens <= task.max_tokens
        assert tokens > task.max_tokens - (SAID_TOKENS - 70) * len(task.turns)


def test_needless_folds_fit_too_and_leave_no_answer(counting: Counting, short_tasks: list[FoldOrFail]) -> None:
    """So the scripted policy that folds everything is due 0 there, in each task."""
    for task in short_tasks:
        messages: list[dict[str, Any]] = []
        script = session_script(task, all_decisions(task))
        for turn, lines in zip(task.turns, script, strict=True):
            messages.append({"role": "user", "content": turn})
            for line in lines:
                messages.append({"role": "assistant", "content": line})
                if line.startswith("<tool_call>"):
                    messages.append({"role": "tool", "content": "Hidden: f1."})
        for place in range(len(task.documents)):
            shown = [message for message in messages if message["role"] == "user"]
            shown[place]["content"] = "[f1: 60 tokens]"
        assert counting.chat(messages) <= task.max_tokens
        assert not task.is_right(script[-1][0])
