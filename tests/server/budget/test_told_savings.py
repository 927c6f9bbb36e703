"""What a tool tells of an edit is what it does to the prompt, by three chat templates, call and result counted.

An agent's history is cut, folded, summarized and restored at random. The prompt is written and tokenized at once before
each call and behind it. A number in a result may be off by 5 %, or by the token that the number itself is longer.
"""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

import pytest

from acmserve.context.accounting.call_tokens import call_messages
from acmserve.context.edits.find import texts_of
from acmserve.context.session.history import adopt, append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, ToolContext, ToolOutcome, run_tool
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.templates.fixtures import TemplateRenderer, tokenizer
from tests.support.templates.random_agent import RandomAgent

NUM_EDITS = int(os.environ.get("ACMSERVE_TOLD_EDITS", "12"))
TEMPLATES = ("chatml", "qwen3", "glm4")
_TOLD = re.compile(r": ([\d,]+) tokens (fewer|more), this call counted")
_REFUSED = re.compile(r"has ([\d,]+) tokens, and its marker, this call and the result have ([\d,]+)")


class Editor:
    """A session whose history an agent wrote, and whose model edits it at random."""

    def __init__(self, template: str, seed: int) -> None:
        self.renderer = TemplateRenderer(template)
        self.context = ToolContext(ServedTokenizer(tokenizer()), renderer=self.renderer)
        self.random = random.Random(seed)
        agent = RandomAgent(seed, can_interrupt=False)
        while len(agent.messages) < 24:
            agent.step()
        self.state = adopt(SessionState(digest_key=bytes(16)), [without_media(m) for m in agent.messages]).state

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[ToolOutcome, int]:
        """One call, carried out and written behind the conversation, and by how much the prompt became shorter."""
        before = self.renderer.served(render(self.state))
        supplied = " ".join(["They agreed."] * self.random.randint(1, 12))
        context = ToolContext(self.context.tokenizer, supplied=supplied, renderer=self.renderer)
        outcome = run_tool(self.state, ToolCall(name, json.dumps(arguments)), context)
        written = call_messages(name, json.dumps(arguments), outcome.result)
        self.state = append_internal(outcome.state, written)
        return outcome, before - self.renderer.served(render(self.state))

    def cut(self) -> None:
        least = self.random.choice([8, 80, 160])
        texts = [text for _, _, text in texts_of(self.state, "all") if len(text.split()) > 8]
        texts = [text for text in texts if len(text.split()) > least] or texts
        text = self.random.choice(texts)
        words = [match.span() for match in re.finditer(r"\S+", text)]
        first = self.random.randrange(len(words) // 2)
        last = self.random.randrange(len(words) // 2, len(words))
        start, end = (
            text[words[first][0] : words[min(first + 3, last)][1]],
            text[words[max(last - 3, first)][0] : words[last][1]],
        )
        number = self.random.choice([1, 1, 1, 2, 4])
        self.call(
            "fragment_context", {"start_marker": start, "end_marker": end, "role": "all", "num_fragments": number}
        )

    def edit(self) -> tuple[ToolOutcome, int]:
        fragment = self.random.choice(self.state.fragments[-12:])
        name = "restore_fragment" if fragment.hidden and self.random.random() < 0.8 else "fold_fragment"
        arguments = {"fragment_id": fragment.fragment_id}
        if name == "fold_fragment" and self.random.random() < 0.2:
            name, arguments = "summarize_fragment", arguments | {"focus": self.random.choice(["keys", "values"])}
        return self.call(name, arguments)


def without_media(message: Any) -> Any:
    content = message.get("content")
    return message if not isinstance(content, list) else {**message, "content": content[0]["text"]}


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_told_is_what_the_prompt_does(template: str) -> None:
    num_told, num_refused, worst, seed = 0, 0, 0.0, 0
    while num_told + num_refused < NUM_EDITS:
        seed += 1
        editor = Editor(template, seed)
        for _ in range(12):
            editor.cut()
            if not editor.state.fragments:
                continue
            outcome, real = editor.edit()
            told = _TOLD.search(outcome.result)
            refused = _REFUSED.search(outcome.result)
            if told is not None:
                number = int(told[1].replace(",", "")) * (1 if told[2] == "fewer" else -1)
                assert abs(number - real) <= max(1, 0.05 * abs(real)), (outcome.result, real)
                worst = max(worst, abs(number - real) / max(1, abs(real)))
                num_told += 1
            elif refused is not None:
                assert int(refused[1].replace(",", "")) <= int(refused[2].replace(",", ""))
                num_refused += 1
    print(f"{template}: {num_told} told, {num_refused} refused, at most {worst:.1%} off")
    assert num_told > NUM_EDITS // 6
