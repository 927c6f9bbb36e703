"""A session stays on the rank that holds its KV, and few move where a rank is added."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams

from acmserve.engine.config import CONNECTOR_NAME
from acmserve.engine.requests.session_rank import place_request, rank_of
from acmserve.engine.vllm.install import _place_session
from acmserve.errors import InvalidRequest

NAMES = [f"agent-{number}" for number in range(2000)]


@given(st.text(min_size=1, max_size=40), st.integers(1, 16))
def test_a_rank_that_is_added_takes_a_session_or_leaves_it(session_id: str, num_ranks: int) -> None:
    before, after = rank_of(session_id, num_ranks), rank_of(session_id, num_ranks + 1)
    assert 0 <= before < num_ranks
    assert after in (before, num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 7])
def test_one_of_n_moves_and_all_ranks_have_as_many(num_ranks: int) -> None:
    """Within four standard deviations. The control: of a hash that is divided, nearly all move."""
    moved = sum(rank_of(name, num_ranks) != rank_of(name, num_ranks + 1) for name in NAMES)
    share = 1 / (num_ranks + 1)
    assert abs(moved - len(NAMES) * share) < 4 * (len(NAMES) * share * (1 - share)) ** 0.5
    held = Counter(rank_of(name, num_ranks + 1) for name in NAMES)
    assert all(abs(held[rank] - len(NAMES) * share) < 4 * (len(NAMES) * share) ** 0.5 for rank in range(num_ranks + 1))
    if num_ranks > 2:
        divided = sum(number % num_ranks != number % (num_ranks + 1) for number in range(len(NAMES)))
        assert divided > 2 * moved


def test_a_rank_outlives_the_process() -> None:
    """Several API servers, and one that was started again, send a session to the same engine."""
    assert [rank_of(name, 4) for name in NAMES[:8]] == [3, 2, 1, 1, 0, 3, 1, 0]


def placed(num_ranks: int, params: SamplingParams, *, is_local: bool = False, **kwargs: Any) -> Any:
    """The `data_parallel_rank` that vLLM's own function is called with, None where it is not."""
    parallel = SimpleNamespace(data_parallel_size=num_ranks, data_parallel_size_local=1, local_engines_only=is_local)
    transfer = SimpleNamespace(kv_connector=CONNECTOR_NAME)
    processor = SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel))

    def process_inputs(_processor: Any, _request_id: str, _prompt: Any, _params: Any, **given: Any) -> Any:
        return given.get("data_parallel_rank")

    return _place_session(CONNECTOR_NAME, place_request, process_inputs, processor, "r", {}, params, **kwargs)


def test_only_a_session_that_names_no_rank_is_placed() -> None:
    """Every door counts: the parameters of ours, and vLLM's own session id."""
    plain = SamplingParams()
    ours = SamplingParams(extra_args={"kv_transfer_params": {"acm": {"session_id": NAMES[3]}}})
    assert placed(4, ours, data_parallel_rank=None) == rank_of(NAMES[3], 4) == 1
    assert placed(4, plain, data_parallel_rank=None, session_id=NAMES[0]) == rank_of(NAMES[0], 4) == 3
    assert placed(4, ours, data_parallel_rank=2) == 2, "the caller's choice"
    assert placed(4, plain, data_parallel_rank=None) is None, "no session"
    assert placed(4, ours) is None, "a front end that has no ranks"
    assert placed(1, ours, data_parallel_rank=None) is None
    assert placed(4, ours, is_local=True, data_parallel_rank=None) is None, "the only rank that it reaches"
    with pytest.raises(InvalidRequest, match="session_id"):
        placed(4, plain, data_parallel_rank=None, session_id="")
    assert place_request(None, None, 4) is None


def test_a_piece_of_streaming_input_erases_nothing() -> None:
    """vLLM hands the parameters of a later piece to nobody. Its redaction would be acknowledged, not carried out."""
    erasing = SamplingParams(extra_args={"kv_transfer_params": {"acm": {"session_id": NAMES[3], "forget": True}}})
    with pytest.raises(InvalidRequest, match="send a request of its own"):
        placed(4, erasing, data_parallel_rank=None, resumable=True)
    assert placed(4, erasing, data_parallel_rank=None) == 1
    plain = SamplingParams(extra_args={"kv_transfer_params": {"acm": {"session_id": NAMES[3]}}})
    assert placed(4, plain, data_parallel_rank=None, resumable=True) == 1
