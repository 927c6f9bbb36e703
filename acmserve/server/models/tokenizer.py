"""The served model's tokenizer as the context layer wants it: character offsets of the tokens of a text.

Fast tokenizers report offsets themselves. For others the text is tokenized line by line, and the tokens of a line are
spread over it evenly. Counts stay right to a token a line, and cuts fall at line ends anyway. Results are remembered,
since the same texts are counted at every edit. The memory is bounded in bytes, and holds no text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acmserve.server.http.text_memory import TextMemory

MAX_REMEMBERED_BYTES = 64 * 2**20
ENTRY_BYTES = 384
"""What an entry takes beside its offsets."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class ServedTokenizer:
    """Wraps a tokenizer of vLLM (`TokenizerLike`, vllm/tokenizers)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._reports_offsets = bool(getattr(tokenizer, "is_fast", False))
        self._remembered: TextMemory[NDArray[np.int32]] = TextMemory(MAX_REMEMBERED_BYTES, _num_bytes)

    def starts(self, text: str) -> Sequence[int]:
        """Character offset at which each token of `text` begins, ascending."""
        return self._remembered.of(text, self._starts)  # type: ignore[return-value]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the bound is broken."""
        self._remembered.check_integrity()

    def _starts(self, text: str) -> NDArray[np.int32]:
        return np.asarray(self._offsets(text), dtype=np.int32)

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


def _num_bytes(starts: NDArray[np.int32]) -> int:
    return starts.nbytes + ENTRY_BYTES
