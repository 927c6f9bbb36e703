"""Value-specific attention: values are found where they stand, and moved KV is turned to where it belongs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.tasks import value_attention as attention
from acmserve.bench.tasks.generators.pi_llm import UpdateSizes, make_case
from acmserve.bench.tasks.prompt import tokenize_case

CASE = make_case(3, UpdateSizes(5, 6, 2))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A token for every word with the space in front of it."""
    words = [*KEYS, *VALUES, *(f" {value}" for value in VALUES), ":", "\n"]
    plain = Tokenizer(models.WordLevel({"?": 0} | {word: n for n, word in enumerate(words, start=1)}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+|\W"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?")


def model(num_layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def test_values_are_found_where_they_stand(tokenizer: Any) -> None:
    tokens = tokenize_case(CASE, tokenizer)
    found = attention._find_values(CASE, tokens, tokenizer)
    words = tokenizer.convert_ids_to_tokens(list(tokens.full))
    assert len(found) == 5
    for value in found:
        said = ["".join(words[at] for at in where).lstrip() for where in value.positions]
        assert (len(said), said[-1]) == (6, value.latest)
        assert len(set(said)) == 6
    asked = {question.text.removesuffix(":"): question.gold for question in CASE.questions}
    assert asked.items() <= {(value.key, value.latest) for value in found}


def test_with_one_layer_moved_kv_is_the_exact_one(tokenizer: Any) -> None:
    tokens = tokenize_case(CASE, tokenizer)
    with torch.inference_mode():
        contexts = attention._read(model(1), tokens)
    assert contexts[attention.MOVED].shift == len(tokens.folded) - len(tokens.full) != 0
    for moved, exact in zip(
        contexts[attention.MOVED].cache.layers, contexts[attention.EXACT].cache.layers, strict=True
    ):
        assert torch.allclose(moved.keys, exact.keys, atol=1e-5)
        assert torch.allclose(moved.values, exact.values, atol=1e-6)


def test_attention_sees_stale_values_before_the_fold_and_the_kept_ones_behind_it(tokenizer: Any) -> None:
    tokens = tokenize_case(CASE, tokenizer)
    twice = model(2)
    with torch.inference_mode():
        contexts = attention._read(twice, tokens)
        for value in attention._find_values(CASE, tokens, tokenizer):
            seen = {name: attention._attend(twice, tokenizer, held, value) for name, held in contexts.items()}
            # Random weights attend evenly: five stale values of six against one of two.
            assert seen[attention.FULL]["stale"] > 3 * seen[attention.FULL]["latest"]
            assert 0.5 < seen[attention.EXACT]["stale"] / seen[attention.EXACT]["latest"] < 2
            assert seen[attention.EXACT]["echo"] > seen[attention.FULL]["echo"]
            assert seen[attention.MOVED] != seen[attention.EXACT]
    assert {name: held.cache.get_seq_length() for name, held in contexts.items()} == {
        attention.FULL: len(tokens.full),
        attention.EXACT: len(tokens.folded),
        attention.MOVED: len(tokens.folded),
    }


def test_the_table_tells_gains_beside_the_full_context() -> None:
    def seen(echo: float) -> dict[str, float]:
        return {"latest": echo, "stale": 0.0, "echo": echo}

    names = (attention.FULL, attention.EXACT, attention.MOVED)
    rows = [dict(zip(names, map(seen, echoes), strict=True)) for echoes in ((0.1, 0.2, 0.05), (0.1, 0.1, 0.3))]
    summary = [attention._summary(rows, name, 0) for name in names]
    assert [row["num_gain"] for row in summary] == [0, 1, 1]
    assert [row["echo_gain"] for row in summary] == [0.0, 0.5, 0.75]
    report = SimpleNamespace(keys=rows, full_tokens=200, folded_context_tokens=80, summary=summary)
    table = "\n".join(attention.as_table(vars(report)))
    assert "1 of 2" in table
    assert "+50%" in table
