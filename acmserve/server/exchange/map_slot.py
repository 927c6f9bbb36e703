"""The slot of a context map: a range of the prompt whose length never changes, whatever the map says.

    as rendered   ... system text  Slot7f..begins x x x x x x x x Slot7f..ends  <|im_end|> ...
    as served     ... system text  \\n\\n\\n |[map's tokens][\\n \\n \\n \\n \\n \\n \\n]  <|im_end|> ...
                                          ^ a multiple of ALIGNMENT     ^ filled up to the budget

A chat template renders text, and text has no fixed number of tokens. So the template gets a placeholder, and the token
ids in its place are exchanged when the prompt is on its way to the engine. An update of the map then changes tokens
inside the slot and shifts none behind it.

Decisions:

- The filling is line breaks, one token each. Models have seen runs of blank lines in their training and read them as a
  gap. A padding token, if there is one, was never trained, and a special token would mean something.
- The placeholder is longer in tokens than what takes its place. So what vLLM checks and derives from the rendered
  prompt (room in the window, `max_tokens`) holds for the served one, too.
- Its name is random for each process: no text of a client can pass for a slot.

It knows token ids and texts, neither maps nor sessions.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from acmserve.errors import InvalidRequest
from acmserve.server.exchange.served.sampled_outputs import TextTokenizer

# A multiple of every block size in use but one (256, of one model on CPUs): which it is, only the workers know.
ALIGNMENT = 128
_FILLERS = (" x", " a", "\nx")
_PADS = ("\n", " ")
_MAX_NEIGHBOURS = 8
_FIELD = "acm.map.placement"
_REMEDY = 'Send "placement": "tail", which needs no slot.'


@dataclass(frozen=True, slots=True)
class _Found:
    """A text in a prompt: the tokens `[start, end)` hold it, and these texts beside it."""

    start: int
    end: int
    left: str
    right: str


class MapSlots:
    """Makes placeholders and fills them, with the served tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._first, self._last = (f"Slot{secrets.token_hex(8)}{end}" for end in ("begins", "ends"))
        self._filler = next((text for text in _FILLERS if len(self._encode(text * 64)) == 64), None)
        self._pad = next((ids[-1] for ids, text in self._pads() if tokenizer.decode(ids[-1:]) == text), None)

    def placeholder(self, budget: int) -> str:
        """What the chat template renders for a slot of `budget` tokens. Raises InvalidRequest where slots cannot be."""
        if self._filler is None or self._pad is None:
            raise InvalidRequest(_FIELD, "'head' is impossible with the tokenizer of this model.", _REMEDY)
        return f"{self._first}{self._filler * (budget + ALIGNMENT)} {self._last}"

    def fill(self, prompt: Sequence[int], text: str, budget: int) -> list[int]:
        """The prompt with `text` in its slot, `budget` tokens long from an aligned position on.

        Raises InvalidRequest when the chat template did not render the placeholder as it was written.
        """
        first, last = self._find(prompt, self._first), self._find(prompt, self._last)
        if first is None or last is None or first.end > last.end or self._pad is None:
            raise InvalidRequest(_FIELD, "'head' is impossible: the chat template changes the system message.", _REMEDY)
        head = [*prompt[: first.start], *self._encode(first.left)]
        content = self._encode(text)[:budget]
        aligning = [self._pad] * (-len(head) % ALIGNMENT)
        filling = [self._pad] * (budget - len(content))
        return [*head, *aligning, *content, *filling, *self._encode(last.right), *prompt[last.end :]]

    def _find(self, prompt: Sequence[int], text: str) -> _Found | None:
        """Where a text stands. Its outermost tokens may hold neighbours too, so its middle is looked for."""
        core = self._encode(text)[1:-1]
        start = _index(prompt, core)
        if not core or start is None:
            return None
        for reach in range(1, _MAX_NEIGHBOURS + 1):
            low, high = max(0, start - reach), start + len(core) + reach
            found = self._tokenizer.decode(list(prompt[low:high]))
            if text in found:
                return self._closest(prompt, text, low, min(high, len(prompt)))
        return None

    def _closest(self, prompt: Sequence[int], text: str, low: int, high: int) -> _Found:
        """The fewest tokens from `[low, high)` that hold the text."""
        while text in self._tokenizer.decode(list(prompt[low + 1 : high])):
            low += 1
        while text in self._tokenizer.decode(list(prompt[low : high - 1])):
            high -= 1
        left, _, right = self._tokenizer.decode(list(prompt[low:high])).partition(text)
        return _Found(low, high, left, right)

    def _pads(self) -> list[tuple[list[int], str]]:
        return [(ids, text) for text in _PADS if (ids := self._encode(text))]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of one prompt, and what is to stand in it."""

    slots: MapSlots
    text: str
    budget: int

    def fill(self, prompt: Sequence[int]) -> list[int]:
        """The prompt as it goes to the engine. Raises InvalidRequest."""
        return self.slots.fill(prompt, self.text, self.budget)


def _index(prompt: Sequence[int], core: Sequence[int]) -> int | None:
    """Position of the first occurrence of a token sequence."""
    data, wanted = array("q", prompt).tobytes(), array("q", core).tobytes()
    position = data.find(wanted)
    while position > 0 and position % 8:
        position = data.find(wanted, position + 1)
    return position // 8 if position >= 0 else None
