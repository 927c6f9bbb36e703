"""What the next request of a session would keep, move and compute, foretold from token ids alone.

    ServedTokens     what was served, as a receipt tells it     -> Source without hashes  \\
    next prompt, fidelity                                                                  plan_edit -> Forecast
    engine's sources, with hashes; the KV that is still cached                            /

The plan is the engine's own, made by the same function from the same tokens, so the two disagree only where the engine
knows what a client cannot: blocks. It rounds an exact prefix that ends in front of moved KV down to a whole block, and
computes a source's partial block when that was not kept: less than one block for each piece. It finds a prefix that
another session computed, which is more. And it computes what the cache lost. After a redaction nothing is served any
more: forecast with an empty `ServedTokens`.

Pure: no blocks, no messages, no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from acmserve.edit.lineage import Mark
from acmserve.edit.plan import DEFAULT_MIN_MOVE_TOKENS, Move, plan_edit
from acmserve.edit.source import Source, Tokens

MAX_SEQUENCES = 8
"""Sequences remembered of a session: what the engine remembers by default (`max_sources_per_session`)."""

Triple = tuple[int, int, int]
"""A move as a receipt tells it: (dst_start, src_start, num_tokens)."""


@dataclass(frozen=True, slots=True)
class MovedRange:
    """Tokens `[start, +num_tokens)` of a sequence hold moved KV, whose keys were turned at most `num_hops` times."""

    start: int
    num_tokens: int
    num_hops: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ServedSequence:
    """One served sequence, int32 `[num_tokens]`: the prompt and the answer without its last token.

    That token was sampled and never went through the model, so it has no KV. `moved` is sorted and disjoint.
    """

    tokens: Tokens
    moved: tuple[MovedRange, ...] = ()

    def as_source(self) -> Source:
        """The source that the engine has of it, without hashes and in blocks of one token."""
        marks = tuple(Mark(m.start, b"", m.num_tokens, m.num_hops) for m in self.moved)
        return Source(np.ascontiguousarray(self.tokens, dtype=np.int32), 1, (), None, marks)


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """The sequences that a session was served last, newest first."""

    sequences: tuple[ServedSequence, ...] = field(default=())

    def after(self, tokens: Tokens, num_kept: int, moves: Sequence[Triple]) -> ServedTokens:
        """With one more request served: `tokens` as in `ServedSequence`, the rest from its receipt.

        A sequence that the new one extends is dropped, as the engine's source store does.
        """
        sources = [sequence.as_source() for sequence in self.sequences]
        behind = [self._moved_range(tokens, move, sources) for move in moves]
        new = ServedSequence(tokens, (*self._kept_ranges(tokens, num_kept, sources), *behind))
        rest = [s for s, source in zip(self.sequences, sources, strict=True) if not new.as_source().extends(source)]
        return ServedTokens((new, *rest)[:MAX_SEQUENCES])

    @staticmethod
    def _kept_ranges(tokens: Tokens, num_kept: int, sources: Sequence[Source]) -> tuple[MovedRange, ...]:
        """Moved ranges of the kept prefix: those of the sequence that it came from."""
        keep = plan_edit(np.append(tokens[:num_kept], np.int32(-1)), sources, allow_moves=True).keep
        if keep is None or keep.source is None:
            return ()
        marks = (mark for mark in sources[keep.source].marks if mark.position < num_kept)
        return tuple(MovedRange(m.position, min(m.num_tokens, num_kept - m.position), m.num_hops) for m in marks)

    @staticmethod
    def _moved_range(tokens: Tokens, move: Triple, sources: Sequence[Source]) -> MovedRange:
        dst_start, src_start, num_tokens = move
        moved = tokens[dst_start : dst_start + num_tokens]
        end = src_start + num_tokens
        hops = [s.num_hops(src_start, end) for s in sources if np.array_equal(s.tokens[src_start:end], moved)]
        return MovedRange(dst_start, num_tokens, max(hops, default=0) + int(dst_start != src_start))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Counts in tokens; they sum to the prompt. `moves` name their sequence by its index in `ServedTokens`."""

    num_kept: int
    num_moved: int
    num_computed: int
    moves: tuple[Move, ...]


def forecast(
    prompt: Tokens, served: ServedTokens, fidelity: str, min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS
) -> Forecast:
    """Foretell the receipt of `prompt` (int32 [n], n >= 1) asked for with `fidelity` (`exact` or `reuse`)."""
    sources = [sequence.as_source() for sequence in served.sequences]
    allow_moves = fidelity != "exact"
    plan = plan_edit(prompt, sources, allow_moves=allow_moves, min_move_tokens=min_move_tokens)
    num_moved = sum(move.num_tokens for move in plan.moves)
    return Forecast(plan.num_kept, num_moved, len(prompt) - plan.num_kept - num_moved, plan.moves)
