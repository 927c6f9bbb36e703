"""Passes over plans with holes: how far one reaches, what of it fits into a step, and what the step then computes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.request_plan import plan_segments
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.leaps import passes
from acmserve.engine.scheduling.leaps.passes import fit_pass, plan_pass, spans_of, without_holes
from acmserve.engine.scheduling.leaps.runs import Jump
from acmserve.errors import IntegrityError
from acmserve.plan.pieces import EditPlan, Keep, Move
from tests.engine.scheduling.test_jump import BS, GROUPS, OWNER, SOURCE, Cache, whole_cache

PLAN = EditPlan(120, Keep(16, 0), (Move(20, 32, 12, 0), Move(40, 52, 10, 0), Move(50, 62, 20, 0), Move(75, 87, 9, 0)))
"""Computed: [16, 20), [32, 40), [70, 75) and [84, 120). The second and the third move touch.

    0      16     20       32     40       50       70     75       84        120
    [ kept )[ hole )[ moved )[ hole )[ moved )[ moved )[ hole )[ moved )[ the rest )
"""


def planned() -> SessionRequest:
    request = SessionRequest("r", OWNER, "reuse", ReceiptBuilder(120), np.arange(120, dtype=np.int32))
    request.segments, request.marks = plan_segments(PLAN, (SOURCE,), OWNER)
    request.planned = tuple(request.segments)
    return request


def whole_pass(position: int = 16) -> Jump:
    jump = plan_pass(planned(), position, whole_cache().block, GROUPS, 1000)
    assert jump is not None
    return jump


def ranges(jump: Jump | None) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in jump.runs] if jump is not None else []


def test_a_pass_leaps_over_every_segment_and_computes_what_lies_between() -> None:
    jump = whole_pass()
    assert ranges(jump) == [(20, 32), (40, 50), (50, 70), (75, 84)]
    assert (jump.stands_at, jump.end, jump.num_in_holes) == (16, 84, 4 + 8 + 5)
    assert jump.landing == 84 - jump.num_in_holes
    assert spans_of(jump, jump.num_in_holes + 36) == ((16, 20), (32, 40), (70, 75), (84, 120))
    assert len(jump.reads) == len(jump.runs)


def test_a_pass_may_begin_at_a_segment() -> None:
    jump = whole_pass(position=20)
    assert (jump.stands_at, jump.start, jump.num_in_holes) == (20, 20, 13)
    assert spans_of(jump, 14) == ((32, 40), (70, 75), (84, 85))


@pytest.mark.parametrize(("max_computed", "num_runs"), [(4, 0), (5, 1), (12, 1), (13, 3), (17, 3), (18, 4)])
def test_a_pass_leaves_a_token_to_compute_behind_its_last_run(max_computed: int, num_runs: int) -> None:
    """`max_computed` tokens are all that a step may compute: holes of 4, 8 and 5, and one token behind them."""
    jump = plan_pass(planned(), 16, whole_cache().block, GROUPS, max_computed)
    assert ranges(jump) == ranges(whole_pass())[:num_runs]


def test_a_pass_ends_in_front_of_a_block_that_is_gone() -> None:
    cache = whole_cache()
    del cache[SOURCE.block_key(62 // BS + 1) or b""]
    jump = plan_pass(planned(), 16, cache.block, GROUPS, 1000)
    assert ranges(jump) == [(20, 32), (40, 50), (50, 52)], "source block 4 begins with what goes to token 52"
    assert plan_pass(planned(), 16, Cache().block, GROUPS, 1000) is None


def test_a_pass_has_a_bound_of_runs_and_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MAX_RUNS", 1)
    assert ranges(whole_pass()) == [(20, 32)]
    monkeypatch.setattr(passes, "MAX_RUNS", 512)
    monkeypatch.setattr(passes.jumping, "MAX_BLOCKS", 2)
    assert ranges(whole_pass())[0] == (20, 32)
    assert sum(len(read.blocks) for read in whole_pass().reads) <= 3


@pytest.mark.parametrize(("num_new", "num_runs"), [(1, 0), (4, 0), (5, 1), (12, 1), (13, 3), (17, 3), (18, 4), (99, 4)])
def test_what_fits_into_a_step_is_the_first_runs(num_new: int, num_runs: int) -> None:
    jump = whole_pass()
    fitting = fit_pass(jump, num_new)
    assert ranges(fitting) == ranges(jump)[:num_runs]
    if fitting is not None:
        assert fitting.stands_at == jump.stands_at
        assert fitting.reads == jump.reads[:num_runs]
        assert sum(end - start for start, end in spans_of(fitting, num_new)) == num_new


def test_the_runs_in_front_of_the_first_hole() -> None:
    assert without_holes(whole_pass(position=16)) is None
    assert ranges(without_holes(whole_pass(position=20))) == [(20, 32)]
    assert ranges(without_holes(whole_pass(position=40))) == [(40, 50), (50, 70)]
    adjacent = plan_pass(planned(), 75, whole_cache().block, GROUPS, 1000)
    assert adjacent is not None
    assert without_holes(adjacent) is adjacent


def test_fewer_tokens_than_the_holes_have_are_no_pass() -> None:
    jump = whole_pass()
    with pytest.raises(IntegrityError, match="pass: 17 tokens for 17 in holes up to 84"):
        spans_of(jump, jump.num_in_holes)


def test_a_pass_and_its_copies_are_the_prompt_once() -> None:
    """Spans and runs of a pass cut the prompt from where the request stands: no token twice, none left out."""
    jump = whole_pass()
    pieces = sorted([*spans_of(jump, jump.num_in_holes + 36), *ranges(jump)])
    assert pieces[0][0] == jump.stands_at
    assert pieces[-1][1] == 120
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
