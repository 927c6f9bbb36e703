"""What a finished request leaves: the states of its prefix, and the one behind its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acmserve.engine.requests import served_source
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.served_source import is_state_at_end, plan_source, with_tail
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.owner import Owner
from acmserve.plan.source import KeptState, ServedSequence

STATES = (KeptState(20, b"a"), KeptState(45, b"b"), KeptState(90, b"c"))


def served(num_computed: int = 100, taken_back: tuple[int, ...] = ()) -> tuple[ServedSequence, Any]:
    prompt = np.arange(100, dtype=np.int32)
    session = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(100), prompt, states=STATES)
    session.taken_back.extend(taken_back)
    request: Any = SimpleNamespace(
        num_computed_tokens=num_computed,
        num_in_flight_tokens=0,
        num_tokens=101,
        output_token_ids=[7],
        block_hashes=[b"%d" % index for index in range(6)],
    )
    source = plan_source(session, request, 16, 1)
    assert source is not None
    return source, request


def test_a_source_has_the_states_of_its_prefix_and_its_own() -> None:
    source, request = served()
    assert source.states == STATES
    assert is_state_at_end(request, source)
    kept = with_tail(source, b"end", has_state=True)
    assert kept.states == (*STATES, KeptState(100, b"end"))
    assert kept.kept_keys == (b"a", b"b", b"c", b"end")
    assert with_tail(source, b"end", has_state=False).kept_keys == (b"end",)
    assert served(num_computed=60)[0].states == STATES[:2], "it was aborted in front of the last"


def test_behind_a_mark_that_was_taken_back_no_state_is_left() -> None:
    """The tokens there were computed anew, and the kept states are of KV that was moved."""
    assert served(taken_back=(70, 45))[0].states == STATES[:2]
    assert served(taken_back=(44,))[0].states == STATES[:1]


def test_a_state_behind_a_token_in_flight_is_not_at_the_end() -> None:
    source, request = served()
    request.num_computed_tokens += 1
    assert not is_state_at_end(request, source)


def test_a_source_remembers_the_latest_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_source, "MAX_STATES", 2)
    assert served()[0].states == STATES[1:]
