"""The served model's tokenizer as the context layer wants it: character offsets of the tokens of a text.

Fast tokenizers report offsets themselves. For others the text is tokenized line by line, and the tokens of a line are
spread over it evenly. Counts stay right to a token a line, and cuts fall at line ends anyway. Results are remembered,
since the same texts are counted at every edit. The memory is bounded in characters.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_REMEMBERED_CHARS = 32 * 2**20
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class ServedTokenizer:
    """Wraps a tokenizer of vLLM (`TokenizerLike`, vllm/tokenizers)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._reports_offsets = bool(getattr(tokenizer, "is_fast", False))
        self._remembered: OrderedDict[str, NDArray[np.int32]] = OrderedDict()
        self._num_chars = 0

    def starts(self, text: str) -> Sequence[int]:
        """Character offset at which each token of `text` begins, ascending."""
        found = self._remembered.get(text)
        if found is None:
            found = np.asarray(self._offsets(text), dtype=np.int32)
            self._remember(text, found)
        else:
            self._remembered.move_to_end(text)
        return found  # type: ignore[return-value]

    def _offsets(self, text: str) -> list[int]:
        if self._reports_offsets:
            encoded = self._tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
            return [start for start, _ in encoded["offset_mapping"]]
        starts = []
        for line in _LINE.finditer(text):
            num_tokens = len(self._tokenizer.encode(line.group(), add_special_tokens=False))
            length = line.end() - line.start()
            starts += [line.start() + i * length // num_tokens for i in range(num_tokens)]
        return starts

    def _remember(self, text: str, starts: NDArray[np.int32]) -> None:
        self._remembered[text] = starts
        self._num_chars += len(text)
        while self._num_chars > MAX_REMEMBERED_CHARS:
            old, _ = self._remembered.popitem(last=False)
            self._num_chars -= len(old)
