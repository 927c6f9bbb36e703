"""Repair: a chosen part of what would be moved is computed in its new context instead, as further holes.

    source   [P ....][F ........][S ......................................]
    plan     [P ....][m][S moved .........................................][new]
    repair   [P ....][m  head   )[ moved ....)[echo)[ moved ......)[ tail ][new]
                     |---- hole -|            |hole|

    head     the first tokens of each moved segment      what F left in them is gone: nothing moved stands in front
    tail     the last tokens of each moved segment       computed with moved KV in sight, so closer, never exact
    echoes   phrases that F had, too, and what follows   the same. An updated value stands behind such a phrase
    ranges   whatever the caller names                   the same
    rest     what is left between them, where it is      a short rest is worth its move only where holes are cheap
             shorter than `rest_tokens`

Which moves need it? All of them. A segment in front of which nothing differs from its source is no move. It is part of
the kept prefix, which is the longest one that any source has. Behind it either the text in front is another, or its
length is. A moved prefix that an earlier turn was served stays as it was. Repair is about the moves of this one.

Pure. The lineage follows from the moves that are left. The head of the first segment is computed before anything moved
comes, so its blocks have exact hashes. Holes behind a move inherit its mark, for they saw it, as a marker between two
moves does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import InvalidRequest
from acmserve.plan.ngrams import GramIndex, Mask, cover
from acmserve.plan.pieces import EditPlan, Move
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS
from acmserve.plan.source import ServedSequence, Tokens

DEFAULT_HEAD_TOKENS = 128
ECHO_TOKENS = 3
"""Tokens of a phrase: two are chance in any text, and four miss `key: value` lines with short keys."""
ECHO_BEHIND = 2
"""Tokens behind a phrase that belong to it. With one, half of a value of two tokens is moved: up to 9 nats (LOG)."""
MAX_TOKENS = 2**31 - 1
MAX_RANGES = 4096
MAX_RESTS = 256
"""Rests of one request that may be shorter than the engine's `min_move_tokens`. Each is a hole more."""

Span = tuple[int, int]
"""Tokens `[start, end)` of a prompt."""


@dataclass(frozen=True, slots=True)
class Grain:
    """The shortest piece, and the shortest rest of one, that `auto` moves. Tokens."""

    min_move_tokens: int
    piece_tokens: int
    rest_tokens: int


