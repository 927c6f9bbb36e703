"""Distances of `bench fidelity` against what is known on paper, and its logits processor without an engine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams

from acmserve.bench.fidelity.score import distance, interval
from acmserve.bench.models.forced_model import ForcedModel, take


def test_kl_of_two_coins() -> None:
    exact = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    served = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log() + 3.0
    found = distance(exact, served)
    assert found.kl == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0), abs=1e-6)
    assert found.mean_kl == pytest.approx(sum(found.kl) / 2)
    assert found.same_top == (False, True)
    assert found.top1 == 0.5


def test_the_same_logits_are_at_no_distance_and_other_shapes_at_none() -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    found = distance(logits, logits.clone())
    assert (found.kl, found.max_logit_difference) == ((0.0,) * 20, 0.0)
    with pytest.raises(ValueError, match=r"\(20, 50\) and \(19, 50\)"):
        distance(logits, logits[1:])


@given(st.integers(0, 1000))
def test_kl_is_never_negative(seed: int) -> None:
    logits = torch.randn(2, 3, 30, generator=torch.Generator().manual_seed(seed))
    found = distance(logits[0], logits[1])
    assert min(found.kl) >= 0
    # Against torch's own, which takes the arguments the other way round.
    expected = torch.nn.functional.kl_div(logits[1].log_softmax(-1), logits[0].softmax(-1), reduction="batchmean")
    assert found.mean_kl == pytest.approx(float(expected), rel=1e-4)


def test_intervals_are_over_documents() -> None:
    values, clusters = [0.0] * 50 + [1.0] * 50, ["a"] * 50 + ["b"] * 50
    # Two clusters that disagree: any mean between theirs is possible, however many cases each has.
    assert interval(values, clusters, seed=0) == (0.0, 1.0)
    assert interval(values, ["a"] * 100, seed=0) is None
    low, high = interval(values, [str(n) for n in range(100)], seed=0) or (0.0, 0.0)
    assert 0.35 < low < 0.5 < high < 0.65
    assert interval(values, clusters[::-1], seed=5) == interval(values, clusters[::-1], seed=5)


def test_a_request_is_led_along_its_text_and_its_logits_are_kept_as_they_were() -> None:
    led = object.__new__(ForcedModel)
    assert led.new_req_logits_processor(SamplingParams()) is None
    force = led.new_req_logits_processor(SamplingParams(extra_args={"forced_id": "a", "forced": [3, 1]}))
    rows = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert force([], rows[0].clone()).argmax() == 3
    out = force([3], rows[1].clone())
    assert out.tolist() == [-math.inf, 0.0, -math.inf, -math.inf, -math.inf]
    assert torch.equal(take("a"), rows)
    with pytest.raises(KeyError):
        take("a")
