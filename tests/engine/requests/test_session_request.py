"""The receipt of a request that was preempted, where the second run finds other KV than the first."""

from __future__ import annotations

import numpy as np
import pytest

from acmserve.engine.requests.receipt import KVOrigin, ReceiptBuilder, ReceiptEntry
from acmserve.engine.requests.request_plan import plan_segments
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.source import ServedSequence

OWNER = Owner("s")
NUM_PROMPT, START, END = 120, 48, 112
SOURCE = ServedSequence(np.arange(160, dtype=np.int32), 16, tuple(b"h%d" % i for i in range(10)), b"tail")


@pytest.fixture
def preempted() -> SessionRequest:
    """It kept `[0, 48)`, moved `[48, 112)`, and lost its blocks. Its receipt was told once."""
    prompt = np.arange(NUM_PROMPT, dtype=np.int32)
    session = SessionRequest("r", OWNER, "reuse", ReceiptBuilder(NUM_PROMPT), prompt, is_planned=True)
    plan = EditPlan(NUM_PROMPT, Keep(START, 0), (Move(START, 80, END - START, 0),))
    session.segments, session.marks = plan_segments(plan, (SOURCE,), OWNER)
    session.planned = tuple(session.segments)
    session.num_hit = START
    session.admit(())
    session.receipt_builder.jump([ReceiptEntry(START, END, KVOrigin.MOVED, 80)])
    session.carry_out(START, END)
    assert session.settle().moved_tokens == END - START
    session.receipt_builder.advance(END)
    session.arm()
    return session


def test_a_move_that_is_refused_now_is_told_no_more(preempted: SessionRequest) -> None:
    """Its blocks have the names of exact KV then, and vLLM finds them where a twin computed the same prompt."""
    segment = preempted.segment_at(START)
    assert segment is not None
    assert preempted.refuse(segment, START, END, "source_evicted") == START
    preempted.num_hit = END
    preempted.admit(())
    receipt = preempted.settle()
    assert (receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) == (END, 0, NUM_PROMPT - END)
    assert receipt.moves == ()


def test_a_move_whose_blocks_are_found_again_is_still_one(preempted: SessionRequest) -> None:
    preempted.num_hit = END
    preempted.admit(())
    receipt = preempted.settle()
    assert (receipt.kept_tokens, receipt.moved_tokens) == (START, END - START)


def test_what_is_said_after_a_preemption_is_forgotten_when_it_runs_again(preempted: SessionRequest) -> None:
    """Output that was in flight asks for the receipt while the request waits, and gets that of the run before."""
    assert preempted.answer()["acm"]["receipt"]["moved_tokens"] == END - START
    preempted.num_hit = 0
    preempted.admit(())
    preempted.receipt_builder.advance(NUM_PROMPT)
    assert preempted.answer()["acm"]["receipt"]["moved_tokens"] == 0
