"""What `GET .../context` shows of fragments in the arguments of calls: where they are, and what a fold saves."""

from __future__ import annotations

import json

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_between
from acmserve.context.edits.steps import result_of
from acmserve.context.storage.session import Session
from acmserve.server.routes.views.context import context_steps
from tests.support.context.conversation import WORDS, lines, state_of, user


def test_a_fold_in_arguments_is_placed_and_counted() -> None:
    function = {"name": "write", "arguments": json.dumps({"files": [{"text": lines(40)}]})}
    state = state_of(
        user("x"), {"role": "assistant", "content": "y", "tool_calls": [{"id": "1", "function": function}]}
    )
    cut = cut_between(state, "line 3 ", "line 30", 1, "assistant", WORDS)
    whole = result_of(context_steps(Session("", "a", cut.state), WORDS, [None, None]))
    folded = edits.fold(cut.state, cut.fragments[0].fragment_id, "sculptor", WORDS)
    view = result_of(context_steps(Session("", "a", folded), WORDS, [None, None]))
    [fragment] = view.fragments
    [piece] = fragment.messages
    assert (piece.index, piece.part, piece.call, piece.path) == (1, None, 0, ["files", 0, "text"])
    assert view.messages[1].message is not None
    assert "[folded" in str(view.messages[1].message["tool_calls"])
    num_saved = fragment.num_tokens - fragment.num_tokens_shown
    assert num_saved > 200
    assert abs(whole.num_tokens - view.num_tokens - num_saved) <= 60
    assert view.num_tokens_original == whole.num_tokens_original == whole.num_tokens
