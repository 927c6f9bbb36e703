"""Random sessions with what was really served, and the record that a server would write of them.

Every sampled token has an id of its own, so that a test can tell whose it is wherever it turns up.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST_SAMPLED = 1000
HEADER = [3]
EDITS = ("fragment", "fold", "restore", "summarize")
OTHER_CALLS = ("search", None)


@dataclass
class Served:
    """One completion as the engine saw it."""

    number: int
    thread: str
    parent: int | None
    sample: int
    prompt: list[int]
    token_ids: list[int]
    calls: list[tuple[str, str | None]]
    format_error: str | None = None

    @property
    def sequence(self) -> list[int]:
        return self.prompt + self.token_ids

    def logprob(self, place: int) -> float:
        return -(self.token_ids[place] % 97) / 8


@dataclass
class Session:
    """Messages as token ids, the completions made of them, and the edits in between."""

    rng: random.Random
    session_id: str = "session"
    completions: list[Served] = field(default_factory=list)
    operations: list[dict[str, object]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    next_id: int = FIRST_SAMPLED

    def serve(
        self,
        context: Sequence[Sequence[int]],
        calls: Sequence[tuple[str, str | None]] = (),
        *,
        thread: str = "main",
        parent: int | None = None,
        sample: int = 0,
        num_tokens: int | None = None,
        format_error: str | None = None,
    ) -> Served:
        """Serve the context, and sample behind it."""
        prompt = [token for message in context for token in message] + HEADER
        size = self.rng.randint(1, 6) if num_tokens is None else num_tokens
        ids = list(range(self.next_id, self.next_id + size))
        self.next_id += size
        served = Served(len(self.completions), thread, parent, sample, prompt, ids, list(calls), format_error)
        self.completions.append(served)
        return served

    def operate(self, by: str, name: str) -> None:
        self.after.append(len(self.completions) - 1)
        self.operations.append(
            {
                "kind": "operation",
                "number": len(self.operations),
                "after": len(self.completions) - 1,
                "by": by,
                "name": name,
                "arguments": {},
                "saved_tokens": None,
            }
        )

    def text(self, low: int = 2, high: int = 8) -> list[int]:
        """A message of somebody else."""
        return [self.rng.randint(10, FIRST_SAMPLED - 1) for _ in range(self.rng.randint(low, high))]

    def record(self) -> list[str]:
        """The lines of the record, version 1."""
        lines: list[dict[str, object]] = [
            {"kind": "header", "version": 1, "session_id": self.session_id, "model": "toy", "suite": None}
        ]
        for served in self.completions:
            lines += [one for one, after in zip(self.operations, self.after, strict=True) if after == served.number - 1]
            lines.append(self._line(served))
        lines += [
            one for one, after in zip(self.operations, self.after, strict=True) if after == len(self.completions) - 1
        ]
        return [json.dumps(line) for line in lines]

    def _line(self, served: Served) -> dict[str, object]:
        before = [] if served.parent is None else self.completions[served.parent].sequence
        kept = 0
        while kept < min(len(before), len(served.prompt)) and before[kept] == served.prompt[kept]:
            kept += 1
        return {
            "kind": "completion",
            "number": served.number,
            "thread": served.thread,
            "parent": served.parent,
            "sample": served.sample,
            "kept_tokens": kept,
            "prompt_token_ids": served.prompt[kept:],
            "token_ids": served.token_ids,
            "logprobs": [served.logprob(place) for place in range(len(served.token_ids))],
            "finish_reason": "stop",
            "format_error": served.format_error,
            "tool_calls": [{"name": name, "operation": operation} for name, operation in served.calls],
        }


def random_session(seed: int) -> Session:
    """A random session: edits, summaries, branches and samples, some of them or all.

    There may be edits of the model (several a completion, in the last step, none), and summaries by somebody else.
    There may be reasoning that the template drops, branches, and several samples of one prompt.
    """
    rng = random.Random(seed)
    session = Session(rng, f"session-{seed}")
    edits = rng.choice((0.0, 0.3, 0.8))
    others = rng.choice((0.0, 0.3))
    drops_reasoning = rng.random() < 0.2
    context, parent = [session.text(), session.text(4, 20)], None
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.1:
            for sample in range(1, rng.randint(2, 4)):
                session.serve(context, parent=parent, sample=sample, thread=f"main#{sample}")
        calls = _calls(rng, edits)
        last = session.serve(context, calls, parent=parent)
        context.append([*HEADER, *(last.token_ids[1:] if drops_reasoning else last.token_ids)])
        for _, operation in calls:
            context.append(session.text())
            if operation in EDITS:
                session.operate("model", operation)
                if operation != "fragment":
                    _edit(session, context)
        parent = last.number
        if rng.random() < 0.15:
            parent_of_branch = parent
            branch = [*context, session.text()]
            for _ in range(rng.randint(1, 3)):
                inside = session.serve(branch, _calls(rng, edits), thread="branch-1", parent=parent_of_branch)
                branch += [[*HEADER, *inside.token_ids], session.text()]
                parent_of_branch = inside.number
            context.append(session.text())
        if rng.random() < others:
            session.operate("summary", "summarize")
            _edit(session, context)
        if rng.random() < 0.5:
            context.append(session.text())
    return session


def _calls(rng: random.Random, edits: float) -> list[tuple[str, str | None]]:
    if rng.random() < edits:
        return [(f"{name}_fragment", name) for name in rng.choices(EDITS, k=rng.randint(1, 3))]
    return [("grep", name) for name in rng.choices(OTHER_CALLS, k=rng.randint(0, 2))]


def _edit(session: Session, context: list[list[int]]) -> None:
    """Another text in place of one message."""
    context[session.rng.randrange(len(context))] = session.text(1, 3)


def single_sessions(num: int) -> list[Session]:
    """Random sessions that sampled each prompt once, `session-0` and so on."""
    found: list[Session] = []
    for seed in itertools.count():
        session = random_session(seed)
        if not any(one.sample for one in session.completions):
            session.session_id = f"session-{len(found)}"
            found.append(session)
        if len(found) == num:
            break
    return found
