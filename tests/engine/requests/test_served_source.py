"""What a finished request leaves: the states of its prefix, and the one behind its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, StreamingUpdate

from acmserve.engine.requests import served_source
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.served_source import (
    is_state_at_end,
    plan_answer_key,
    plan_source,
    plan_tail_key,
    with_tail,
)
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.lineage import LineageMark
from acmserve.plan.owner import Owner
from acmserve.plan.source import KeptState, ServedSequence

HASHES = tuple(b"%d" % index for index in range(6))
STATES = (KeptState(20, b"a"), KeptState(45, b"b"), KeptState(90, b"c"))


def served(
    num_computed: int = 100,
    taken_back: tuple[int, ...] = (),
    answer_state: KeptState | None = None,
    num_prompt: int = 100,
) -> tuple[ServedSequence, Any]:
    """What a request leaves that computed so many of 101 tokens, the rest of which it said."""
    prompt = np.arange(num_prompt, dtype=np.int32)
    session = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(num_prompt), prompt, states=STATES)
    session.taken_back.extend(taken_back)
    session.answer_state = answer_state
    request: Any = SimpleNamespace(
        num_computed_tokens=num_computed,
        num_in_flight_tokens=0,
        num_tokens=101,
        output_token_ids=[7] * (101 - num_prompt),
        block_hashes=list(HASHES),
        resumable=False,
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


def test_the_state_in_front_of_the_answer_comes_along() -> None:
    """Also behind a mark that was taken back before it was kept. Not where one was since: it is of moved KV then."""
    session = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(95), np.arange(95, dtype=np.int32))
    key = plan_answer_key(session, HASHES[:5], 16)
    front = KeptState(95, key, is_before_answer=True)
    assert served(answer_state=front, num_prompt=95)[0].states == (*STATES, front)
    assert served(answer_state=front, num_prompt=95, taken_back=(44,))[0].states == (*STATES[:1], front)
    assert served(answer_state=front, num_prompt=95, num_computed=94)[0].states == STATES
    other = KeptState(95, b"of another lineage", is_before_answer=True)
    assert served(answer_state=other, num_prompt=95)[0].states == STATES


def test_the_key_in_front_of_an_answer_is_that_of_a_source_which_ends_there() -> None:
    """So a turn that is asked for one token leaves the same. A mark within the block makes another one."""
    session = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(60), np.arange(60, dtype=np.int32))
    hashes = (b"0", b"1", b"2")
    source = ServedSequence(session.prompt, 16, hashes)
    plain = plan_answer_key(session, hashes, 16)
    assert plain == plan_tail_key(session, source)
    assert plain != plan_answer_key(session, (b"0", b"1", b"other"), 16)
    session.marks.append(LineageMark(50, b"moved", 5))
    assert plain != plan_answer_key(session, hashes, 16)


def test_a_state_behind_a_token_in_flight_is_not_at_the_end() -> None:
    source, request = served()
    request.num_computed_tokens += 1
    assert not is_state_at_end(request, source)


def test_a_source_remembers_the_latest_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_source, "MAX_STATES", 2)
    assert served()[0].states == STATES[1:]


def test_streaming_input_leaves_the_tokens_that_its_blocks_hold() -> None:
    """vLLM makes the first answer a part of the prompt, without its last token, and puts more input behind it."""
    init_none_hash(sha256)
    hasher = get_request_block_hasher(16, sha256)

    def asked(token_ids: list[int], *, resumable: bool) -> Request:
        params = SamplingParams(max_tokens=64)
        return Request("r", list(token_ids), params, None, block_hasher=hasher, resumable=resumable)

    request = asked(list(range(40)), resumable=True)
    prompt = np.array(request.prompt_token_ids, dtype=np.int32)
    session = SessionRequest("r", Owner("s"), "exact", ReceiptBuilder(40), prompt)
    answers = [list(range(100, 110)), list(range(200, 240))]
    request.append_output_token_ids(answers[0])
    request.num_computed_tokens = request.num_tokens - 1
    more = StreamingUpdate.from_request(asked(list(range(300, 330)), resumable=True))
    scheduler: Any = SimpleNamespace(hash_block_size=16, num_waiting_for_streaming_input=1, log_stats=False)
    Scheduler._update_request_as_session(scheduler, request, more)  # type: ignore[arg-type]
    request.append_output_token_ids(answers[1])
    request.num_computed_tokens = request.num_tokens - 1
    source = plan_source(session, request, 16, 1)
    assert source is not None
    assert source.num_tokens == 40 + 9 + 30 + 39
    held = asked(source.tokens.tolist(), resumable=False)
    assert tuple(held.block_hashes) == source.block_hashes
    assert source.tokens.tolist()[40:50] == [*answers[0][:9], 300]
