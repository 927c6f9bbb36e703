"""The count that `acm.commit` was made for: the eight folds of PI-LLM, one a step, cost what they cost at once.

The trace of `acmserve bench commits` without an engine, in tokens of the real tokenizer. What a step computes is what
its prompt has beside the longest one that was served before, as the rollout record keeps it.
"""

from __future__ import annotations

from functools import partial

from transformers import AutoTokenizer

from acmserve.bench.harness.workloads import STREAM_BEGINS, STREAM_ENDS, pi_llm
from acmserve.models.smollm2 import prepare
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.commits.folding_client import FoldingClient
from tests.support.routes.stand_in_model import call, said
from tests.support.server.acm_app import make_server

NUM_FOLDS = 8
CUT = call("fragment_context", start_marker=STREAM_BEGINS, end_marker=STREAM_ENDS, num_fragments=10)


def test_eight_folds_one_a_step_cost_at_most_a_fifth_more_than_at_once() -> None:
    real = AutoTokenizer.from_pretrained(prepare())
    tokenizer, encode = ServedTokenizer(real), partial(real.encode, add_special_tokens=False)
    workload = pi_llm()

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

    one_a_step = [(number,) for number in range(NUM_FOLDS)]
    at_once = num_computed("now", tuple(range(NUM_FOLDS)))
    assert 4_000 < at_once < 7_000
    assert num_computed("cheapest", *one_a_step) <= 1.2 * at_once
    assert num_computed("now", *one_a_step) > 10 * at_once
