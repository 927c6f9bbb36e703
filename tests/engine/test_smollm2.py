"""A real model on the real engine, beside a stock engine that does not have the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from acmserve.bench.demo import conversation
from acmserve.errors import InvalidRequest
from tests.support.engine.edits import Tokens, cut
from tests.support.engine.engine import Answer, Engine

NUM_ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(smollm2_folder)
    return loaded


@pytest.fixture(scope="module")
def history(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """512 tokens of the bundled conversation: four blocks."""
    text = "\n".join(message["content"] for message in conversation.load().messages)
    tokens: Tokens = tokenizer(text)["input_ids"][:512]
    return tokens


@pytest.fixture(scope="module")
def new_turn(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    turn = "<|im_end|>\n<|im_start|>user\nWhat did we learn?<|im_end|>\n<|im_start|>assistant\n"
    tokens: Tokens = tokenizer(turn)["input_ids"]
    return tokens


@pytest.fixture(scope="module")
def folded(history: Tokens, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    marker = tokenizer('[folded f1a2b3: 200 tokens hidden; restore_fragment("f1a2b3") to read]')["input_ids"]
    return cut(history, 160, 360, marker)


def test_appends_are_token_identical_to_stock(
    smollm2_engine: Engine, stock_engine: Engine, history: Tokens, new_turn: Tokens
) -> None:
    """No edit, then an edit at the tail: the last turn is replaced."""
    for context in (history, [*history, *new_turn], [*history[:-40], *new_turn]):
        ours = smollm2_engine.ask(context, "append", max_tokens=NUM_ANSWER_TOKENS)
        stock = stock_engine.ask(context, max_tokens=NUM_ANSWER_TOKENS)
        assert ours.token_ids == stock.token_ids
    assert ours.receipt is not None
    assert ours.receipt["fidelity"] == "exact"
    assert ours.receipt["computed_tokens"] == len(new_turn)


def test_exact_fold_is_token_identical_to_stock(
    smollm2_engine: Engine, stock_engine: Engine, history: Tokens, folded: Tokens, new_turn: Tokens
) -> None:
    smollm2_engine.ask(history, "fold", "exact")
    stock_engine.ask(history)
    ours = smollm2_engine.ask([*folded, *new_turn], "fold", "exact", max_tokens=NUM_ANSWER_TOKENS)
    stock = stock_engine.ask([*folded, *new_turn], max_tokens=NUM_ANSWER_TOKENS)
    assert ours.token_ids == stock.token_ids
    assert ours.receipt is not None
    assert ours.receipt["moved_tokens"] == 0
    assert ours.receipt["kept_tokens"] == 160


def test_a_redaction_is_token_identical_to_stock(
    smollm2_engine: Engine, stock_engine: Engine, history: Tokens, folded: Tokens, new_turn: Tokens
) -> None:
    """Folded under `reuse` first, so that the text behind the redaction was moved from where the secret was seen."""
    smollm2_engine.ask(history, "redact", "reuse", salt="redact")
    moved = smollm2_engine.ask([*folded, *new_turn], "redact", "reuse", salt="redact")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] == 152, moved.receipt["fallback_reason"]
    for context in ([*folded, *new_turn], [*history, *new_turn]):
        forget = context[: len(folded)] == folded
        ours = smollm2_engine.ask(
            context, "redact", "exact", salt="redact", max_tokens=NUM_ANSWER_TOKENS, forget=forget
        )
        assert ours.token_ids == stock_engine.ask(context, salt="redact", max_tokens=NUM_ANSWER_TOKENS).token_ids
        assert ours.receipt is not None
        assert ours.receipt["kept_tokens"] <= 160, "KV behind the redaction came from somewhere"


@pytest.fixture(scope="module")
def restored(smollm2_engine: Engine, history: Tokens, folded: Tokens, new_turn: Tokens) -> list[Answer]:
    """Under `reuse`: a turn, the same with text folded, the first once more, and again."""
    smollm2_engine.ask(history, "restore", "reuse", salt="restore")
    contexts = ([*history, *new_turn], [*folded, *new_turn], [*history, *new_turn], [*history, *new_turn])
    return [smollm2_engine.ask(context, "restore", "reuse", salt="restore") for context in contexts]


def test_restore_is_bit_exact_and_computes_no_old_token(restored: list[Answer], new_turn: Tokens) -> None:
    before, fold, after, again = restored
    assert fold.receipt is not None
    assert fold.receipt["moved_tokens"] == 152 + len(new_turn) - 1, fold.receipt["fallback_reason"]
    assert after.receipt is not None
    assert after.receipt["computed_tokens"] == 1
    assert after.receipt["moved_tokens"] == 0
    assert after.logprobs == again.logprobs
    assert after.distance(before) < 1e-3, "the same KV, but its last token went through the model in another chunk"


def test_receipts_sum_and_moves_are_named(
    restored: list[Answer], history: Tokens, folded: Tokens, new_turn: Tokens
) -> None:
    """The turn behind the fold was served before, so all of it but its last token moves, too."""
    receipt = restored[1].receipt
    assert receipt is not None
    num_marker, num_moved = len(folded) - len(history) + 200, 152 + len(new_turn) - 1
    assert receipt["prompt_tokens"] == len(folded) + len(new_turn)
    assert receipt["fallback_reason"] is None
    assert receipt["moves"] == [{"dst_start": 160 + num_marker, "src_start": 360, "num_tokens": num_moved}]
    assert receipt["kept_tokens"] + receipt["moved_tokens"] + receipt["computed_tokens"] == receipt["prompt_tokens"]


def test_a_request_without_session_has_no_receipt(smollm2_engine: Engine, new_turn: Tokens) -> None:
    assert smollm2_engine.ask(new_turn).receipt is None


def test_a_bad_session_raises_and_the_engine_goes_on(smollm2_engine: Engine, new_turn: Tokens) -> None:
    with pytest.raises(InvalidRequest, match="fidelity"):
        smollm2_engine.ask(new_turn, "bad", "perfect")
    with pytest.raises(InvalidRequest, match="session_id"):
        smollm2_engine.ask(new_turn, "x" * 257, "exact")
    receipt = smollm2_engine.ask(new_turn, "good", "exact").receipt
    assert receipt is not None
    assert receipt["prompt_tokens"] == len(new_turn)
