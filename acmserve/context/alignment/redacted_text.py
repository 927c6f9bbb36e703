"""What was redacted, as keyed digests: enough to know the text when it comes again, and to read nothing.

    redacted   |block 0  |block 1  |block 2  |          white space does not count. The last block ends with the text
    a text     .......|block 1  |block 2  |..           found by a rolling hash, then verified by a digest
    cut out    ...[===|=========|=========]..           with a margin where only a part was found

A redacted text comes again in other words: glued to a reminder, cut short by a client, in a list of parts, in another
message. So it is known by blocks of 16 characters. Of a run of at least 31 characters one block is whole. Where a run
is cut off, less than a block beside it is cut out, too: that may be of the redacted text. In other messages that ends
with the line, so that what a client has glued to it stays.

Decisions:

- In a new version of the message that was redacted any block is cut out. Elsewhere two in a row have to be there, or
  the whole text: redacted files have lines that other files have, too.
- A text has at most 4,096 blocks. In a longer one they stand further apart. What stands between two of them is taken
  for the text, and so is as much beside the last one.
- A text of fewer than 8 characters is cut out of new versions of its message only. Elsewhere it may be any word.
- The digests are keyed with the session's key, which stands in the same file. Who has the file may test guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acmserve.context.alignment.core_text import CoreText, code_points
from acmserve.context.alignment.likeness import GONE, GONE_ARGUMENT
from acmserve.context.alignment.normal_form import core
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Part

NUM_BLOCK_CHARS = 16
MAX_BLOCKS = 4096
MIN_CHARS = 8
_NUM_RUN = 2 * NUM_BLOCK_CHARS
_MAX_EQUAL_BLOCKS = 4
_MAX_FALSE = 256
_MAX_CHARS = 2**40
_NUM_HASH, _NUM_DIGEST = 8, 8
_RECORD = _NUM_HASH + _NUM_DIGEST

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


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


@dataclass(frozen=True, slots=True, order=True)
class RedactedStretch:
    """Characters `[start, end)` of a text without white space that were redacted with a fragment."""

    start: int
    end: int
    fragment_id: str


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
    hashes = _rolling(code_points(bare), width, key)
    records = []
    for number in range(sealed.num_blocks):
        at = sealed.offset(number)
        records.append(int(hashes[at]).to_bytes(_NUM_HASH, "little") + _digest(bare[at : at + width], key))
    return RedactedText(fragment_id, role, num_tokens, len(bare), b"".join(records))


class RedactedIndex:
    """Finds redacted texts in messages. Made once for a history: the blocks are sorted by their rolling hash.

    A message costs a pass over it, whatever was redacted. What is found is passed over, and few of equal blocks count.
    A digest is asked for only where the hashes say that a run counts. Where some hundred of them say no, somebody has
    made the hashes up, and the search ends.
    """

    def __init__(self, redacted: Sequence[RedactedText], key: bytes) -> None:
        self._key = key
        by_width: dict[int, list[RedactedText]] = {}
        for sealed in redacted:
            by_width.setdefault(sealed.num_block_chars, []).append(sealed)
        self._by_width = {width: _Blocks(sealed) for width, sealed in by_width.items()}

    def __bool__(self) -> bool:
        return bool(self._by_width)

    def find(self, text: CoreText, in_place: frozenset[str] = frozenset()) -> list[RedactedStretch]:
        """What of a message was redacted, ascending and apart. `in_place` are the redactions of the one it replaces."""
        found: list[RedactedStretch] = []
        for width, blocks in self._by_width.items():
            if len(text.text) >= width and (width >= MIN_CHARS or in_place):
                found += self._find(text, width, blocks, in_place)
        return _apart(found)

    def _find(self, text: CoreText, width: int, blocks: _Blocks, in_place: frozenset[str]) -> list[RedactedStretch]:
        hashes = _rolling(text.codes, width, self._key)
        positions, first = blocks.promising(hashes, in_place)
        found: list[RedactedStretch] = []
        at, num_false = 0, 0
        while at < len(positions) and num_false < _MAX_FALSE:
            position = int(positions[at])
            runs = [self._run(text, hashes, position, *block) for block in blocks.equal_to(int(first[at]))]
            wanted = [run for run in runs if run is not None and _counts(run, in_place)]
            if wanted:
                longest = max(wanted, key=lambda run: run.num_chars)
                found.append(_stretch(text, longest, longest.sealed.fragment_id in in_place))
                at = int(np.searchsorted(positions, longest.start + longest.num_chars))
            else:
                at, num_false = at + 1, num_false + 1
        return found

    def _run(self, text: CoreText, hashes: Hashes, position: int, sealed: RedactedText, number: int) -> _Run | None:
        """The blocks of a text from one on that stand one behind the other. None where the first does not."""
        width, offset = sealed.num_block_chars, sealed.offset(number)
        last = offset
        while number < sealed.num_blocks:
            at = position + sealed.offset(number) - offset
            if at >= len(hashes) or int(hashes[at]) != sealed.hash(number):
                break
            if _digest(text.text[at : at + width], self._key) != sealed.digest(number):
                break
            last = sealed.offset(number) + width
            number += 1
        return None if last == offset else _Run(sealed, position, offset, last - offset)


class _Blocks:
    """The blocks of texts whose blocks are equally long, sorted by hash.

    A block is found alone, or with the next one of its text `gap` characters behind it. `_needs_next` are those of
    which a run counts with the next one only, `_is_short` those of which no run counts elsewhere.
    """

    def __init__(self, texts: Sequence[RedactedText]) -> None:
        self._texts = texts
        self._last_in_place = frozenset[str](), np.zeros(len(texts), dtype=bool)
        self._numbers_of: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            self._numbers_of.setdefault(text.fragment_id, []).append(number)
        hashes = [np.frombuffer(text.blocks, dtype=np.uint64).reshape(-1, 2)[:, 0] for text in texts]
        gaps = [np.diff(_offsets(text), append=text.num_chars) for text in texts]
        owners = [np.full(len(found), number) for number, found in enumerate(hashes)]
        numbers = [np.arange(len(found)) for found in hashes]
        order = np.argsort(np.concatenate(hashes), kind="stable")
        self.hashes: Hashes = np.concatenate(hashes)[order]
        self._owners, self._numbers = np.concatenate(owners)[order], np.concatenate(numbers)[order]
        self._next_hashes = np.concatenate([np.roll(found, -1) for found in hashes])[order]
        self._gaps = np.concatenate(gaps)[order]
        width = texts[0].num_block_chars
        wanted = np.array([_num_wanted(text) for text in texts])[self._owners]
        is_last = np.array([text.num_blocks for text in texts])[self._owners] == self._numbers + 1
        self._needs_next = width < wanted
        self._is_short = self._needs_next & (is_last | (self._gaps + width < wanted))

    def equal_to(self, index: int) -> Iterator[tuple[RedactedText, int]]:
        """The blocks that count of those with one hash, from the first on: the text of each, and its number there."""
        for at in range(index, min(index + _MAX_EQUAL_BLOCKS, len(self.hashes))):
            if self.hashes[at] == self.hashes[index]:
                yield self._texts[int(self._owners[at])], int(self._numbers[at])

    def promising(self, hashes: Hashes, in_place: frozenset[str]) -> tuple[_Numbers, _Numbers]:
        """The positions from which a run may count by the hashes of a text, and the first block of each.

        What does not count is sorted out here: there may be one at each position of a text that repeats itself.
        """
        first = np.searchsorted(self.hashes, hashes)
        is_at_place = self._at_place(in_place)
        positions = np.flatnonzero(self.hashes[np.minimum(first, len(self.hashes) - 1)] == hashes)
        first = first[positions]
        may_count = np.zeros(len(positions), dtype=bool)
        for number in range(_MAX_EQUAL_BLOCKS):
            block = np.minimum(first + number, len(self.hashes) - 1)
            behind = positions + self._gaps[block]
            goes_on = ~self._is_short[block] & (behind < len(hashes))
            goes_on &= hashes[np.minimum(behind, len(hashes) - 1)] == self._next_hashes[block]
            counts = ~self._needs_next[block] | goes_on | is_at_place[self._owners[block]]
            may_count |= counts & (self.hashes[block] == hashes[positions])
        return positions[may_count], first[may_count]

    def _at_place(self, in_place: frozenset[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each text whether it is of one of these redactions. The texts of a message all ask for the same."""
        if self._last_in_place[0] != in_place:
            is_at_place = np.zeros(len(self._texts), dtype=bool)
            is_at_place[[number for name in in_place for number in self._numbers_of.get(name, ())]] = True
            self._last_in_place = in_place, is_at_place
        return self._last_in_place[1]


