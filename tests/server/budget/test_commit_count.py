"""The count that `acm.commit` was made for: the folds of PI-LLM, one a step, cost about what they cost at once.

The trace of `acmserve bench commits` without an engine, in tokens of the real tokenizer. What a step computes is what
its prompt has beside the longest one that was served before, as the rollout record keeps it.
"""

from __future__ import annotations

from functools import partial

import pytest
from transformers import AutoTokenizer

from acmserve.bench.harness.workloads import STREAM_BEGINS, STREAM_ENDS, pi_llm
from acmserve.bench.sculptor.commits import MOST, SIZES
from acmserve.models.smollm2 import prepare
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.commits.folding_client import FoldingClient
from tests.support.routes.stand_in_model import call, said
from tests.support.server.acm_app import make_server

CUT = call("fragment_context", start_marker=STREAM_BEGINS, end_marker=STREAM_ENDS, num_fragments=10)


@pytest.mark.parametrize(("is_quick", "least", "most", "times"), [(False, 4_000, 7_000, 10), (True, 3_000, 4_000, 4)])
def test_folds_one_a_step_cost_at_most_a_fifth_more_than_at_once(
    is_quick: bool, least: int, most: int, times: int
) -> None:
    """Of both sizes of the benchmark. The control: where each takes effect at once they cost many `times` that."""
    real = AutoTokenizer.from_pretrained(prepare())
    tokenizer, encode = ServedTokenizer(real), partial(real.encode, add_special_tokens=False)
    sizes = SIZES[is_quick]
    workload = pi_llm(**sizes)

    def num_computed(commit: str, *steps: tuple[int, ...]) -> int:
        """Tokens that the folds, their answer and the next turn compute."""
        server = make_server(tokenizer=tokenizer)
        client = FoldingClient(server, text=workload.question, cut=CUT, commit=commit, encode=encode)
        num_before = len(client.session.state.rollout.completions)
        client.ask(*(client.fold(*numbers) for numbers in steps), said(workload.answer))
        client.say("Thank you. Say it once more.")
        client.ask(said("It is as I said."))
        completions = client.session.state.rollout.completions[num_before + 1 :]
        assert len(completions) == len(steps) + 1
        return sum(len(completion.tail) for completion in completions)

    one_a_step = [(number,) for number in range(sizes["num_folded"])]
    at_once = num_computed("now", tuple(range(sizes["num_folded"])))
    assert least < at_once < most
    assert num_computed("cheapest", *one_a_step) <= MOST * at_once
    assert num_computed("now", *one_a_step) > times * at_once
