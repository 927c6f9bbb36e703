"""The cheap repairs of `bench repairs` name what they compute, and no more."""

from __future__ import annotations

from acmserve.bench.repairs.ways import CHEAP, WAYS
from acmserve.bench.tasks.prompt import CaseTokens

TOKENS = CaseTokens(tuple(range(60)), tuple(range(40)), ((5, 15), (15, 30), (30, 40)), 20, ())


def test_the_cheap_ones_compute_the_last_two_pieces_or_the_heads_alone() -> None:
    last, heads = (way.parameters(TOKENS)["repair"] for way in CHEAP)
    assert last == {"head_tokens": 0, "rest_tokens": 1, "ranges": [[15, 30], [30, 40]]}
    assert heads == {"head_tokens": 4, "rest_tokens": 1}


def test_the_cheap_ones_stand_beside_the_others_and_need_not_move() -> None:
    names = [way.name for way in (*WAYS, *CHEAP)]
    assert len(set(names)) == len(names)
    assert not any(way.must_move for way in CHEAP)
