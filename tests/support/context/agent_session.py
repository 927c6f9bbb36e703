"""Random sessions of an agent, as a client and the server make them together: for the fuzzer of respellings.

    client    system, memory, [user, (call, result)*, answer]*, files, files' answer, user + reminder
    server    calls and results of its own in front of some answers, branches, folds, summaries, redactions, evictions

Every line has words of its own, so that a text that comes back is known, and a redacted word is found anywhere.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_between, cut_messages
from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.branches.branch_tool import BranchCall
from acmserve.context.session.branches.branching import Spent, close_branch, open_branch
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.state import Author, SessionState
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.context.transcript.parts import Role, role_of, tool_calls
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import KEY, WORDS

REMINDER = "\n<system-reminder>\nAnswer in the format that was agreed on, and name the files.\n</system-reminder>"


@dataclass
class AgentSession:
    """`sent` is what the client holds, and `secrets` are the words that were redacted."""

    state: SessionState
    sent: list[dict[str, Any]]
    secrets: set[str] = field(default_factory=set)


class Writer:
    """Writes texts. No word comes twice."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.num_words = 0

    def line(self, num_words: int = 7) -> str:
        self.num_words += num_words
        return " ".join(f"word{self.num_words - number:07}" for number in range(num_words))

    def text(self, least: int = 1, most: int = 8) -> str:
        lines = [self.line() for _ in range(self.rng.randint(least, most))]
        return self.rng.choice(["\n", "\n", "\n\n"]).join(lines) + self.rng.choice(["", "", "\n", " "])


