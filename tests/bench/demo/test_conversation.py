"""The bundled conversation fits the model, and its turns are what the demo says they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from acmserve.bench.demo.conversation import DemoReplay, Tokens, load, plan_replay
from acmserve.bench.demo.run import ANSWER_TOKENS, MAX_MODEL_LEN


@pytest.fixture(scope="module")
def replay(smollm2_folder: Path) -> DemoReplay:
    return plan_replay(load(), AutoTokenizer.from_pretrained(smollm2_folder))


def common(left: Tokens, right: Tokens) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def test_sizes(replay: DemoReplay) -> None:
    assert 5_500 <= len(replay.warm) <= 6_500
    assert 1_900 <= replay.num_folded_tokens <= 2_100
    assert max(len(prompt.tokens) for prompt in replay.prompts) + ANSWER_TOKENS <= MAX_MODEL_LEN


def test_turns_are_append_fold_append_restore(replay: DemoReplay) -> None:
    assert [prompt.turn.name for prompt in replay.prompts] == ["append", "fold", "append", "restore"]
    append, fold, after, restore = (prompt.tokens for prompt in replay.prompts)
    assert append[: len(replay.warm)] == replay.warm
    assert 400 <= common(append, fold) <= 550
    assert restore[: len(replay.warm)] == replay.warm
    assert common(fold, after) >= len(fold) - 3


def test_the_text_behind_the_fold_is_unchanged(replay: DemoReplay) -> None:
    append, fold = replay.prompts[0].tokens, replay.prompts[1].tokens
    cut = common(append, fold)
    num_behind = len(replay.warm) - cut - replay.num_folded_tokens
    assert num_behind > 3_000
    behind = replay.warm[-num_behind + 50 :]
    assert any(fold[i : i + len(behind)] == behind for i in range(cut, cut + 120))


def test_new_tokens_add_up(replay: DemoReplay) -> None:
    tails = [prompt.num_new_tokens for prompt in replay.prompts]
    tails[1] -= replay.num_marker_tokens
    append, fold, after, restore = (len(prompt.tokens) for prompt in replay.prompts)
    assert append == len(replay.warm) + tails[0]
    assert abs(fold - (append + tails[1] - replay.num_folded_tokens + replay.num_marker_tokens)) <= 2
    assert after == fold + tails[2]
    assert restore == len(replay.warm) + sum(tails)


def test_the_marker_names_the_fragment_and_the_hidden_tokens(replay: DemoReplay) -> None:
    hidden = f"{replay.num_folded_tokens:,}"
    assert replay.marker == f'[folded f1a2b3: {hidden} tokens hidden; restore_fragment("f1a2b3") to read]'
