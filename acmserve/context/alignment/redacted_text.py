"""What was redacted, as keyed digests: enough to know the text when it comes again, and to read nothing.

    redacted   |block 0  |block 1  |block 2  |          white space does not count; the last block ends with the text
    a text     .......|block 1  |block 2  |..           found by a rolling hash, then verified by a digest
    cut out    ...[===|=========|=========]..           with a margin where only a part was found

A redacted text comes again in other words: glued to a reminder, cut short by a client, in a list of parts, in another
message. So it is known by blocks of 16 characters. Of a run of at least 31 characters one block is whole. Where a run
is cut off, less than a block beside it is cut out, too: that may be of the redacted text. In other messages that ends
with the line, so that what a client has glued to it stays.

Decisions:

- In a new version of the message that was redacted any block is cut out. Elsewhere two in a row have to be there, or
  the whole text: redacted files have lines that other files have, too.
- A text of fewer than 8 characters is cut out of new versions of its message only. Elsewhere it may be any word.
- The digests are keyed with the session's key, which stands in the same file. Who has the file may test guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acmserve.context.alignment.core_text import CoreText, code_points
from acmserve.context.alignment.normal_form import core

NUM_BLOCK_CHARS = 16
MIN_CHARS = 8
_NUM_RUN = 2 * NUM_BLOCK_CHARS
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
        num_blocks = -(-self.num_chars // max(1, self.num_block_chars))
        if self.num_chars < 1 or len(self.blocks) != num_blocks * _RECORD:
            raise ValueError(f"{len(self.blocks)} bytes of digests for {self.num_chars} redacted characters")

    def offset(self, number: int) -> int:
        """Where a block begins in the text."""
        return min(number * NUM_BLOCK_CHARS, self.num_chars - self.num_block_chars)


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """Characters `[start, end)` of a text without white space that were redacted with a fragment."""

    start: int
    end: int
    fragment_id: str


def seal_text(text: str, key: bytes, fragment_id: str, role: str, num_tokens: int) -> RedactedText | None:
    """What is kept of a text that is redacted. None where it is nothing but white space."""
    bare = core(text)
    if not bare:
        return None
    sealed = RedactedText(fragment_id, role, num_tokens, len(bare), b"")
    width = sealed.num_block_chars
    num_blocks = -(-len(bare) // width)
    hashes = _rolling(code_points(bare), width, key)
    records = []
    for number in range(num_blocks):
        at = sealed.offset(number)
        records.append(int(hashes[at]).to_bytes(_NUM_HASH, "little") + _digest(bare[at : at + width], key))
    return RedactedText(fragment_id, role, num_tokens, len(bare), b"".join(records))


def find_redacted(
    text: CoreText, redacted: Sequence[RedactedText], key: bytes, in_place: frozenset[str] = frozenset()
) -> list[Found]:
    """What of a message was redacted, ascending and apart. `in_place` are the fragments of the message it replaces."""
    found: list[Found] = []
    widths: dict[int, list[RedactedText]] = {}
    for sealed in redacted:
        if sealed.num_chars >= MIN_CHARS or sealed.fragment_id in in_place:
            widths.setdefault(sealed.num_block_chars, []).append(sealed)
    for width, here in widths.items():
        for run in _runs(text, width, here, key) if len(text.text) >= width else ():
            found += _stretches(text, run, run.sealed.fragment_id in in_place)
    return _apart(found)


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks of one redacted text that stand in a row: where its first character would be, and their offsets in it."""

    sealed: RedactedText
    origin: int
    offsets: list[int]


def _runs(text: CoreText, width: int, redacted: Sequence[RedactedText], key: bytes) -> Iterable[_Run]:
    hashes = _rolling(text.codes, width, key)
    wanted: dict[int, list[tuple[RedactedText, int, bytes]]] = {}
    for sealed in redacted:
        for number in range(len(sealed.blocks) // _RECORD):
            record = sealed.blocks[number * _RECORD : (number + 1) * _RECORD]
            rolled = int.from_bytes(record[:_NUM_HASH], "little")
            wanted.setdefault(rolled, []).append((sealed, sealed.offset(number), record[_NUM_HASH:]))
    runs: dict[tuple[int, int], _Run] = {}
    for at in np.flatnonzero(np.isin(hashes, np.array(list(wanted), dtype=np.uint64))):
        position = int(at)
        block = _digest(text.text[position : position + width], key)
        for sealed, offset, digest in wanted[int(hashes[position])]:
            if digest == block:
                origin = position - offset
                runs.setdefault((id(sealed), origin), _Run(sealed, origin, [])).offsets.append(offset)
    return runs.values()


def _stretches(text: CoreText, run: _Run, is_in_place: bool) -> list[Found]:
    """What of a text is cut out for a run. Gaps between its blocks are not."""
    sealed, width = run.sealed, run.sealed.num_block_chars
    whole: list[list[int]] = []
    for offset in sorted(run.offsets):
        if whole and offset <= whole[-1][1]:
            whole[-1][1] = offset + width
        else:
            whole.append([offset, offset + width])
    found = []
    for first, last in whole:
        if not is_in_place and last - first < min(sealed.num_chars, _NUM_RUN):
            continue
        start, end = run.origin + first, run.origin + last
        before, behind = min(first, width - 1), min(sealed.num_chars - last, width - 1)
        if not is_in_place:
            before, behind = text.num_in_line_before(start, before), text.num_in_line_behind(end, behind)
        found.append(Found(max(0, start - before), min(len(text.text), end + behind), sealed.fragment_id))
    return found


def _apart(found: Sequence[Found]) -> list[Found]:
    """The stretches in order, without what an earlier one has."""
    apart: list[Found] = []
    end = 0
    for stretch in sorted(found, key=lambda f: (f.start, -f.end, f.fragment_id)):
        if stretch.end > end:
            apart.append(Found(max(stretch.start, end), stretch.end, stretch.fragment_id))
            end = stretch.end
    return apart


def _rolling(codes: np.ndarray[Any, np.dtype[np.uint32]], width: int, key: bytes) -> Hashes:
    """The hash of each run of `width` characters: a polynomial at a secret odd number, modulo 2**64."""
    base = np.uint64(int.from_bytes(hashlib.blake2b(b"rolling", key=key, digest_size=8).digest(), "little") | 1)
    wide = codes.astype(np.uint64)
    num = len(wide) - width + 1
    hashes = np.zeros(max(0, num), dtype=np.uint64)
    for offset in range(width if num > 0 else 0):
        hashes = hashes * base + wide[offset : offset + num]
    return hashes


def _digest(text: str, key: bytes) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=_NUM_DIGEST).digest()
