"""Where a hybrid model keeps what a later edit will need: the boundaries in front of the pieces that may be edited.

A prompt is found again up to a boundary only if every KV cache group has there what the tokens behind it read. Full
attention has all of it. A group with a window or a recurrent state keeps little, by default where a prompt ended:

    prompt       [ system ][ result A ][ answer ][ result B ][ question ]
    full         [================================================]        every block
    window              [==]               [==]            [==]            the last W - 1 tokens in front of a boundary
    recurrent              ^                  ^               ^            one state for each boundary
                           |                  |               '-- kept by the engine: where the next turn goes on
                           '------------------'------------------ planned here

Pure: counts tokens and blocks. It knows neither requests nor vLLM.

Decision: what matters is how far an edit falls back. So a boundary is worth the tokens between it and the boundary
before, weighted by the pieces that would fall back. The most valuable one is taken first, until the room is spent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from acmserve.plan.repair import Span
from acmserve.plan.rules.states import StateRules


@dataclass(frozen=True, slots=True)
class GroupTail:
    """What one group needs at a boundary: `num_blocks` of its blocks of `block_size` tokens, `num_behind` behind it."""

    block_size: int
    num_blocks: int
    num_behind: int = 0

    def blocks_at(self, boundary: int) -> range:
        """Indices of the group's blocks in its table."""
        end = boundary // self.block_size + self.num_behind
        return range(max(end - self.num_blocks, 0), end)


@dataclass(frozen=True, slots=True)
class BoundaryRules:
    """Of one engine. A boundary is a multiple of `alignment` tokens, and lies `num_back` tokens further in front.

    `tails` are those of the groups that keep little. A block has `block_bytes` bytes. Where `stops_itself`, vLLM ends a
    chunk of prefill at the boundary. With `states` that are moved, one is wanted behind each piece, too.
    """

    alignment: int
    num_back: int
    tails: tuple[GroupTail, ...]
    block_bytes: int
    stops_itself: bool
    states: StateRules | None = None

    @property
    def tail_tokens(self) -> int:
        """Tokens in front of a boundary whose blocks must be kept."""
        return max((tail.block_size * (tail.num_blocks - tail.num_behind) for tail in self.tails), default=0)

    @property
    def behind_tokens(self) -> int:
        """Tokens behind a boundary whose blocks must be kept."""
        return max((tail.block_size * tail.num_behind for tail in self.tails), default=0)

    def at(self, position: int) -> int:
        """The last boundary up to which a prompt is found that changes at `position`."""
        return max(position // self.alignment * self.alignment - self.num_back, 0)


@dataclass(frozen=True, slots=True)
class BoundaryPlan:
    """`chosen` are sorted, and so are the `wanted` ones, of which they are a part. Tokens of the prompt.

    `num_blocks` are held by the tails of the chosen ones.
    """

    chosen: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    num_blocks: int = 0


def weigh_boundaries(foldable: Iterable[Span], num_prompt_tokens: int, rules: BoundaryRules) -> dict[int, int]:
    """Boundaries for these pieces, and how many tokens the pieces have for which each is the nearest.

    Not the start of the prompt, and not what lies behind the last one that the engine keeps by itself.
    """
    weights: dict[int, int] = {}
    kept_anyway = rules.at(num_prompt_tokens - 1)
    for start, end in foldable:
        behind = () if rules.states is None else (rules.states.behind(end),)
        for boundary in {rules.at(start), *behind}:
            if 0 < boundary < kept_anyway:
                weights[boundary] = weights.get(boundary, 0) + end - start
    return weights


def plan_boundaries(
    weights: Mapping[int, int], num_found: int, kept: Collection[int], rules: BoundaryRules, max_blocks: int
) -> BoundaryPlan:
    """Choose among `weights` under `max_blocks`.

    The first `num_found` tokens are not computed again, so only those of `kept` are to be had there.
    """
    wanted = sorted(weights)
    possible = [boundary for boundary in wanted if boundary > num_found or boundary in kept]
    num_all = len(_blocks_of(possible, rules))
    if num_all <= max_blocks:
        return BoundaryPlan(tuple(possible), tuple(wanted), num_all)
    chosen, num_blocks = _choose(weights, possible, rules, max_blocks)
    return BoundaryPlan(tuple(chosen), tuple(wanted), num_blocks)


def _choose(
    weights: Mapping[int, int], possible: Sequence[int], rules: BoundaryRules, max_blocks: int
) -> tuple[list[int], int]:
    """The most valuable one first, those passed over that no longer fit.

    fallback   [ l ............ c ........ r ]      with c, pieces of [c, r) fall back to c and no longer to l
    value      (c - l) * tokens of these pieces
    """
    places = np.array(possible, dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum([weights[boundary] for boundary in possible])])
    before, behind = np.zeros(len(places), dtype=np.int64), np.full(len(places), len(places))
    is_open = np.ones(len(places), dtype=bool)
    chosen: list[int] = []
    held: set[tuple[int, int]] = set()
    while is_open.any():
        values = np.where(is_open, (places - before) * (sums[behind] - sums[np.arange(len(places))]), -1)
        best = int(values.argmax())
        is_open[best] = False
        new = _blocks_of([possible[best]], rules) - held
        if len(held) + len(new) > max_blocks:
            continue
        held |= new
        at = bisect_left(chosen, possible[best])
        following = bisect_left(possible, chosen[at]) if at < len(chosen) else len(places)
        preceding = bisect_left(possible, chosen[at - 1]) if at else 0
        insort(chosen, possible[best])
        before[best + 1 : following] = possible[best]
        behind[preceding:best] = best
    return chosen, len(held)


def _blocks_of(boundaries: Iterable[int], rules: BoundaryRules) -> set[tuple[int, int]]:
    """(group, block) of all tails. Neighbours share blocks."""
    return {
        (group, block)
        for boundary in boundaries
        for group, tail in enumerate(rules.tails)
        for block in tail.blocks_at(boundary)
    }


def next_boundary(boundaries: Sequence[int], position: int, rules: BoundaryRules) -> int | None:
    """The boundary that a chunk beginning at `position` meets first. None behind the last."""
    index = bisect_right(boundaries, position - rules.behind_tokens)
    return boundaries[index] if index < len(boundaries) else None


def next_stop(boundaries: Sequence[int], position: int, rules: BoundaryRules) -> int | None:
    """Where a chunk that begins at `position` has to end, so that each step meets one boundary. None: anywhere.

    chunk   [position ... b1 ......)[.. b2       the tail of b2 begins behind b1: it belongs to the next step
                                   |<-- tail -->
    chunk   [position ... b1)[.. b2              it begins in front of b1: what they share is kept for b1
                      |<--- tail --->
    """
    index = bisect_right(boundaries, position - rules.behind_tokens)
    if index + 1 >= len(boundaries):
        return None
    first = boundaries[index] + rules.behind_tokens
    stop = max(first, boundaries[index + 1] - rules.tail_tokens) // rules.alignment * rules.alignment
    return stop if stop > position else None
