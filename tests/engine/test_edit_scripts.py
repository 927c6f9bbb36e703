"""Random edit scripts of the context layer through the real engine: on a one-layer model `reuse` must equal `exact`.

The conversation is rendered by the context layer after each step and sent as bytes. So the engine has to follow
whatever the tools do to a conversation (folds side by side, summaries, restores in another order, redactions).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acmserve.context.session.fragment import Visibility
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.run import ToolCall, ToolContext, run_tool
from acmserve.context.transcript.message import Message
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.tiny_model import TINY_MODELS

MAX_DIFFERENCE = 1e-3
MAX_TOKENS = 3800
_sessions = itertools.count()


class Words:
    """A tokenizer of words with the blanks behind them."""

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in re.finditer(r"\S+\s*", text)]


BENCH = ToolContext(Words(), fidelity="reuse")


def as_tokens(messages: Sequence[Message]) -> list[int]:
    """A chat template for bytes: role, content, end of message."""
    data = b"".join(f"\x01{m['role']}\n{m['content']}\x02".encode() for m in messages)
    return [3 + byte for byte in data]


def paragraph(number: int, num_lines: int) -> str:
    return "\n".join(f"{number}.{n}: {n * n % 97} and {n * 31 % 89} were kept" for n in range(num_lines))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = TINY_MODELS[0].write(tmp_path_factory.mktemp("models"))
    with start_engine(
        path, plugin={"min_move_tokens": 16}, own_process=False, block_size=32, **TINY_SETTINGS
    ) as started:
        yield started


class Conversation:
    """One session on the engine, asked after each step in both fidelities."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session = f"script-{next(_sessions)}"
        self.history: list[dict[str, Any]] = []
        self.state = SessionState()
        self.num_moved = 0

    def say(self, text: str, role: str = "user") -> None:
        self.history.append({"role": role, "content": text})
        self.state = adopt(self.state, self.history).state

    def call(self, name: str, **arguments: object) -> None:
        outcome = run_tool(self.state, ToolCall(name, arguments), BENCH)
        if outcome.needs is not None:
            outcome = run_tool(self.state, ToolCall(name, arguments), ToolContext(Words(), supplied="Short."))
        self.state = outcome.state

    def redact(self, fragment_id: str) -> None:
        self.state = run_batch(self.state, [Edit(EditKind.REDACT, fragment_id)], BENCH, {}).state

    def check(self, forget: bool = False) -> None:
        tokens = as_tokens(render(self.state))
        moved = self.engine.ask(tokens, self.session, "reuse", salt=self.session, forget=forget)
        exact = self.engine.ask(tokens, "other", "exact", salt=self.session)
        assert moved.receipt is not None
        assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
        assert not forget or moved.receipt["moved_tokens"] == 0
        self.num_moved += moved.receipt["moved_tokens"]


def test_a_script_moves_what_stands_behind_the_folds(engine: Engine) -> None:
    talk = Conversation(engine)
    talk.say(f"BEGIN\n{paragraph(1, 30)}\nEND\n{paragraph(2, 30)}")
    talk.check()
    talk.call("fragment_context", start_marker="BEGIN", end_marker="END", num_fragments=3)
    first, second, _ = (fragment.fragment_id for fragment in talk.state.fragments)
    talk.call("fold_fragment", fragment_id=first)
    talk.call("summarize_fragment", fragment_id=second, focus="numbers")
    talk.check()
    assert talk.num_moved > 800
    talk.call("restore_fragment", fragment_id=first)
    talk.check()
    talk.redact(second)
    talk.check(forget=True)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_reuse_equals_exact_after_every_step(engine: Engine, data: st.DataObject) -> None:
    talk = Conversation(engine)
    numbers = itertools.count()
    for _ in range(data.draw(st.integers(3, 8), label="steps")):
        fragments = talk.state.fragments
        ids = st.sampled_from([f.fragment_id for f in fragments] or ["f00000"])
        step = data.draw(st.sampled_from(["say", "cut", "fold", "summarize", "restore", "search", "redact"]))
        forget = False
        if step == "say" or not talk.history:
            number = next(numbers)
            lines = paragraph(number, data.draw(st.integers(1, 25), label="lines"))
            role = data.draw(st.sampled_from(["user", "assistant"]))
            talk.say(f"BEGIN {number}\n{lines}\nEND {number}\n", role)
        elif step == "cut":
            number = data.draw(st.integers(0, len(talk.history) - 1))
            markers = {"start_marker": f"BEGIN {number}", "end_marker": f"END {number}"}
            talk.call("fragment_context", **markers, num_fragments=data.draw(st.integers(1, 4)), role="all")
        elif step == "fold":
            talk.call("fold_fragment", fragment_id=data.draw(ids))
        elif step == "summarize":
            talk.call("summarize_fragment", fragment_id=data.draw(ids), focus=data.draw(st.sampled_from(["a", "b"])))
        elif step == "restore":
            talk.call("restore_fragment", fragment_id=data.draw(ids))
        elif step == "search":
            talk.call("search_context", query="were kept", role="all", max_results=2)
        elif fragments and any(f.visibility is not Visibility.REDACTED for f in fragments):
            left = [f.fragment_id for f in fragments if f.visibility is not Visibility.REDACTED]
            talk.redact(data.draw(st.sampled_from(left)))
            forget = True
        if len(as_tokens(render(talk.state))) < MAX_TOKENS:
            talk.check(forget)
