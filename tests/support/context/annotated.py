"""Annotated histories for the tests of episodes: written by hand with `Story`, or drawn by Hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.token_counts import TokenCounts

TOOLS = ("grep", "glob", "read", "bash", "edit", "write")


def count(text: str) -> int:
    """One token for each word."""
    return len(text.split())


def token_counts_of(messages: list[Message]) -> TokenCounts:
    token_counts = TokenCounts(count, message_overhead=2, call_overhead=3, base_tokens=7)
    token_counts.extend(messages)
    return token_counts


def call(tool: str, number: int, /, **arguments: Any) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


class Story:
    """A conversation that grows. Results of `delimiter` are those of the tool itself."""

    def __init__(self, prologue: bool = True) -> None:
        self.messages: list[Message] = []
        self.scope = Scope()
        self.num_calls = 0
        if prologue:
            self.messages += [{"role": "system", "content": "Be helpful ."}, {"role": "user", "content": "Fix it ."}]

    def user(self, text: str = "Go on .") -> Story:
        self.messages.append({"role": "user", "content": text})
        return self

    def say(self, text: str, reasoning: str = "") -> Story:
        said: dict[str, Any] = {"role": "assistant", "content": text}
        self.messages.append(said | ({"reasoning": reasoning} if reasoning else {}))
        return self

    def step(self, *calls: tuple[str, Any], text: str = "", reasoning: str = "", answered: bool = True) -> Story:
        """An assistant's message: each call is (tool, its result), or ("delimiter", its arguments)."""
        made, results = [], []
        for name, value in calls:
            self.num_calls += 1
            if name == "delimiter":
                marked = run_delimiter(self.scope, value)
                self.scope, result = (marked.scope if answered else self.scope), marked.result
                made.append(call(name, self.num_calls, **value))
            else:
                made.append(call(name, self.num_calls, path="a b c"))
                result = value
            results.append({"role": "tool", "tool_call_id": made[-1]["id"], "content": result})
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": made}
        self.messages += [message | ({"reasoning_content": reasoning} if reasoning else {})]
        self.messages += results if answered else []
        return self

    def start(self, name: str, *depends_on: str, **said: Any) -> Story:
        arguments: dict[str, Any] = {"action": "start", "name": name, "type": "act" if depends_on else "expl"}
        if depends_on:
            arguments["dependencies"] = list(depends_on)
        return self.step(("delimiter", arguments), **said)

    def end(self, description: str = "", **said: Any) -> Story:
        arguments = {"action": "end"} | ({"description": description} if description else {})
        return self.step(("delimiter", arguments), **said)

    def expl(self, name: str, *results: tuple[str, str], reasoning: str = "") -> Story:
        """A whole exploration."""
        self.start(name, reasoning=reasoning)
        for result in results:
            self.step(result, text="Look .", reasoning=reasoning)
        return self.end(f"found {name} here")

    def act(self, name: str, *depends_on: str, results: tuple[tuple[str, str], ...] = ()) -> Story:
        """A whole act."""
        self.start(name, *depends_on)
        for result in results:
            self.step(result, text="Do .")
        return self.end()


_words = st.integers(0, 12).map(lambda number: " ".join(["w"] * number))
_plain_calls = st.tuples(st.sampled_from(TOOLS), _words)


@st.composite
def _marks(draw: st.DrawFn, names: list[str]) -> tuple[str, dict[str, Any]]:
    """A call of delimiter: mostly one of the four canonical ones, sometimes wrong."""
    kind = draw(st.sampled_from(["start-expl", "end-expl", "end-act", "start-act", "start-act", "end-expl"]))
    if kind.startswith("end"):
        return "delimiter", {"action": "end"} | ({"description": draw(_words) + " x"} if kind == "end-expl" else {})
    fresh = f"e{len(names)}"
    name = draw(st.sampled_from([fresh, fresh, fresh, *(names[:1])]))
    names.append(fresh)
    arguments: dict[str, Any] = {"action": "start", "name": name, "type": "expl"}
    if kind == "start-act":
        arguments["type"] = "act"
        arguments["dependencies"] = draw(st.lists(st.sampled_from(names), max_size=3))
    return "delimiter", arguments


@st.composite
def histories(draw: st.DrawFn, max_steps: int = 14) -> list[Message]:
    """A conversation with prologue, episodes, gaps, wrong and parallel calls, calls without results, and users."""
    story = Story(prologue=draw(st.booleans()))
    names: list[str] = []
    for _ in range(draw(st.integers(0, max_steps))):
        kind = draw(st.sampled_from(["mark", "mark", "mark", "tools", "tools", "mixed", "user", "say", "open"]))
        reasoning = draw(st.sampled_from(["", "", "I think so ."]))
        text = draw(st.sampled_from(["", "Now this .", " \n"]))
        if kind == "user":
            story.user()
        elif kind == "say":
            story.say(draw(_words) + " .", reasoning)
        else:
            calls: list[tuple[str, Any]] = draw(st.lists(_plain_calls, min_size=kind != "mark", max_size=2))
            if kind in ("mark", "mixed"):
                calls.insert(draw(st.integers(0, len(calls))), draw(_marks(names)))
            if kind == "mixed":
                calls.append(draw(_marks(names)))
            story.step(*calls, text=text, reasoning=reasoning, answered=kind != "open")
    return story.messages
