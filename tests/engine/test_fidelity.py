"""`repair` and `auto` on a real model, where moved KV differs from exact KV."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from acmserve.bench.demo import conversation
from acmserve.plan.repair import grain_of
from tests.support.engine.edits import Tokens, cut
from tests.support.engine.engine import Answer, Engine

NUM_ANSWER_TOKENS = 8
QUESTION = "<|im_end|>\n<|im_start|>user\nWhat did we learn?<|im_end|>\n<|im_start|>assistant\n"
MARKER = "[folded: 300 tokens hidden]"


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(smollm2_folder)
    return loaded


def talk(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    text = "\n".join(message["content"] for message in conversation.load().messages)
    tokens: Tokens = tokenizer(text)["input_ids"][:1200]
    return tokens


def updates(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """1,200 tokens of values that change."""
    rng = random.Random("updates")
    keys = ("river", "stone", "cloud", "lamp", "chair", "paper", "glass", "metal", "horse", "tiger")
    values = ("red", "blue", "copper", "silver", "Paris", "Lima", "oak", "birch")
    rows = (f"{key}: {rng.choice(values)}" for _ in range(60) for key in keys)
    tokens: Tokens = tokenizer("\n".join(rows))["input_ids"][:1200]
    return tokens


def ask_folded(
    engine: Engine, history: Tokens, salt: str, fidelity: str, new: Tokens, marker: Tokens, end: int = 600
) -> Answer:
    """Serve the history, then fold `[300, end)` of it. Sessions of one salt compute the history once."""
    session = f"{salt}-{fidelity}"
    engine.ask(history, session, "exact", salt=salt)
    repair = {"head_tokens": 4096} if fidelity == "repair" else None
    context = [*cut(history, 300, end, marker), *new]
    answer = engine.ask(context, session, fidelity, salt=salt, max_tokens=NUM_ANSWER_TOKENS, repair=repair)
    assert answer.receipt is not None
    assert answer.receipt["fidelity"] == fidelity
    return answer


def surprise(exact: Answer, served: Answer) -> float:
    """How far off the tokens are that exact lists, each by its weight. Others are as likely as the rarest."""
    rarest = min(served.logprobs.values())
    return sum(math.exp(p) * abs(p - served.logprobs.get(token, rarest)) for token, p in exact.logprobs.items())


def test_the_dial_from_reuse_to_exact(smollm2_engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
    """Repair of all is `exact`, token for token. `auto` moves other text but for a few echoes."""
    new, marker = tokenizer(QUESTION)["input_ids"], tokenizer(MARKER)["input_ids"]
    fidelities, salts = ("exact", "repair", "auto"), {"auto": "t", "repair": "t", "exact": "t-exact"}
    answers = {f: ask_folded(smollm2_engine, talk(tokenizer), salt, f, new, marker) for f, salt in salts.items()}
    exact, repair, auto = (answers[f].receipt or {} for f in fidelities)
    assert answers["repair"].token_ids == answers["exact"].token_ids
    assert answers["repair"].logprobs == answers["exact"].logprobs
    assert repair["fallback_reason"] is None
    assert (exact["repaired_tokens"], repair["repaired_tokens"], repair["moved_tokens"]) == (0, 600, 0)
    assert repair["computed_tokens"] == exact["computed_tokens"]
    assert (auto["chosen"], auto["moved_tokens"] + auto["repaired_tokens"]) == ("repair", 600), auto["reason"]
    assert 10 <= auto["repaired_tokens"] <= 100


def test_auto_is_exact_where_state_is_superseded(smollm2_engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
    new, marker = tokenizer(QUESTION)["input_ids"], tokenizer(MARKER)["input_ids"]
    history = updates(tokenizer)
    answers = {f: ask_folded(smollm2_engine, history, f"u-{f}", f, new, marker) for f in ("auto", "exact")}
    receipt = answers["auto"].receipt
    assert receipt is not None
    assert receipt["fallback_reason"] is None
    assert (receipt["chosen"], receipt["moved_tokens"], receipt["repaired_tokens"]) == ("exact", 0, 600)
    assert receipt["reason"].startswith("599 of 600 tokens that could move repeat removed text")
    assert answers["auto"].token_ids == answers["exact"].token_ids


def test_auto_moves_the_prose_around_a_list_behind_twice_as_much(
    smollm2_engine: Engine, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Twice as much is removed as stays, and two fifths of what stays update it. `reuse` moves that, too."""
    new, marker = tokenizer("\nriver:")["input_ids"], tokenizer(MARKER)["input_ids"]
    words, rows = talk(tokenizer), updates(tokenizer)
    kept = [*words[300:370], *rows[-80:], *words[370:420]]
    history = [*words[:300], *rows[:400], *kept]
    salts = {"auto": "l", "reuse": "l", "exact": "l-exact"}
    answers = {f: ask_folded(smollm2_engine, history, salt, f, new, marker, end=700) for f, salt in salts.items()}
    auto, exact, reuse = (answers[f].receipt or {} for f in ("auto", "exact", "reuse"))
    assert (auto["chosen"], auto["fallback_reason"]) == ("repair", None), auto["reason"]
    assert "400 were removed" in auto["reason"]
    assert 80 <= auto["repaired_tokens"] <= 110 <= auto["moved_tokens"] + 20
    assert auto["moved_tokens"] + auto["repaired_tokens"] == reuse["moved_tokens"]
    assert all(move["num_tokens"] >= grain_of().rest_tokens for move in auto["moves"])
    assert auto["kept_tokens"] == exact["kept_tokens"] == 300
    assert surprise(answers["exact"], answers["auto"]) < surprise(answers["exact"], answers["reuse"])
