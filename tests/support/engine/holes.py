"""Edits with many holes, and the steps that an engine in this process takes for them. For tests of passes."""

from __future__ import annotations

import pytest

from tests.support.engine.edits import Tokens, text
from tests.support.engine.engine import Answer, Engine, counted_steps, scheduler_of

GAP, HOLE = 24, 12
HISTORY = text(67 * GAP, "history")
NEW = text(19, "new")


def with_holes(num_holes: int) -> Tokens:
    """The history with its second token gone and another token in `num_holes` places, and a new message."""
    context = list(HISTORY)
    for index in range(num_holes):
        place = (index + 2) * GAP
        context[place : place + HOLE] = [3 + (token + 1) % 300 for token in context[place : place + HOLE]]
    del context[1]
    return [*context, *NEW]


def steps_of(engine: Engine, context: Tokens, session: str) -> tuple[Answer, list[int]]:
    """The answer to an edited context, and the tokens that each step computed for it."""
    engine.ask(HISTORY, session, "reuse", salt=session)
    with counted_steps(engine) as sizes:
        answer = engine.ask(context, session, "reuse", salt=session)
    return answer, sizes


def one_step_a_hole(engine: Engine, context: Tokens, session: str) -> tuple[Answer, list[int]]:
    """The same where no pass is planned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_of(engine).connector.move_executor.planner, "_max_pass_tokens", lambda: 0)
        return steps_of(engine, context, session)
