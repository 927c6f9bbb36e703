"""The conversations of `bench sculptor` end to end: PI-LLM in full size, and a chain of searches, with their receipts.

The model is scripted and has one random layer. Prompt, tools, loop, engine and KV cache are real.
"""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.bench.harness.workloads import Workload, needle_chain, pi_llm, plan_script
from acmserve.bench.sculptor.run import check_workload_run, run_workload
from acmserve.models.smollm2 import prepare
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support import http
from tests.support.server.scripts import new_session


@pytest.fixture(scope="module")
def tokenizer() -> ServedTokenizer:
    return ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))


def run(url: str, workload: Workload, tokenizer: ServedTokenizer, fidelity: str) -> Any:
    loop = run_workload(url, workload, plan_script(workload, tokenizer), fidelity, new_session())
    assert check_workload_run(loop, workload) == []
    return loop


@pytest.mark.parametrize("fidelity", ["exact", "reuse"])
def test_pi_llm_folds_eight_of_ten_in_one_plan(scripted_server: str, tokenizer: ServedTokenizer, fidelity: str) -> None:
    loop = run(scripted_server, pi_llm(num_keys=46, num_updates=64), tokenizer, fidelity)
    assert loop.tokens_before > 15_000
    assert loop.tokens_after < 0.4 * loop.tokens_before
    cut, folds, _ = loop.operations
    assert [len(cut), len(folds)] == [1, 8]
    first, after_cut, after_folds = loop.receipts
    assert first["computed_tokens"] == first["prompt_tokens"]
    assert after_cut["computed_tokens"] < 1_200, "the fragments' list was appended, nothing else"
    suffix = loop.tokens_before / 5
    if fidelity == "reuse":
        (move,) = after_folds["moves"]
        assert move["num_tokens"] > suffix
        assert after_folds["computed_tokens"] < 1_000, "eight markers and eight results"
    else:
        assert after_folds["moves"] == []
        assert suffix < after_folds["computed_tokens"] < 2 * suffix
    assert loop.follow_up["computed_tokens"] < 100


def test_a_chain_of_searches_computes_only_what_it_appends(scripted_server: str, tokenizer: ServedTokenizer) -> None:
    loop = run(scripted_server, needle_chain(num_needles=5, num_lines=600), tokenizer, "exact")
    tools = [operation["tool"] for step in loop.operations for operation in step]
    assert tools == ["search_context", "get_search_detail", *["search_context"] * 5]
    for before, after in zip(loop.receipts, loop.receipts[1:], strict=False):
        assert after["computed_tokens"] <= after["prompt_tokens"] - before["prompt_tokens"]
        assert after["computed_tokens"] < 250
    assert sum(receipt["computed_tokens"] for receipt in loop.receipts[1:]) < loop.tokens_before / 5


def test_search_finds_what_a_fold_hides(scripted_server: str, tokenizer: ServedTokenizer) -> None:
    name = new_session()
    workload = pi_llm(num_keys=10, num_updates=20, num_fragments=5, num_folded=4)
    loop = run_workload(scripted_server, workload, plan_script(workload, tokenizer), "exact", name)
    assert check_workload_run(loop, workload) == []
    key = workload.question.splitlines()[1]
    found = http.post(
        f"{scripted_server}/v1/acm/sessions/{name}/tools/search_context",
        json={"arguments": {"query": key}},
        headers={"X-Cache-Salt": name},
    ).json()
    assert "in folded f" in found["result"]
