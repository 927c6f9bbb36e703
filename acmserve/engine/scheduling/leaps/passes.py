"""A pass: the jump of a request over several pieces of its plan, whose holes are computed in one step.

    position    kept )[ hole )[ run ....)[ hole )[ run ....)[ the rest of the prompt
    this step         |       copied     |       copied     |
                      computed           computed           computed, as far as the step's tokens go

Without it each hole costs a forward pass, which reads all weights once more. The copies of a step are carried out
before its forward pass. In each layer the KV of all its tokens is written before attention reads any. So a hole sees
those in front of it, as it would in a step of its own.

Pure: asks a lookup for blocks, changes nothing. Knows jumps of one group of full attention.

Decision: a pass ends with a token that is computed. The tokens of a step may be fewer than its holes have. Then its
last runs are left out, and are asked for again in the next step.
"""

from __future__ import annotations

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.receipt import Span
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.runs import BlockRun, Jump, Lookup, SegmentRun
from acmserve.errors import IntegrityError

MAX_RUNS = 512
"""Runs of one pass. Each hole between them is a row of attention, with a block table of its own."""


def plan_pass(
    request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups, max_computed: int
) -> Jump | None:
    """The jump from `position` over every segment in front of which less than `max_computed` tokens are computed.

    It ends in front of the first block that is not cached. None where nothing is copied.
    """
    runs: list[SegmentRun] = []
    reads: list[BlockRun] = []
    num_blocks, num_in_holes, at = jumping.MAX_BLOCKS, 0, position
    while num_blocks > 0 and len(runs) < MAX_RUNS:
        stop = at if request.segment_at(at) is not None else request.next_stop(at)
        if stop is None or num_in_holes + stop - at >= max_computed:
            break
        found = jumping.full_runs(request, stop, lookup, groups, num_blocks)
        if not found:
            break
        num_in_holes += stop - at
        for run, read in found:
            runs.append(run)
            reads += read
            num_blocks -= len(read[0].blocks)
        at = runs[-1].end
        if request.segment_at(at) is not None:
            break
    return Jump(tuple(runs), tuple(reads), begin=position) if runs else None


def fit_pass(jump: Jump, num_new: int) -> Jump | None:
    """`jump` as far as a step of `num_new` tokens computes its holes, and one token behind. None where no run is left.

    Nothing is looked up: the first runs of a jump are a jump.
    """
    num_in_holes, at, num_runs = 0, jump.stands_at, 0
    for run in jump.runs:
        num_in_holes += run.start - at
        if num_in_holes >= num_new:
            break
        num_runs, at = num_runs + 1, run.end
    return first_runs(jump, num_runs)


def without_holes(jump: Jump) -> Jump | None:
    """The runs of `jump` in front of its first hole. None where it begins with one."""
    at, num_runs = jump.stands_at, 0
    for run in jump.runs:
        if run.start > at:
            break
        num_runs, at = num_runs + 1, run.end
    return first_runs(jump, num_runs)


def first_runs(jump: Jump, num_runs: int) -> Jump | None:
    """The first runs of a jump in one group. Itself where that is all of them, None where there are none."""
    if num_runs == len(jump.runs):
        return jump
    runs = jump.runs[:num_runs]
    return Jump(runs, tuple(jump.reads[:num_runs]), begin=jump.stands_at) if runs else None


def spans_of(jump: Jump, num_new: int) -> tuple[Span, ...]:
    """What a step computes of `num_new` tokens around the runs of `jump`. Raises `IntegrityError` for too few."""
    spans: list[Span] = []
    at = jump.stands_at
    for run in jump.runs:
        if run.start > at:
            spans.append((at, run.start))
        at = run.end
    end = jump.landing + num_new
    if end <= at:
        raise IntegrityError(f"pass: {num_new} tokens for {jump.num_in_holes} in holes up to {at}")
    return (*spans, (at, end))
