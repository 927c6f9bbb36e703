"""Sampled tokens take the place of the tokenizer's own only where both are one text inside a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizer

from acmserve.server.exchange.served.sampled_outputs import SampledOutputs, tokenize_output
from tests.support.sentencepiece_tokenizers import SPACE, metaspace, metaspace_without_bytes, prepending

ROOM = 10_000
LAYOUTS = [prepending, metaspace, metaspace_without_bytes]
SECOND_TURN = "<|user|>\nYes or no?</s>\n<|assistant|>\nYes</s>\n<|user|>\n{}</s>\n<|assistant|>\n"
WORDS = ("Yes", "Y", "e", "s", "a", "<unk>", "</s>")


class Slow(PreTrainedTokenizer):  # type: ignore[misc, no-any-unimported]
    """Without `tokenizers`: a letter is a token, and so is one word."""

    def __init__(self) -> None:
        super().__init__(unk_token="<unk>", eos_token="</s>")

    @property
    def vocab_size(self) -> int:
        return len(WORDS)

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(WORDS)}

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return [text] if text == "Yes" else list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return WORDS.index(token) if token in WORDS else WORDS.index("<unk>")

    def _convert_id_to_token(self, index: int) -> str:
        return WORDS[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


class Suffixed:
    """A word ends with a mark, which becomes the space behind it, but not at a text's end (CLIP, OpenAI's GPT)."""

    all_special_ids = (0,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [2 * ord(letter) for letter in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(token // 2) + " " * (token % 2) for token in token_ids).removesuffix(" ")


class Unknowing:
    """There is no ordinary token: each text is unknown but the answer."""

    all_special_ids = (0,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] if text == "Yes" else [0]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join("?" if token == 0 else "Yes" for token in token_ids)


def spliced(tokenizer: Any, text: str, sampled: list[int], prompt: str) -> tuple[list[int], list[int]]:
    """A prompt as the tokenizer writes it, and with the answer as it was sampled."""
    outputs, written = SampledOutputs(), tokenizer.encode(prompt, add_special_tokens=False)
    output = tokenize_output(tokenizer, text, sampled)
    if output is not None:
        outputs.keep(output)
    return written, outputs.splice(written, ROOM)


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("question", ["Reply Yes or No.", "Yes", "Say Yes"])
def test_a_space_that_a_decoder_strips_stays_in_the_next_question(make: Callable[[], Any], question: str) -> None:
    """The answer "Yes" came back as the user's " Yes", so the prompt held "ReplyYes or No." under `exact`."""
    tokenizer = make()
    sampled = tokenizer.convert_tokens_to_ids(["Yes", "</s>"])
    assert tokenizer.decode(sampled[:1]) == tokenizer.decode(tokenizer.encode("Yes", add_special_tokens=False))
    written, sent = spliced(tokenizer, "Yes", sampled, SECOND_TURN.format(question))
    assert sent == written


@pytest.mark.parametrize("make", LAYOUTS)
def test_the_same_text_comes_back_as_it_was_sampled(make: Callable[[], Any]) -> None:
    """Both begin with the space, so they are one text everywhere."""
    tokenizer = make()
    sampled = tokenizer.convert_tokens_to_ids([SPACE, "Yes"])
    written, sent = spliced(tokenizer, "Yes", sampled, "Say Yes")
    assert sent == [*written[:-1], *sampled]
    assert tokenizer.decode(sent) == tokenizer.decode(written)


def test_slow_tokenizers_put_answers_back() -> None:
    tokenizer = Slow()
    assert not tokenizer.is_fast
    letters = tokenizer.convert_tokens_to_ids(list("Yes"))
    assert spliced(tokenizer, "Yes", letters, "Yes") == ([WORDS.index("Yes")], letters)


def test_a_space_that_a_decoder_strips_at_the_end_counts() -> None:
    sampled = [2 * ord("N"), 2 * ord("o") + 1]
    assert Suffixed().decode(sampled) == "No"
    written, sent = spliced(Suffixed(), "No", sampled, "Nobody")
    assert sent == written


def test_without_an_ordinary_token_nothing_is_put_back() -> None:
    assert spliced(Unknowing(), "Yes", [2], "Yes") == ([1], [1])


def test_what_a_tokenizer_normalizes_takes_no_place_of_what_it_becomes(smollm2_folder: Path) -> None:
    """Qwen's tokenizers compose letters: an answer in the other form came back in a question that was composed."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    sampled = tokenizer.encode("cafe\u0301")
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    text = tokenizer.decode(sampled)
    assert text == "cafe\u0301"
    assert tokenizer.decode(tokenizer.encode(text)) == "caf\u00e9"
    written, sent = spliced(tokenizer, text, sampled, "caf\u00e9")
    assert sent == written


def test_bytes_that_are_no_text_take_no_place_of_a_replacement_character(smollm2_folder: Path) -> None:
    """An answer that ends within a character reads as U+FFFD. A question with that character says other bytes."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    cut = tokenizer.encode("\u20ac\U0001f600")[:-1]
    text = tokenizer.decode(cut)
    assert text.endswith("\ufffd")
    assert tokenizer.encode(text) != cut
    written, sent = spliced(tokenizer, text, cut, text)
    assert sent == written