def make_session(seed: int) -> AgentSession:
    """A session of some turns with edits of every kind."""
    rng = random.Random(seed)
    writer = Writer(rng)
    made = AgentSession(SessionState(digest_key=KEY), [])
    system = f"You help.\n{writer.text(4, 9)}\nDate: {writer.line(2)}\nGit status:\n{writer.line(3)}\n{writer.line(2)}"
    made.sent = [{"role": "system", "content": system}]
    if rng.random() < 0.5:
        memory = f"# Memory\n{writer.text(5, 9)}\n# Task\n{writer.text(3, 5)}"
        made.sent.append({"role": "user", "content": memory})
        made.sent.append({"role": "assistant", "content": f"Read: {writer.line()}"})
    for turn in range(rng.randint(2, 5)):
        _add_turn(made, writer, turn)
    if rng.random() < 0.5:
        made.sent += [
            {"role": "user", "content": f"These are the files:\n{writer.text(3, 9)}"},
            {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
        ]
    made.sent.append({"role": "user", "content": writer.text(2, 5) + REMINDER * (rng.random() < 0.5)})
    made.state = adopt(made.state, made.sent).state
    if rng.random() < 0.8:
        answer(made, {"role": "assistant", "content": writer.text(2, 5)})
    _evict(made, rng)
    edit_session(made, rng)
    made.state.check_integrity()
    return made


def _add_turn(made: AgentSession, writer: Writer, turn: int) -> None:
    rng = writer.rng
    text = writer.text(2, 6)
    made.sent.append({"role": "user", "content": text + (REMINDER if rng.random() < 0.3 else "")})
    for step in range(rng.randint(0, 3)):
        calls = [_call(f"call_{turn}_{step}_{number}", writer.line(2)) for number in range(rng.choice([1, 1, 2]))]
        message = {"role": "assistant", "content": rng.choice([None, "", writer.line()]), "tool_calls": calls}
        made.sent.append(message | ({"reasoning_content": writer.line()} if rng.random() < 0.5 else {}))
        for made_call in calls:
            result = rng.choice(["ok", writer.text(4, 12), writer.text(4, 12)])
            made.sent.append({"role": "tool", "tool_call_id": made_call["id"], "content": result})
    made.state = adopt(made.state, made.sent).state
    for number in range(rng.choice([0, 0, 1, 2])):
        _work(made, writer, f"own_{turn}_{number}")
    said = {"role": "assistant", "content": writer.text(2, 6)}
    answer(made, said | ({"reasoning_content": writer.line()} if rng.random() < 0.5 else {}))


def answer(made: AgentSession, message: dict[str, Any]) -> None:
    made.state = end_turn(append_answer(made.state, message))
    made.sent.append(message)


def _work(made: AgentSession, writer: Writer, name: str) -> None:
    """Calls of the server's own tools, or a branch in which some are made."""
    if writer.rng.random() < 0.4:
        wanted = BranchCall("find it", writer.line())
        made.state = open_branch(append_internal(made.state, _step(name, writer.line())), name, wanted)
        made.state = append_internal(made.state, _step(f"{name}_inside", writer.text(3, 6)))
        made.state = close_branch(made.state, writer.line(), Spent(1, 9))
    else:
        made.state = append_internal(made.state, _step(name, writer.text(2, 5)))


def _step(name: str, result: str) -> list[Message]:
    return [
        {"role": "assistant", "content": None, "tool_calls": [_call(name, name)]},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


def _call(call_id: str, argument: str) -> dict[str, Any]:
    function = {"name": "run", "arguments": json.dumps({"command": argument})}
    return {"id": call_id, "type": "function", "function": function}


def edit_session(made: AgentSession, rng: random.Random) -> None:
    """Folds, summaries and redactions of whole messages and of some of their lines."""
    for entry in rng.sample(range(len(made.state.entries)), min(len(made.state.entries), 12)):
        message = made.state.entries[entry].message
        found = [text for _, text in texts(message)]
        if not found or len(found[0]) < 120:
            continue
        try:
            state, fragment_id = _cut(made.state, entry, found[0], rng)
            wanted = rng.choice(["fold", "fold", "summarize", "redact", "cut"])
            if wanted == "redact" and made.state.entries[entry].origin is Author.INTERNAL:
                wanted = "fold"
            if wanted == "fold":
                state = edits.fold(state, fragment_id, "sculptor", WORDS)
            elif wanted == "summarize":
                state = edits.summarize(state, fragment_id, "keys", "Short.", "sculptor", WORDS)
            elif wanted == "redact":
                made.secrets |= set(re.findall(r"word\d+", state.fragment_text(state.fragment(fragment_id))))
                state = edits.redact(state, fragment_id)
        except InvalidRequest:
            continue
        made.state = state


def _cut(state: SessionState, entry: int, text: str, rng: random.Random) -> tuple[SessionState, str]:
    lines = text.split("\n")
    if rng.random() < 0.5 or len(lines) < 4:
        cut = cut_messages(state, entry, entry + 1, WORDS)
    else:
        first = rng.randint(0, len(lines) - 3)
        start, end = lines[first] or lines[first + 1], lines[first + 2] or lines[first + 1]
        cut = cut_between(state, start, end, 1, str(state.entries[entry].message["role"]), WORDS)
    return cut.state, cut.fragments[0].fragment_id


def _evict(made: AgentSession, rng: random.Random) -> None:
    """Whole steps are gone, calls are, or results are cleared. Sometimes a summary speaks for them."""
    state = made.state
    steps = [
        entry
        for entry, held in enumerate(state.entries)
        if role_of(held.message) is Role.ASSISTANT and held.origin is Author.CLIENT and tool_calls(held.message)
    ]
    chosen = sorted(rng.sample(steps, rng.randint(0, len(steps))))
    if not chosen or rng.random() < 0.4:
        return
    gone: list[tuple[int, int]] = []
    entries: dict[int, MessageOmissions] = {}
    for entry in chosen:
        num_calls = len(tool_calls(state.entries[entry].message))
        if rng.random() < 0.6:
            gone.append((entry, entry + 1 + num_calls))
        else:
            entries[entry] = MessageOmissions(reasoning=True, cleared=frozenset({0}))
    if rng.random() < 0.3:
        entries[chosen[-1]] = MessageOmissions(True, True, frozenset(range(num_calls)), summary="What went before.")
        gone = [span for span in gone if span[0] != chosen[-1]]
    merged: list[tuple[int, int]] = []
    for start, end in gone:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    made.state = replace(state, omissions=hide_closed(Omissions(tuple(merged), entries), state.branches))