@dataclass(frozen=True, slots=True)
class _Run:
    """Characters `[start, start + num_chars)` of a text without white space, redacted from `offset` on in `sealed`."""

    sealed: RedactedText
    start: int
    offset: int
    num_chars: int


def _counts(run: _Run, in_place: frozenset[str]) -> bool:
    """Whether so much of a redacted text is cut out. See the module."""
    if run.sealed.fragment_id in in_place:
        return True
    return run.num_chars >= _num_wanted(run.sealed)


def _num_wanted(sealed: RedactedText) -> int:
    """How much of a redacted text has to be found in another message."""
    return max(MIN_CHARS, min(sealed.num_chars, _NUM_RUN))


def _offsets(sealed: RedactedText) -> _Numbers:
    """Where the blocks of a text begin."""
    starts: _Numbers = np.arange(sealed.num_blocks, dtype=np.int64) * sealed.stride
    return np.minimum(starts, sealed.num_chars - sealed.num_block_chars)


def _stretch(text: CoreText, run: _Run, is_in_place: bool) -> RedactedStretch:
    """What is cut out of a text for a run, with its margins."""
    margin, end = run.sealed.stride - 1, run.start + run.num_chars
    before = min(run.offset, margin)
    behind = min(run.sealed.num_chars - run.offset - run.num_chars, margin)
    if not is_in_place and run.sealed.stride == run.sealed.num_block_chars:
        before, behind = text.num_in_line_before(run.start, before), text.num_in_line_behind(end, behind)
    return RedactedStretch(max(0, run.start - before), min(len(text.text), end + behind), run.sealed.fragment_id)


def _apart(found: Sequence[RedactedStretch]) -> list[RedactedStretch]:
    """The stretches in order, without what an earlier one has."""
    apart: list[RedactedStretch] = []
    end = 0
    for stretch in sorted(found, key=lambda f: (f.start, -f.end, f.fragment_id)):
        if stretch.end > end:
            apart.append(RedactedStretch(max(stretch.start, end), stretch.end, stretch.fragment_id))
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
