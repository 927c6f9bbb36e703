"""What was redacted, as keyed digests: enough to know the text when it comes again, and to read nothing.

    redacted   |block 0  |block 1  |block 2  |          white space does not count. The last block ends with the text
    a text     .......|block 1  |block 2  |..           found by a rolling hash, then verified by a digest

A redacted text comes again in other words: glued to a reminder, cut short by a client, in a list of parts, in another
message. So it is known by blocks of 16 characters. Of a run of at least 31 characters one block is whole. What is cut
out of a text for its blocks says `redacted_index.py`.

Decisions:

- A text has at most 4,096 blocks. In a longer one they stand further apart. What stands between two of them is taken
  for the text, and so is as much beside the last one.
- The digests are keyed with the session's key, which stands in the same file. Who has the file may test guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acmserve.context.alignment.core_text import code_points
from acmserve.context.alignment.likeness import GONE, GONE_ARGUMENT
from acmserve.context.alignment.normal_form import core
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Part

NUM_BLOCK_CHARS = 16
MAX_BLOCKS = 4096
_MAX_CHARS = 2**40
_NUM_HASH, _NUM_DIGEST = 8, 8
_RECORD = _NUM_HASH + _NUM_DIGEST

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class RedactedText:
    """One redacted span. `num_chars` are those that are no white space.

    `blocks` has 16 bytes for each block: its rolling hash, then its digest. `role` and `num_tokens` are the fragment's.
    """

    fragment_id: str
    role: str
    num_tokens: int
    num_chars: int
    blocks: bytes

    @property
    def num_block_chars(self) -> int:
        """Characters of a block."""
        return min(self.num_chars, NUM_BLOCK_CHARS)

    def check(self) -> None:
        """Raise `ValueError` with the numbers when the blocks are not those of the text."""
        if not 0 < self.num_chars <= _MAX_CHARS or len(self.blocks) != self.num_blocks * _RECORD:
            raise ValueError(f"{len(self.blocks)} bytes of digests for {self.num_chars} redacted characters")

    @property
    def stride(self) -> int:
        """Characters from one block to the next."""
        room = self.num_chars - self.num_block_chars
        return max(self.num_block_chars, -(-room // (MAX_BLOCKS - 1)))

    @property
    def num_blocks(self) -> int:
        """How many blocks the text has."""
        return -(-(self.num_chars - self.num_block_chars) // self.stride) + 1

    def hash(self, number: int) -> int:
        """The rolling hash of a block."""
        return int.from_bytes(self.blocks[number * _RECORD : number * _RECORD + _NUM_HASH], "little")

    def digest(self, number: int) -> bytes:
        """The digest of a block."""
        return self.blocks[number * _RECORD + _NUM_HASH : (number + 1) * _RECORD]

    def offset(self, number: int) -> int:
        """Where a block begins in the text."""
        return min(number * self.stride, self.num_chars - self.num_block_chars)


def erased(text: str, part: Part, spans: Iterable[tuple[int, int]]) -> str:
    """The text of a part with characters `[start, end)` of each span overwritten one for one."""
    gone = GONE_ARGUMENT if isinstance(part, ArgumentPart) else GONE
    left: list[str] = []
    at = 0
    for start, end in sorted(spans):
        left += [text[at:start], gone * (end - max(start, at))]
        at = max(at, end)
    return "".join([*left, text[at:]])


def seal_text(text: str, key: bytes, fragment_id: str, role: str, num_tokens: int) -> RedactedText | None:
    """What is kept of a text that is redacted. None where it is nothing but white space."""
    bare = core(text)
    if not bare:
        return None
    sealed = RedactedText(fragment_id, role, num_tokens, len(bare), b"")
    width = sealed.num_block_chars
    _, hashes = next(rolling_hashes(code_points(bare), [width], hash_base(key)))
    records = []
    for number in range(sealed.num_blocks):
        at = sealed.offset(number)
        records.append(int(hashes[at]).to_bytes(_NUM_HASH, "little") + digest_block(bare[at : at + width], key))
    return RedactedText(fragment_id, role, num_tokens, len(bare), b"".join(records))


def hash_base(key: bytes) -> np.uint64:
    """The secret odd number of a key at which rolling hashes are polynomials."""
    return np.uint64(int.from_bytes(hashlib.blake2b(b"rolling", key=key, digest_size=8).digest(), "little") | 1)


def rolling_hashes(
    codes: np.ndarray[Any, np.dtype[np.uint32]], widths: Sequence[int], base: np.uint64
) -> Iterator[tuple[int, Hashes]]:
    """For each width, ascending, the hash of each run of so many characters: a polynomial modulo 2**64."""
    wide = codes.astype(np.uint64)
    hashes, num_read = wide, 1
    for width in widths:
        for offset in range(num_read, min(width, len(wide))):
            hashes = hashes[:-1] * base + wide[offset:]
        num_read = width
        yield width, hashes if width <= len(wide) else hashes[:0]


def digest_block(text: str, key: bytes) -> bytes:
    """The digest of a block."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=_NUM_DIGEST).digest()
