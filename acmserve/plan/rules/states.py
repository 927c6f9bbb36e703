"""Moves on a model with recurrent layers: from one place where a state was kept, or may be, to another one.

    source   [ folded piece )[ mixed [ rest of the block )[ moved ............)[ rest ..)
                             ^ a convolution's inputs      ^ a state was kept  ^
                               saw the folded piece

The first tokens of a suffix have tokens in front mixed in, by a short convolution. A state in their midst would stand
for inputs of the old context. So a move begins at the first place behind them. What is cut off is computed.

A state may be kept behind each block. Where a turn of the source ended, a state was kept, in the midst of a block or
not. Where the answer of that turn began, one was kept, too. A piece that is folded in front of an answer leaves the
answer to be moved:

    source   [ folded piece )[ header )[ answer ......)[ folded piece )
                                       ^ kept         ^ kept

Decision: in front of an answer a state is worth the tokens up to the next kept one, for a move begins there without it.

Pure: knows plans and numbers, no states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.plan.pieces import EditPlan, Move
from acmserve.plan.source import KeptState, ServedSequence


@dataclass(frozen=True, slots=True)
class StateRules:
    """A state may be kept behind each multiple of `block_size` tokens. A token has `num_mixed` in front mixed in."""

    block_size: int
    num_mixed: int

    def behind(self, end: int) -> int:
        """The first place for a state behind a piece that ends at `end`, where nothing of it is mixed in."""
        return -(-(end + self.num_mixed) // self.block_size) * self.block_size

    def first_start(self, begin: int, source: ServedSequence) -> int:
        """The same for a move of what stands in `source` from token `begin` on."""
        kept = source.next_state(begin + self.num_mixed)
        return self.behind(begin) if kept is None else min(self.behind(begin), kept.num_tokens)

    def last_end(self, end: int, source: ServedSequence) -> int:
        """The last place for a state in front of what a move leaves, which stands in `source` from token `end` on."""
        kept = source.last_state(end)
        whole = end // self.block_size * self.block_size
        return whole if kept is None else max(whole, kept.num_tokens)


def move_between_states(plan: EditPlan, sources: Sequence[ServedSequence], rules: StateRules | None) -> EditPlan:
    """`plan` with what lies in front of the first place and behind the last one of each move computed."""
    if rules is None:
        return plan
    moves: list[Move] = []
    for move in plan.moves:
        start = rules.first_start(move.src_start, sources[move.source])
        end = rules.last_end(move.src_start + move.num_tokens, sources[move.source])
        if end > start:
            dst_start = move.dst_start + start - move.src_start
            moves.append(replace(move, dst_start=dst_start, src_start=start, num_tokens=end - start))
    return replace(plan, moves=tuple(moves), num_stateless=len(plan.moves) - len(moves))


def longest_answers(states: Sequence[KeptState], most: int) -> tuple[KeptState, ...]:
    """`states`, which are in order, with at most `most` in front of answers: those that are worth most.

    The last one of all stays first, for nobody knows yet how long its answer is. Of equal ones the later stays.
    """
    ends = [state.num_tokens for state in states[1:]]
    worth = {
        index: (ends[index] - state.num_tokens if index < len(ends) else float("inf"), index)
        for index, state in enumerate(states)
        if state.is_before_answer
    }
    stays = set(sorted(worth, key=worth.__getitem__, reverse=True)[:most])
    return tuple(state for index, state in enumerate(states) if index not in worth or index in stays)
