"""What the next request of a session would keep, move and compute, estimated from token ids alone.

    ServedTokens     what was served, as a receipt has it       -> Source without hashes  \\
    next prompt, fidelity                                                                  plan_edit -> Forecast
    engine's sources, with hashes, and the KV that is still cached                        /

The plan is the engine's own, made by the same function from the same tokens. The two disagree only where the engine
knows what a client cannot: blocks. The engine rounds an exact prefix that ends in front of moved KV down to a whole
block. It computes a source's partial block when that was not kept. That is less than one block for each piece. It finds
a prefix that another session computed, which is more. And it computes what the cache lost. Receipts do not say what
earlier edits removed. Near a threshold `auto` may choose otherwise than estimated. Short pieces count as
moved, which they are where all holes cost one pass. After a redaction nothing is served any more: forecast with an
empty `ServedTokens`.

Pure: no blocks, no messages, no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from acmserve.plan.auto import DEFAULT_THRESHOLDS, AutoDecision, Thresholds
from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.lineage import LineageMark
from acmserve.plan.pieces import EditPlan, Move
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS, plan_edit
from acmserve.plan.removed import find_removed
from acmserve.plan.repair import Repair
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import ServedSequence, Tokens

MAX_SEQUENCES = 8
"""Sequences remembered of a session: what the engine remembers by default (`max_sources_per_session`)."""

Triple = tuple[int, int, int]
"""A move as a receipt has it: (dst_start, src_start, num_tokens)."""


@dataclass(frozen=True, slots=True)
class MovedRange:
    """Tokens `[start, +num_tokens)` of a sequence hold moved KV, whose keys were turned at most `num_rotations` times.

    It had at most `num_removed` tokens in sight that are gone.
    """

    start: int
    num_tokens: int
    num_rotations: int = 1
    num_removed: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class EstimatedSequence:
    """One served sequence, int32 `[num_tokens]`: the prompt and the answer without its last token.

    That token was sampled and never went through the model, so it has no KV. `moved` is sorted and disjoint.
    """

    tokens: Tokens
    moved: tuple[MovedRange, ...] = ()

    def as_source(self) -> ServedSequence:
        """The source that the engine has of it, without hashes and in blocks of one token."""
        marks = tuple(LineageMark(m.start, b"", m.num_tokens, m.num_rotations, m.num_removed) for m in self.moved)
        return ServedSequence(np.ascontiguousarray(self.tokens, dtype=np.int32), 1, (), None, marks)


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """The sequences that a session was served last, newest first."""

    sequences: tuple[EstimatedSequence, ...] = field(default=())

    def after(self, tokens: Tokens, num_kept: int, moves: Sequence[Triple]) -> ServedTokens:
        """With one more request served: `tokens` as in `EstimatedSequence`, the rest from its receipt.

        A sequence that the new one extends is dropped, as the engine's source store does.
        """
        sources = [sequence.as_source() for sequence in self.sequences]
        new = EstimatedSequence(
            tokens, (*self._kept_ranges(tokens, num_kept, sources), *self._moved_ranges(tokens, moves, sources))
        )
        rest = [s for s, source in zip(self.sequences, sources, strict=True) if not new.as_source().extends(source)]
        return ServedTokens((new, *rest)[:MAX_SEQUENCES])

    @staticmethod
    def _kept_ranges(tokens: Tokens, num_kept: int, sources: Sequence[ServedSequence]) -> tuple[MovedRange, ...]:
        """Moved ranges of the kept prefix: those of the sequence that it came from."""
        keep = plan_edit(np.append(tokens[:num_kept], np.int32(-1)), sources, allow_moves=True).keep
        if keep is None or keep.source is None:
            return ()
        marks = (mark for mark in sources[keep.source].marks if mark.position < num_kept)
        return tuple(
            MovedRange(m.position, min(m.num_tokens, num_kept - m.position), m.num_rotations, m.num_removed)
            for m in marks
        )

    @staticmethod
    def _moved_ranges(
        tokens: Tokens, triples: Sequence[Triple], sources: Sequence[ServedSequence]
    ) -> Iterator[MovedRange]:
        """The moves of a receipt, which does not name the source: the newest that has the text there."""
        moves, rotations = [], []
        for dst_start, src_start, num_tokens in triples:
            end, text = src_start + num_tokens, tokens[dst_start : dst_start + num_tokens]
            having = [index for index, s in enumerate(sources) if np.array_equal(s.tokens[src_start:end], text)]
            rotations.append(sources[having[0]].num_rotations(src_start, end) if having else 0)
            moves.append(Move(dst_start, src_start, num_tokens, having[0] if having else -1))
        known = [move for move in moves if move.source >= 0]
        plan = EditPlan(len(tokens), None, tuple(known), find_removed(tokens, sources, known))
        num_removed = iter(plan.num_removed_before(sources))
        for move, before in zip(moves, rotations, strict=True):
            turned = int(move.dst_start != move.src_start)
            gone = next(num_removed) if move.source >= 0 else 0
            yield MovedRange(move.dst_start, move.num_tokens, before + turned, gone)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Counts in tokens. They sum to the prompt. `moves` name their sequence by its index in `ServedTokens`.

    `num_repaired` is a part of the computed ones. `choice` is that of `auto`. Both as in the receipt.
    """

    num_kept: int
    num_moved: int
    num_computed: int
    moves: tuple[Move, ...]
    num_repaired: int = 0
    choice: AutoDecision | None = None


def forecast(
    prompt: Tokens,
    served: ServedTokens,
    fidelity: str,
    min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS,
    repair: Repair | None = None,
    max_rotations: int = MAX_ROTATIONS,
    thresholds: Thresholds | None = DEFAULT_THRESHOLDS,
) -> Forecast:
    """Foretell the receipt of `prompt` (int32 [n], n >= 1) asked for with `fidelity`, and `repair` if that counts.

    `max_rotations` is the engine's bound, which depends on the type of its KV cache (`plan/rules/rotations.py`).
    `thresholds` are those of its calibration, if it has one.
    """
    sources = [sequence.as_source() for sequence in served.sequences]
    wish = RequestedFidelity(fidelity, repair)
    planned = plan_wish(
        prompt,
        sources,
        wish,
        min_move_tokens=min_move_tokens,
        max_rotations=max_rotations,
        thresholds=thresholds,
    )
    plan = planned.plan
    num_moved = sum(move.num_tokens for move in plan.moves)
    num_repaired = sum(end - start for start, end in planned.anew)
    num_computed = len(prompt) - plan.num_kept - num_moved
    return Forecast(plan.num_kept, num_moved, num_computed, plan.moves, num_repaired, planned.choice)
