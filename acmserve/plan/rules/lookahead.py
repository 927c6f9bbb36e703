"""Reused pieces that end early, for a drafter that looks ahead (speculative decoding by EAGLE or MTP).

A drafter's KV of token i is made of the model's state at i and of the tokens behind it, up to i + `num_lookahead`.

    source   ... a b c d e f ...         the drafter's KV of d has seen e
    prompt   ... a b c d X Y ...         here it must have seen X: d is computed anew, by model and drafter
             [ reused )[ computed

Pieces that stand side by side are reused in one leap. Of those only the last one ends early. The drafter's KV in front
of a seam keeps its old look-ahead.

Decision: a seam costs drafts that are accepted less often, at one place. Computing it anew would cost a step of the
engine for each seam. What the model answers depends on neither.

Pure: knows plans and counts, no drafter.
"""

from __future__ import annotations

from dataclasses import replace

from acmserve.plan.pieces import EditPlan, Move


def end_early(plan: EditPlan, num_lookahead: int) -> EditPlan:
    """`plan` with the last `num_lookahead` tokens of each run of reused pieces computed.

    A kept prefix that no source names is vLLM's own hit. vLLM ends that one early itself.
    """
    if not num_lookahead:
        return plan
    start_of_next: int | None = None
    moves: list[Move] = []
    for move in reversed(plan.moves):
        num_tokens = move.num_tokens - (num_lookahead if move.dst_end != start_of_next else 0)
        if num_tokens > 0:
            moves.append(replace(move, num_tokens=num_tokens))
            start_of_next = move.dst_start
    keep = plan.keep
    if keep is not None and keep.source is not None and keep.num_tokens != start_of_next:
        keep = replace(keep, num_tokens=keep.num_tokens - num_lookahead) if keep.num_tokens > num_lookahead else None
    return replace(plan, keep=keep, moves=tuple(moves[::-1]))
