"""A secret in folded text: moved KV tells it by the logits, a redacted session does not.

    attacker   knows all of the conversation but the secret, and has plays each candidate through an engine of its own
    victim     one session for each secret: served, folded under `reuse`, then redacted

The attacker picks the candidate whose log-probabilities are nearest to the victim's (largest difference over the tokens
that both list). Criterion after the redaction: all sessions answer bit for bit as one that never held any secret does,
in the same shapes. So the pick is right for one secret in three. Beside a prefill of everything, in other shapes, they
differ by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from acmserve.bench.demo import conversation
from tests.support.engine.edits import Tokens
from tests.support.engine.engine import Answer, Engine

SECRETS = ("Lisbon", "Oslo", "Cairo")
HARMLESS = "nowhere"
NUM_BEFORE, NUM_BEHIND = 150, 200
MARKER = "[removed]"
QUESTION = "<|im_end|>\n<|im_start|>user\nIn which city is the safe?<|im_end|>\n<|im_start|>assistant\nThe city is"
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""


@dataclass(frozen=True)
class Talk:
    """A conversation around one sentence, in tokens."""

    before: Tokens
    behind: Tokens
    question: Tokens
    marker: Tokens
    tokenizer: PreTrainedTokenizerBase

    def history(self, secret: str) -> Tokens:
        sentence = f"\nNote this well: the safe stands in the city of {secret}. I say it again, {secret}.\n"
        return [*self.before, *self.tokenizer(sentence)["input_ids"], *self.behind]

    @property
    def edited(self) -> Tokens:
        return [*self.before, *self.marker, *self.behind, *self.question]


@pytest.fixture(scope="module")
def talk(smollm2_folder: Path) -> Talk:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(smollm2_folder)
    text = tokenizer("\n".join(message["content"] for message in conversation.load().messages))["input_ids"]
    question, marker = (tokenizer(text)["input_ids"] for text in (QUESTION, MARKER))
    return Talk(text[:NUM_BEFORE], text[NUM_BEFORE : NUM_BEFORE + NUM_BEHIND], question, marker, tokenizer)


def fold(engine: Engine, talk: Talk, secret: str, who: str) -> Answer:
    """Serve a history, and the same with the secret folded, as one session in a cache of its own."""
    name = f"canary-{who}-{secret}"
    engine.ask(talk.history(secret), name, "reuse", salt=name)
    folded = engine.ask(talk.edited, name, "reuse", salt=name)
    assert folded.receipt is not None
    assert folded.receipt["moved_tokens"] >= NUM_BEHIND, folded.receipt["fallback_reason"]
    return folded


def redact(engine: Engine, talk: Talk, secret: str) -> Answer:
    """The next answer after a redaction of a session that `fold` has served."""
    name = f"canary-victim-{secret}"
    redacted = engine.ask(talk.edited, name, "reuse", salt=name, forget=True)
    assert redacted.receipt is not None
    assert redacted.receipt["moved_tokens"] == 0
    assert redacted.receipt["kept_tokens"] <= NUM_BEFORE
    return redacted


def num_found(seen: dict[str, Answer], known: dict[str, Answer]) -> int:
    """For how many secrets the nearest candidate is the right one. Of equal ones the first counts."""
    picks = {secret: min(SECRETS, key=lambda name: answer.distance(known[name])) for secret, answer in seen.items()}
    return sum(secret == pick for secret, pick in picks.items())


def test_moved_kv_tells_the_secret_and_a_redacted_session_does_not(smollm2_engine: Engine, talk: Talk) -> None:
    known = {secret: fold(smollm2_engine, talk, secret, "attacker") for secret in SECRETS}
    seen = {secret: fold(smollm2_engine, talk, secret, "victim") for secret in SECRETS}
    assert num_found(seen, known) == 3, "the control: under `reuse` the logits tell the secret"

    fold(smollm2_engine, talk, HARMLESS, "victim")
    never = redact(smollm2_engine, talk, HARMLESS)
    redacted = {secret: redact(smollm2_engine, talk, secret) for secret in SECRETS}
    assert {secret: answer.logprobs for secret, answer in redacted.items()} == dict.fromkeys(SECRETS, never.logprobs)
    assert num_found(redacted, known) == 1, "the same pick for all"

    fresh = smollm2_engine.ask(talk.edited, salt="canary never used before")
    assert never.distance(fresh) <= EXACT
    assert seen[SECRETS[0]].distance(fresh) > 10 * EXACT


def test_the_old_text_is_new_after_the_redaction(smollm2_engine: Engine, talk: Talk) -> None:
    """Neither a whole block nor a partial tail answers. The control is a session that was not redacted."""
    num_kept = {}
    for secret, is_redacted in (("Quito", False), ("Berlin", True)):
        fold(smollm2_engine, talk, secret, "victim")
        if is_redacted:
            redact(smollm2_engine, talk, secret)
        name = f"canary-victim-{secret}"
        receipt = smollm2_engine.ask([*talk.history(secret), *talk.question], name, "exact", salt=name).receipt
        assert receipt is not None
        num_kept[secret] = receipt["kept_tokens"]
    assert num_kept["Quito"] == len(talk.history("Quito"))
    assert num_kept["Berlin"] <= NUM_BEFORE
