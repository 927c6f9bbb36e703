"""The answers of one session in the tokens that were sampled, and how they come back into a prompt.

    prompt     [t0][t1] .. [tn]               each token a high and a low character, of alphabets that share none
    text       Hn Ln .. H1 L1 H0 L0 | padding     reversed: what is found first stands last in the prompt

A needle begins with a high character, so nothing is found between two tokens.

Decision: who chooses the texts of a session must not choose how long a search takes. CPython searches forwards in
linear time (Crochemore and Perrin) in texts from 30,000 characters on. A quarter of such a text must be longer than
what is looked for (Objects/stringlib/fastsearch.h). Shorter texts, and `rfind`, take the product of both lengths at
worst. So the text is reversed, and padded to that length with a character that is no token.

Decision: both forms have to be one text inside a prompt, too. Tokenizers in SentencePiece's way put a space in front of
a text and take it off again, so "Yes" and " Yes" alone are one text. Others normalize what they read, so their own
choice is another text. Bytes that are no text all read as U+FFFD. An answer with it is left to the tokenizer.

Decision: an answer is looked for in the text of any role. Who says it again gets other tokens of the same text.

It knows no sessions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MAX_OUTPUTS = 256
MAX_OUTPUT_BYTES = 16 * 2**20
"""Of the answers of one session, both forms of each: a million tokens. The oldest answers go."""
_CHAR_BYTES, _CHARS_PER_TOKEN = 4, 2
_LOW, _HIGH, _PADDING = 0x10000, 0x30000, chr(0x10FFFF)
"""Where the alphabets begin, both above the surrogates. The high one has as many characters on either side."""
_LINEAR_CHARS, _LINEAR_SHARE = 30_000, 4
_NEIGHBOURS = ("a", "e", "A", "1", "0", ".")
"""Texts that stand beside an answer in a prompt. Nearly every tokenizer has a token for one of them."""
_NO_TEXT = "\ufffd"


class TextTokenizer(Protocol):
    """The part of vLLM's tokenizers that is used here."""

    all_special_ids: list[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""


@dataclass(frozen=True, slots=True)
class TokenizedOutput:
    """An answer whose sampled tokens are not those that the tokenizer chooses. Both are reversed, as characters."""

    canonical: str
    sampled: str

    @property
    def num_bytes(self) -> int:
        """Host memory, about."""
        return _CHAR_BYTES * (len(self.canonical) + len(self.sampled))


class SampledOutputs:
    """Those of one session, the oldest first."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._outputs: OrderedDict[str, TokenizedOutput] = OrderedDict()

    def keep(self, output: TokenizedOutput) -> None:
        """Remember an answer as the newest one. It takes the place of one of the same text."""
        self._drop(output.canonical)
        self._outputs[output.canonical] = output
        self.num_bytes += output.num_bytes
        while len(self._outputs) > MAX_OUTPUTS or self.num_bytes > MAX_OUTPUT_BYTES:
            self._drop(next(iter(self._outputs)))

    def splice(self, prompt_token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """The prompt with each answer, where it stands last, in its sampled tokens. Unless it exceeds `max_tokens`."""
        if not self._outputs:
            return list(prompt_token_ids)
        text = _as_text(prompt_token_ids)
        for output in self._outputs.values():
            start = _find(text, output.canonical)
            if start >= 0:
                text = text[:start] + output.sampled + text[start + len(output.canonical) :]
        return list(prompt_token_ids) if len(text) > _CHARS_PER_TOKEN * max_tokens else _as_token_ids(text)

    def sampled(self) -> list[list[int]]:
        """The sampled tokens of each answer."""
        return [_as_token_ids(output.sampled) for output in self._outputs.values()]

    def copy(self) -> SampledOutputs:
        """The same answers, for another session."""
        copy = SampledOutputs()
        copy.num_bytes, copy._outputs = self.num_bytes, OrderedDict(self._outputs)
        return copy

    def _drop(self, canonical: str) -> None:
        gone = self._outputs.pop(canonical, None)
        self.num_bytes -= 0 if gone is None else gone.num_bytes


def tokenize_output(tokenizer: TextTokenizer, text: str, token_ids: Sequence[int]) -> TokenizedOutput | None:
    """An answer in both forms. None where the tokenizer chooses what was sampled, or where the tokens say another text.

    It touches the tokenizer alone, so it may run in a thread.
    """
    sampled = list(token_ids)
    while sampled and sampled[-1] in tokenizer.all_special_ids:
        sampled.pop()
    canonical = tokenizer.encode(text, add_special_tokens=False)
    if not canonical or sampled == canonical or _NO_TEXT in text or tokenizer.decode(sampled) != text:
        return None
    if not _are_alike_inside(tokenizer, canonical, sampled):
        return None
    return TokenizedOutput(_as_text(canonical), _as_text(sampled))


def _are_alike_inside(tokenizer: TextTokenizer, first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether tokens are the same text between others. False where no ordinary token is found to put beside them."""
    beside = _ordinary_tokens(tokenizer)
    if not beside:
        return False
    return tokenizer.decode([*beside, *first, *beside]) == tokenizer.decode([*beside, *second, *beside])


def _ordinary_tokens(tokenizer: TextTokenizer) -> list[int]:
    """Tokens of a short text, none of them special. Empty where this tokenizer has none."""
    special = frozenset(tokenizer.all_special_ids)
    for text in _NEIGHBOURS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if ids and special.isdisjoint(ids) and tokenizer.decode(ids).strip() == text:
            return list(ids)
    return []


def _find(text: str, needle: str) -> int:
    """Where a needle stands first, -1 where it does not."""
    if len(needle) > len(text):
        return -1
    num_linear = max(_LINEAR_CHARS, _LINEAR_SHARE * (len(needle) + 1))
    return (text + _PADDING * (num_linear - len(text))).find(needle)


def _as_text(token_ids: Sequence[int]) -> str:
    """Tokens as pairs of characters, the last token first."""
    ids = np.asarray(token_ids, dtype=np.int32).astype(np.int64)[::-1]
    pairs = np.stack([_HIGH + (ids >> 16), _LOW + (ids & 0xFFFF)], axis=1)
    return pairs.astype("<u4").tobytes().decode("utf-32-le")


def _as_token_ids(text: str) -> list[int]:
    pairs = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").reshape(-1, _CHARS_PER_TOKEN)[::-1].astype(np.int64)
    found: list[int] = (((pairs[:, 0] - _HIGH) << 16) | (pairs[:, 1] - _LOW)).tolist()
    return found
