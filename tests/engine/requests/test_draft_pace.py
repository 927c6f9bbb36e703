"""Chunks of a prefill beside a draft of its session, and beside nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acmserve.engine.requests.draft_pace import DraftPace
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.owner import Owner

NUM_PROMPT = 5500


def _add(live: LiveRequests, name: str, session: str, *, draft: bool = False, num_left: int = 0) -> Any:
    made = SessionRequest(name, Owner(session), "exact", ReceiptBuilder(1), np.zeros(1, dtype=np.int32), draft=draft)
    request: Any = SimpleNamespace(
        request_id=name, num_prompt_tokens=NUM_PROMPT, max_tokens=10 + num_left, num_output_tokens=10
    )
    live.add(made, request)
    return request


@pytest.mark.parametrize(
    ("num_left", "num_computed", "expected"),
    [
        (200, 500, 64),
        (50, 500, 100),  # an even share: 5000 / 50
        (1, 500, 2048),  # the draft ends first: the chunk that vLLM chose
        (0, 500, 2048),  # no token is left to draft
        (200, 5480, 20),  # the rest of the prompt is shorter than a chunk
    ],
)
def test_a_chunk_leaves_the_draft_its_steps(num_left: int, num_computed: int, expected: int) -> None:
    live = LiveRequests()
    exact, other = _add(live, "e", "s"), _add(live, "o", "t")
    draft = _add(live, "d", "s", draft=True, num_left=num_left)
    pace = DraftPace(live, 16, 64)
    num_new = min(2048, NUM_PROMPT - num_computed)
    capped = pace.cap_chunk(exact, num_computed, num_new)
    if num_new > capped:
        assert (num_computed + capped) % 16 == 0
        assert expected - 16 < capped <= expected
    else:
        assert capped == min(expected, num_new)
    assert pace.cap_chunk(other, num_computed, num_new) == num_new, "another session is not held back"
    assert pace.cap_chunk(draft, num_computed, num_new) == num_new
    live.remove("d")
    assert pace.cap_chunk(exact, num_computed, num_new) == num_new, "the draft has ended"
