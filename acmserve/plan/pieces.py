"""The pieces of an edit plan, as data.

    prompt  [0 ........ keep) [hole) [move ........) [hole) [move ...) [compute ... num_tokens)
             exact prefix of    |     KV of a source   |                the last token is always here:
             one source         |     turned by delta  |                its logits are asked for
                                computed               computed

Knows spans and sources by their number. Does not know how a plan is found (`planner.py`) or carried out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from acmserve.errors import IntegrityError
from acmserve.plan.lineage import position_of
from acmserve.plan.match import common_prefix
from acmserve.plan.source import ServedSequence, Tokens


@dataclass(frozen=True, slots=True)
class Removed:
    """Tokens `[start, end)` of `sources[source]` stood in front of a move of that source. The prompt lacks them."""

    source: int
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Keep:
    """Prompt tokens `[0, num_tokens)` equal the same tokens of a source, in the same lineage. Never empty.

    `source` is None when the engine's own cache holds the prefix exactly and no source is needed to name it.
    """

    num_tokens: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Move:
    """Prompt tokens `[dst_start, +num_tokens)` take the KV of `sources[source][src_start, +num_tokens)`."""

    dst_start: int
    src_start: int
    num_tokens: int
    source: int

    @property
    def dst_end(self) -> int:
        return self.dst_start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Compute:
    """Prompt tokens `[start, +num_tokens)` go through the model."""

    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What to do for a prompt of `num_tokens` tokens. `moves` are sorted, disjoint, and end before the last token.

    `removed` is what the text of the moves had in front of it in its source and has no more. `num_left` matches were
    found beyond the most moves that a plan has. They are computed, and so are the matched tokens of media, and the text
    that stands behind other media than before (`media.py`). So are `num_stateless` moves in which no two places for a
    state lie (`rules/states.py`).
    """

    num_tokens: int
    keep: Keep | None = None
    moves: tuple[Move, ...] = ()
    removed: tuple[Removed, ...] = ()
    num_left: int = 0
    num_media: int = 0
    num_shifted: int = 0
    num_stateless: int = 0

    @property
    def num_kept(self) -> int:
        return self.keep.num_tokens if self.keep else 0

    @property
    def num_holes(self) -> int:
        """Computed pieces that stand before a move."""
        pieces = self.pieces()
        return sum(isinstance(piece, Compute) and isinstance(after, Move) for piece, after in pairwise(pieces))

    def pieces(self) -> tuple[Keep | Move | Compute, ...]:
        """The whole prompt, left to right, without gaps or overlap."""
        pieces: list[Keep | Move | Compute] = [self.keep] if self.keep else []
        position = self.num_kept
        for move in self.moves:
            if move.dst_start > position:
                pieces.append(Compute(position, move.dst_start - position))
            pieces.append(move)
            position = move.dst_end
        pieces.append(Compute(position, self.num_tokens - position))
        return tuple(pieces)

    def num_removed_before(self, sources: Sequence[ServedSequence]) -> list[int]:
        """Tokens that the KV of each move had in sight and has no more: since this edit, and since earlier ones."""
        counts = [0] * len(self.moves)
        for index in {move.source for move in self.moves}:
            removed = [r for r in self.removed if r.source == index]
            ends = [r.end for r in removed]
            totals = [0, *accumulate(r.num_tokens for r in removed)]
            marks = sources[index].marks
            peaks = [0, *accumulate((mark.num_removed for mark in marks), max)]
            for number, move in enumerate(self.moves):
                if move.source == index:
                    earlier = peaks[bisect_left(marks, move.src_start + move.num_tokens, key=position_of)]
                    counts[number] = totals[bisect_right(ends, move.src_start)] + earlier
        return counts

    def check(self, prompt: Tokens, sources: Sequence[ServedSequence]) -> None:
        """Raise `IntegrityError` unless the plan is well formed and every reused token equals its source."""
        position = 0
        if self.keep and self.keep.source is not None:
            kept = sources[self.keep.source].tokens[: self.num_kept]
            if common_prefix(prompt, kept) != self.num_kept:
                raise IntegrityError(f"keep of {self.num_kept} tokens differs from source {self.keep.source}")
        position = self.num_kept
        for move in self.moves:
            src = sources[move.source].tokens[move.src_start : move.src_start + move.num_tokens]
            same = common_prefix(prompt[move.dst_start : move.dst_end], src)
            if move.dst_start < position or move.num_tokens <= 0 or same != move.num_tokens:
                raise IntegrityError(f"{move} at position {position}: only {same} tokens equal the source")
            position = move.dst_end
        if position >= self.num_tokens:
            raise IntegrityError(f"plan covers {position} of {self.num_tokens} tokens: the last must be computed")