def grain_of(min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS, has_passes: bool = True) -> Grain:
    """A half and a quarter of `min_move_tokens`, where all holes of a request are computed in one forward pass.

    Else each hole is a pass of its own, and a short piece is not worth it. With 32 tokens for all, a list of which six
    tenths are echoes is computed whole, and so are the calls between cleared results.
    """
    if not has_passes:
        return Grain(min_move_tokens, min_move_tokens, min_move_tokens)
    return Grain(min_move_tokens, max(1, min_move_tokens // 2), max(1, min_move_tokens // 4))


@dataclass(frozen=True, slots=True)
class Repair:
    """Which tokens of moved segments are computed anew. Counts in tokens of each segment. `ranges` of the prompt.

    `rest_tokens` is the shortest rest that still moves, None for the engine's `min_move_tokens`. Of more rests than
    `MAX_RESTS` the longest move.

    Raises `InvalidRequest` naming the field for numbers that mean nothing.
    """

    head_tokens: int = DEFAULT_HEAD_TOKENS
    tail_tokens: int = 0
    echoes: bool = False
    ranges: tuple[Span, ...] = ()
    rest_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("head_tokens", "tail_tokens"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_TOKENS:
                raise InvalidRequest(name, f"must be 0 or more tokens, at most {MAX_TOKENS}, not {value}")
        if self.rest_tokens is not None and not 1 <= self.rest_tokens <= MAX_TOKENS:
            raise InvalidRequest(
                "rest_tokens", f"must be 1 or more tokens, at most {MAX_TOKENS}, not {self.rest_tokens}"
            )
        if len(self.ranges) > MAX_RANGES:
            raise InvalidRequest("ranges", f"has {len(self.ranges)} ranges; at most {MAX_RANGES} are allowed")
        for index, (start, end) in enumerate(self.ranges):
            if not 0 <= start < end <= MAX_TOKENS:
                raise InvalidRequest(
                    f"ranges.{index}", f"must be [start, end) with 0 <= start < end, not {start}, {end}"
                )


DEFAULT_REPAIR = Repair()
EVERYTHING = Repair(head_tokens=MAX_TOKENS)
"""Nothing is moved. A moved prefix that was served before is kept."""


def plan_repair(
    plan: EditPlan, prompt: Tokens, sources: Sequence[ServedSequence], repair: Repair, min_move_tokens: int
) -> EditPlan:
    """`plan` with its moves cut by `repair`. What remains shorter than `min_move_tokens` is computed, too.

    `prompt` is int32 [n]. Ranges of the prompt that no move covers mean nothing.
    """
    marks = find_marks(plan, prompt, repair, find_echoes(plan, prompt, sources) if repair.echoes else None)
    return without(plan, fill_short_rests(marks, repair.rest_tokens, min_move_tokens))


def without(plan: EditPlan, anew: Sequence[Mask]) -> EditPlan:
    """What is left of `plan` when the tokens in `anew`, bool [n] for each move, are computed."""
    moves = [rest for move, some in zip(plan.moves, anew, strict=True) for rest in _cut(move, some)]
    return replace(plan, moves=tuple(moves))


def texts_of(plan: EditPlan, prompt: Tokens) -> list[Tokens]:
    """What each move of a plan moves."""
    return [prompt[move.dst_start : move.dst_end] for move in plan.moves]


def find_echoes(plan: EditPlan, prompt: Tokens, sources: Sequence[ServedSequence]) -> list[Mask]:
    """For each move of `plan`, which of its phrases stood in what was removed in front of it: bool [n - 2] or fewer."""
    indices: dict[int, GramIndex] = {}
    for source in {removed.source for removed in plan.removed}:
        spans = [(removed.start, removed.end) for removed in plan.removed if removed.source == source]
        indices[source] = GramIndex(sources[source].tokens, spans, ECHO_TOKENS)
    nothing = np.zeros(0, dtype=np.bool_)
    return [
        indices[move.source].find(text, move.src_start) if move.source in indices else nothing
        for move, text in zip(plan.moves, texts_of(plan, prompt), strict=True)
    ]


def find_marks(plan: EditPlan, prompt: Tokens, repair: Repair, echoes: Sequence[Mask] | None) -> list[Mask]:
    """For each move of `plan`, the tokens that `repair` names, and `echoes` with what is behind them."""
    named = _named(repair, len(prompt))
    marks = [_to_compute(move, repair, named) for move in plan.moves]
    if echoes is None:
        return marks
    return [anew | covered(found, len(anew), ECHO_BEHIND) for anew, found in zip(marks, echoes, strict=True)]


def covered(found: Mask, num_tokens: int, num_behind: int = 0) -> Mask:
    """For each of `num_tokens` tokens whether it lies in a phrase that was found, or at most so far behind one."""
    if not len(found):
        return np.zeros(num_tokens, dtype=np.bool_)
    return cover(found, ECHO_TOKENS + num_behind)[:num_tokens]


def fill_short_rests(marks: Sequence[Mask], rest_tokens: int | None, min_move_tokens: int) -> list[Mask]:
    """The marks, and what is left between them where it is too short to move."""
    done = [anew.copy() for anew in marks]
    for anew in done:
        fill_rests(anew, min_move_tokens if rest_tokens is None else rest_tokens)
    lengths = np.concatenate([np.ptp(_rests(anew), axis=1) for anew in done]) if done else np.zeros(0, dtype=np.int64)
    if rest_tokens is not None and len(lengths) > MAX_RESTS:
        longest = int(np.partition(lengths, -MAX_RESTS - 1)[-MAX_RESTS - 1])
        for anew in done:
            fill_rests(anew, min(longest + 1, min_move_tokens))
    return done


def fill_rests(anew: Mask, rest_tokens: int) -> None:
    """Mark what is left between marks, or beside an end, and is shorter than `rest_tokens`, in place."""
    rests = _rests(anew)
    short = rests[rests[:, 1] - rests[:, 0] < rest_tokens]
    if len(short):
        steps = np.zeros(len(anew) + 1, dtype=np.int8)
        steps[short[:, 0]], steps[short[:, 1]] = 1, -1
        anew |= np.cumsum(steps[:-1], dtype=np.int8) > 0


def _rests(anew: Mask) -> NDArray[np.int64]:
    """Where each stretch without marks begins and ends: [n, 2]."""
    return np.flatnonzero(np.diff(anew, prepend=True, append=True)).reshape(-1, 2)


def _named(repair: Repair, num_tokens: int) -> Mask:
    """The tokens of a prompt that the ranges name, in one pass, however many ranges and moves there are."""
    if not repair.ranges:
        return np.zeros(num_tokens, dtype=np.bool_)
    edges = np.minimum(np.array(repair.ranges, dtype=np.int64), num_tokens)
    opened = np.bincount(edges[:, 0], minlength=num_tokens + 1)
    closed = np.bincount(edges[:, 1], minlength=num_tokens + 1)
    named: Mask = np.cumsum(opened - closed)[:num_tokens] > 0
    return named


def _to_compute(move: Move, repair: Repair, named: Mask) -> Mask:
    """The tokens of a move that head, tail and ranges name."""
    anew = named[move.dst_start : move.dst_end].copy()
    anew[: repair.head_tokens] = True
    anew[max(0, move.num_tokens - repair.tail_tokens) :] = True
    return anew


def _cut(move: Move, anew: Mask) -> Iterator[Move]:
    """What remains of a move."""
    edges = np.flatnonzero(np.diff(anew, prepend=True, append=True))
    for start, end in edges.reshape(-1, 2).tolist():
        yield Move(move.dst_start + start, move.src_start + start, end - start, move.source)
