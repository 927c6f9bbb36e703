"""Sessions with many of everything that an import may bring: pieces, fragments, omissions, branches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.fragment import Fragment, Piece
from acmserve.context.session.state import SearchHit, SessionState
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Message, Place
from acmserve.context.transcript.omissions import USERS_LEFT_OUT, MessageOmissions, Omissions
from tests.support.context.conversation import assistant, state_of, user

LARGE = "f00000"
"""The fragment that has all of the pieces."""
_LINE = "{:06d} one two three four five six seven eight nine ten eleven twelve\n"


def in_one_text(num: int) -> SessionState:
    """Every other line of one text is a piece of one fragment. In each lies another one, and around all is a third."""
    width = len(_LINE.format(0))
    text = "".join(map(_LINE.format, range(2 * num)))
    starts = range(0, len(text), 2 * width)
    state = _with_fragments(state_of(user(text), user("x")), [Piece(Place(0), at, at + width) for at in starts])
    around = Fragment("faround", "user", (Piece(Place(0), 0, len(text)),), 26 * num)
    return replace(state, fragments=(*state.fragments, around))


def in_parts(num: int) -> SessionState:
    """A message of many texts."""
    lines = [_LINE.format(number) for number in range(num)]
    state = state_of(user([{"type": "text", "text": line} for line in lines]), user("x"))
    return _with_fragments(state, [Piece(Place(0, number), 0, len(line)) for number, line in enumerate(lines)])


def in_arguments(num: int) -> SessionState:
    """One call with many arguments, as JSON text."""
    return _in_arguments(num, json.dumps)


def in_an_object(num: int) -> SessionState:
    """One call with many arguments, as an object."""
    return _in_arguments(num, lambda arguments: arguments)


def _in_arguments(num: int, written: Callable[[object], object]) -> SessionState:
    arguments = {f"k{number:06d}": _LINE.format(number) for number in range(num)}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written(arguments)}}
    result = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    state = state_of(user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, result)
    pieces = [Piece(Place(1, ArgumentPart(0, (key,))), 0, len(text)) for key, text in arguments.items()]
    hits = [SearchHit(f"s{number:05x}", piece.place, 0, 4) for number, piece in enumerate(pieces[:1000])]
    return replace(_with_fragments(state, pieces), hits=tuple(hits))


def _with_fragments(state: SessionState, pieces: Sequence[Piece]) -> SessionState:
    inner = [
        Fragment(f"f{number:05x}", "all", (replace(piece, start=1, end=piece.end - piece.start - 1),), 12)
        if piece.start == 0
        else Fragment(f"f{number:05x}", "all", (replace(piece, start=piece.start + 1, end=piece.end - 1),), 12)
        for number, piece in enumerate(pieces, 1)
    ]
    large = Fragment(LARGE, "all", tuple(pieces), 13 * len(pieces))
    return replace(state, fragments=(large, *inner), num_ids=len(pieces) + 1)


def left_out(num: int) -> SessionState:
    """Messages of the user are left out, and texts of the assistant, each by itself. One fragment spans them all."""
    messages: list[Message] = [user("x")]
    for number in range(num):
        messages += [user(_LINE.format(number)), assistant(_LINE.format(number))]
    entries = {1 + 2 * at: MessageOmissions(text=True, notes=() if at else (USERS_LEFT_OUT,)) for at in range(num)}
    entries |= {2 + 2 * at: MessageOmissions(True, True, notes=("[explored x: y]",)) for at in range(num)}
    gone = tuple((2 + 2 * at, 3 + 2 * at) for at in range(0, num, 2))
    state = replace(state_of(*messages, user("y")), omissions=Omissions(gone, entries), num_ids=1)
    pieces = tuple(Piece(Place(at), 0, 6) for at in range(1, 2 * num + 1))
    return replace(state, fragments=(Fragment(LARGE, "all", pieces, 2 * num),))


def in_branches(num: int) -> SessionState:
    """Closed branches of one step each."""
    messages: list[Message] = [user("x")]
    branches: list[Branch] = []
    for number in range(num):
        for name, answer in (("branch", "Done."), ("grep", "one two")):
            call = {"id": f"{name}{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "So.", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
        end = len(messages)
        branches.append(Branch(f"branch{number}", end - 4, end - 3, end - 2, "look", "Look.", end))
    ranges = tuple((branch.start, branch.start + 2) for branch in branches)
    state = replace(state_of(*messages, user("y")), branches=tuple(branches), omissions=Omissions(ranges), num_ids=1)
    pieces = tuple(Piece(Place(branch.result_entry), 0, 4) for branch in branches)
    return replace(state, fragments=(Fragment(LARGE, "all", pieces, num),))


MANY = (in_one_text, in_parts, in_arguments, in_an_object, left_out, in_branches)
