"""Log probabilities that nobody asked for are taken down and hidden, and of a prompt only those of its end come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs, Logprob
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.outputs import LogprobsTensors

from acmserve.engine.vllm.scheduler import _keep_scored_rows
from acmserve.plan.request import SCORED_TOKENS
from acmserve.server.exchange.scores import MAX_SCORED, AnswerScores, PromptScores


def output_of(*tokens: tuple[int, float], index: int = 0) -> Any:
    completion = SimpleNamespace(
        index=index,
        token_ids=[token for token, _ in tokens],
        logprobs=[{token: Logprob(logprob), 99: Logprob(-0.1)} for token, logprob in tokens],
        cumulative_logprob=-3.0,
    )
    return SimpleNamespace(outputs=[completion], prompt_logprobs=None)


def test_the_answer_is_taken_down_and_hidden() -> None:
    scores, params = AnswerScores(), SamplingParams()
    scores.ask(params)
    scores.ask(params)
    assert params.logprobs == 0
    deltas = [output_of((5, -0.5), (6, -0.25)), output_of((4, -9.0), index=1), output_of((7, -1.5))]
    for delta in deltas:
        scores.take(delta, in_deltas=True)
        assert (delta.outputs[0].logprobs, delta.outputs[0].cumulative_logprob) == (None, None)
    scored = scores.scored()
    assert scored is not None
    assert (scored.token_ids, scored.logprobs) == ((5, 6, 7), (-0.5, -0.25, -1.5))


def test_what_a_client_asked_for_it_gets() -> None:
    scores, params = AnswerScores(), SamplingParams(logprobs=3)
    scores.ask(params)
    assert params.logprobs == 3
    for whole in (output_of((5, -0.5)), output_of((5, -0.5), (6, -0.25))):
        scores.take(whole, in_deltas=False)
        assert whole.outputs[0].logprobs is not None
    scored = scores.scored()
    assert scored is not None
    assert scored.token_ids == (5, 6)


def test_tokens_that_a_client_names_are_told_as_it_asked() -> None:
    """A number beside them has to be theirs, and vLLM refused the request with 0."""
    scores, params = AnswerScores(), SamplingParams(logprob_token_ids=[1, 2, 3])
    scores.ask(params)
    assert params.logprobs is None
    config: Any = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: 100)
    params._validate_logprobs(config)
    told = output_of((5, -0.5))
    scores.take(told, in_deltas=True)
    assert told.outputs[0].logprobs is not None
    scored = scores.scored()
    assert scored is not None
    assert (scored.token_ids, scored.logprobs) == ((5,), (-0.5,))


@pytest.mark.parametrize("asks", [False, True], ids=["hidden", "asked for"])
@pytest.mark.parametrize(
    "forced",
    [
        {"structured_outputs": StructuredOutputsParams(json_object=True)},
        {"structured_outputs": StructuredOutputsParams(structural_tag="{}")},
        {"logit_bias": {5: 90.0}},
        {"allowed_token_ids": [5, 6]},
        {"bad_words": ["yes"]},
        {"min_tokens": 3},
        {"temperature": 1.5},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 2.0},
        {"thinking_token_budget": 0},
        {"trace_decode_token_ids": [5, 6]},
    ],
    ids=str,
)
def test_tokens_that_the_client_forced_are_not_judged(forced: dict[str, Any], asks: bool) -> None:
    """One tenant with a grammar made `auto` careful for all others of the model."""
    scores, params = AnswerScores(), SamplingParams(**forced, logprobs=2 if asks else None)
    scores.ask(params)
    assert params.logprobs == (2 if asks else None)
    told = output_of((5, -20.0))
    scores.take(told, in_deltas=True)
    assert told.outputs[0].logprobs is not None, "what the engine tells is the client's"
    assert scores.scored() is None


@pytest.mark.parametrize(
    "kept", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.5}, {"repetition_penalty": 1.1}]
)
def test_control_what_a_model_chooses_itself_is_judged(kept: dict[str, Any]) -> None:
    scores, params = AnswerScores(), SamplingParams(**kept)
    scores.ask(params)
    assert params.logprobs == 0
    scores.take(output_of((5, -0.5)), in_deltas=True)
    assert scores.scored() is not None


def test_a_long_answer_is_judged_by_its_beginning() -> None:
    scores = AnswerScores()
    scores.ask(SamplingParams())
    for token in range(MAX_SCORED + 9):
        scores.take(output_of((token, -1.0)), in_deltas=True)
    scored = scores.scored()
    assert scored is not None
    assert scored.token_ids == tuple(range(MAX_SCORED))
    assert AnswerScores().scored() is None


def test_a_prompts_end_is_asked_for_with_the_prefix_cache() -> None:
    params = SamplingParams(prompt_logprobs=0)
    assert params.skip_reading_prefix_cache is True, "vLLM computes all of it again"
    params = SamplingParams(extra_args={"a": 1})
    PromptScores([1, 2, 3], 2).ask(params)
    assert (params.prompt_logprobs, params.skip_reading_prefix_cache) == (0, False)
    assert params.extra_args == {"a": 1, SCORED_TOKENS: 2}
    plain = SamplingParams()
    PromptScores([1, 2, 3]).ask(plain)
    assert (plain.prompt_logprobs, plain.extra_args) == (None, None)


@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_tokens_that_were_found_are_left_out(flat: bool) -> None:
    rows: Any = FlatLogprobs() if flat else []
    for row in (None, {77: Logprob(0.0)}, {3: Logprob(-0.3)}, {4: Logprob(-0.4)}):
        rows.append(row)
    scores, told = PromptScores([1, 2, 3, 4], 3), SimpleNamespace(prompt_logprobs=rows, outputs=[])
    scores.take(told, in_deltas=False)
    assert told.prompt_logprobs is None
    assert scores.covered({"kept_tokens": 0}) == [-9999.0, -0.3, -0.4]
    assert scores.covered({"kept_tokens": 1}) == [-0.3, -0.4]
    assert scores.covered({"kept_tokens": 2}) == [-0.4]
    assert scores.covered({"kept_tokens": 3}) == []


def test_an_early_end_has_no_rows() -> None:
    scores = PromptScores([1, 2, 3, 4], 3)
    for rows in (None, [], [None, {4: Logprob(-1.0)}]):
        scores.take(SimpleNamespace(prompt_logprobs=rows, outputs=[]), in_deltas=False)
    assert scores.covered({"kept_tokens": 0}) == []


@pytest.mark.parametrize(
    ("wanted", "kept"), [(2, [3.0, 4.0]), (None, [0.0, 1.0, 2.0, 3.0, 4.0]), ("2", None), (-1, None)]
)
def test_only_wanted_rows_leave_the_engine(wanted: Any, kept: list[float] | None) -> None:
    """Whatever a client writes under that name, it harms nobody."""
    numbers = torch.arange(5.0)
    rows = LogprobsTensors(numbers[:, None].int(), numbers[:, None], numbers.int())
    extra = None if wanted is None else {SCORED_TOKENS: wanted}
    found: dict[str, Any] = {"a": rows, "gone": rows, "none": None}
    requests: Any = dict.fromkeys(("a", "none"), SimpleNamespace(sampling_params=SamplingParams(extra_args=extra)))
    _keep_scored_rows(SimpleNamespace(prompt_logprobs_dict=found), requests)
    assert found["a"].logprobs.flatten().tolist() == (numbers.tolist() if kept is None else kept)
    assert found["a"].selected_token_ranks.tolist() == found["a"].logprob_token_ids.flatten().tolist()
    assert found["gone"] is rows
