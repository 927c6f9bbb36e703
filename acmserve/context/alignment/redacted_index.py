"""Finds redacted texts in other ones, many small ones at the cost of their characters.

    texts      |text 0|1|text 2    |3|..      looked through as one. No run goes from one into the next
    hashes     rolling, for each width that a block has, each made of those of the width before
    positions  where a hash is that of a block -> where a run may count -> runs, verified by their digests
    cut out    ...[===|=========|=========]..           with a margin where only a part was found

Where a run is cut off, less than a block beside it is cut out, too: that may be of the redacted text. In other messages
that ends with the line, so that what a client has glued to it stays.

Decisions:

- In a new version of the message that was redacted any block is cut out. Elsewhere two in a row have to be there, or
  the whole text: redacted files have lines that other files have, too.
- A text of fewer than 8 characters is cut out of new versions of its message only. Elsewhere it may be any word.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from acmserve.context.alignment.core_text import CoreText, code_points
from acmserve.context.alignment.redacted_text import (
    NUM_BLOCK_CHARS,
    Hashes,
    RedactedText,
    digest_block,
    hash_base,
    rolling_hashes,
)

MIN_CHARS = 8
_NUM_RUN = 2 * NUM_BLOCK_CHARS
_NUM_AT_ONCE = 2**16
_MIN_SCREEN_BITS, _MAX_SCREEN_BITS = 12, 24
_MAX_EQUAL_BLOCKS = 4
_MAX_FALSE = 256

Sought = tuple[CoreText, frozenset[str]]
"""A text that is looked through, and the redactions of the one whose place it takes."""
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, order=True)
class RedactedStretch:
    """Characters `[start, end)` of a text without white space that were redacted with a fragment."""

    start: int
    end: int
    fragment_id: str


class RedactedIndex:
    """Finds redacted texts in messages. Made once for a history: the blocks are sorted by their rolling hash.

    A message costs a pass over it, whatever was redacted. What is found is passed over, and few of equal blocks count.
    A digest is asked for only where the hashes say that a run counts. Where some hundred of them say no, somebody has
    made the hashes up, and the search of that text ends.
    """

    def __init__(self, redacted: Sequence[RedactedText], key: bytes) -> None:
        self._key, self._base = key, hash_base(key)
        by_width: dict[int, list[RedactedText]] = {}
        for sealed in redacted:
            by_width.setdefault(sealed.num_block_chars, []).append(sealed)
        self._by_width = {width: _Blocks(by_width[width]) for width in sorted(by_width)}

    def __bool__(self) -> bool:
        return bool(self._by_width)

    def find(self, text: CoreText, in_place: frozenset[str] = frozenset()) -> list[RedactedStretch]:
        """What of a message was redacted, ascending and apart. `in_place` are the redactions of the one it replaces."""
        return self.find_each([(text, in_place)])[0]

    def find_each(self, sought: Sequence[Sought]) -> list[list[RedactedStretch]]:
        """What `find` says of each text. Passes over small ones are shared."""
        found: list[list[RedactedStretch]] = [[] for _ in sought]
        first = num_chars = 0
        for number, (text, _) in enumerate(sought, 1):
            num_chars += len(text.text)
            if num_chars >= _NUM_AT_ONCE or number == len(sought):
                for at, stretch in self._find_in(_JoinedTexts(sought[first:number])):
                    found[first + at].append(stretch)
                first, num_chars = number, 0
        return [_apart(stretches) if stretches else stretches for stretches in found]

    def _find_in(self, joined: _JoinedTexts) -> Iterator[tuple[int, RedactedStretch]]:
        """What was redacted in each of the texts, by its number."""
        widths = [width for width in self._by_width if width >= MIN_CHARS or joined.has_places]
        for width, hashes in rolling_hashes(joined.codes, widths, self._base):
            blocks = self._by_width[width]
            positions, first = blocks.promising(hashes, joined)
            for number, own in joined.by_text(positions):
                start, end = joined.bounds(number)
                text, in_place = joined.sought[number]
                own_hashes = hashes[start : end - width + 1]
                runs = _Runs(self._key, blocks, text, own_hashes, in_place)
                for stretch in runs.stretches((positions[own] - start).tolist(), first[own].tolist()):
                    yield number, stretch


class _JoinedTexts:
    """Texts that are looked through as one."""

    def __init__(self, sought: Sequence[Sought]) -> None:
        self.sought = sought
        self.codes = code_points("".join(text.text for text, _ in sought))
        self._starts: _Numbers = np.cumsum([0, *(len(text.text) for text, _ in sought)])
        self.has_places = any(in_place for _, in_place in sought)

    def bounds(self, number: int) -> tuple[int, int]:
        """The characters of a text."""
        return int(self._starts[number]), int(self._starts[number + 1])

    def owners(self, positions: _Numbers) -> _Numbers:
        """The number of the text of each position."""
        return np.searchsorted(self._starts, positions, side="right") - 1

    def ends(self, owners: _Numbers) -> _Numbers:
        """Where each of these texts ends."""
        return self._starts[owners + 1]

    def by_text(self, positions: _Numbers) -> Iterator[tuple[int, slice]]:
        """The texts that have some of the positions, which ascend, and which ones."""
        owners = self.owners(positions)
        firsts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for first, end in pairwise(firsts):
            if first < end:
                yield int(owners[first]), slice(first, end)

    @cached_property
    def places(self) -> tuple[dict[frozenset[str], int], _Numbers]:
        """The different redactions in place with a number each, and that number for each text."""
        numbers: dict[frozenset[str], int] = {}
        return numbers, np.array([numbers.setdefault(in_place, len(numbers)) for _, in_place in self.sought])


class _Blocks:
    """The blocks of texts whose blocks are equally long, sorted by hash.

    A block is found alone, or with the next one of its text `gap` characters behind it. `_needs_next` are those of
    which a run counts with the next one only, `_is_short` those of which no run counts elsewhere.
    """

    def __init__(self, texts: Sequence[RedactedText]) -> None:
        self._texts = texts
        self._width = width = texts[0].num_block_chars
        self._names = {name: number for number, name in enumerate(dict.fromkeys(text.fragment_id for text in texts))}
        nums = np.array([text.num_blocks for text in texts])
        owners = np.repeat(np.arange(len(texts)), nums)
        numbers = np.arange(len(owners)) - np.repeat(np.cumsum(nums) - nums, nums)
        num_chars = np.array([text.num_chars for text in texts])[owners]
        strides = np.array([text.stride for text in texts])[owners]
        offsets = np.minimum(numbers * strides, num_chars - width)
        is_last = numbers + 1 == nums[owners]
        gaps = np.minimum(offsets + strides, num_chars - width) - offsets
        hashes = np.frombuffer(b"".join(text.blocks for text in texts), dtype=np.uint64).reshape(-1, 2)[:, 0]
        wanted = np.array([_num_wanted(text) for text in texts])[owners]
        order = np.argsort(hashes, kind="stable")
        self.hashes: Hashes = hashes[order]
        self._owners, self._numbers, self._gaps = owners[order], numbers[order], gaps[order]
        self._next_hashes = np.roll(hashes, -1)[order]
        self._fragments = np.array([self._names[text.fragment_id] for text in texts])[self._owners]
        self._needs_next = (width < wanted)[order]
        self._is_short = self._needs_next & (is_last | (gaps + width < wanted))[order]
        # Most hashes are none of a block, and their first bits say so.
        num_bits = min(max(_MIN_SCREEN_BITS, (len(hashes) * 8).bit_length()), _MAX_SCREEN_BITS)
        self._num_other_bits = np.uint64(64 - num_bits)
        self._may_be: _Flags = np.zeros(2**num_bits, dtype=np.bool_)
        self._may_be[hashes >> self._num_other_bits] = True

    def equal_to(self, index: int) -> Iterator[tuple[RedactedText, int]]:
        """The blocks that count of those with one hash, from the first on: the text of each, and its number there."""
        for at in range(index, min(index + _MAX_EQUAL_BLOCKS, len(self.hashes))):
            if self.hashes[at] == self.hashes[index]:
                yield self._texts[int(self._owners[at])], int(self._numbers[at])

    def promising(self, hashes: Hashes, joined: _JoinedTexts) -> tuple[_Numbers, _Numbers]:
        """The positions from which a run may count by the hashes of texts, and the first block of each.

        What does not count is sorted out here: there may be one at each position of a text that repeats itself.
        """
        positions = np.flatnonzero(self._may_be[hashes >> self._num_other_bits])
        first = np.searchsorted(self.hashes, hashes[positions])
        is_block = self.hashes[np.minimum(first, len(self.hashes) - 1)] == hashes[positions]
        positions, first = positions[is_block], first[is_block]
        owners = joined.owners(positions)
        last = joined.ends(owners) - self._width
        may_count = np.zeros(len(positions), dtype=bool)
        for number in range(_MAX_EQUAL_BLOCKS if len(positions) else 0):
            block = np.minimum(first + number, len(self.hashes) - 1)
            behind = positions + self._gaps[block]
            goes_on = ~self._is_short[block] & (behind <= last)
            goes_on &= hashes[np.minimum(behind, len(hashes) - 1)] == self._next_hashes[block]
            counts = ~self._needs_next[block] | goes_on | self._is_at_place(owners, block, joined)
            may_count |= counts & (self.hashes[block] == hashes[positions])
        may_count &= positions <= last
        return positions[may_count], first[may_count]

    def _is_at_place(self, owners: _Numbers, blocks: _Numbers, joined: _JoinedTexts) -> _Flags:
        """For each block, whether it is of a redaction of the text whose place that owner takes."""
        if not joined.has_places:
            return np.zeros(len(owners), dtype=np.bool_)
        numbers, places = joined.places
        num, names = len(self._names), self._names
        there = [number * num + names[name] for ids, number in numbers.items() for name in ids if name in names]
        return np.isin(places[owners] * num + self._fragments[blocks], there)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of one text. `hashes` are those of its own characters."""

    key: bytes
    blocks: _Blocks
    text: CoreText
    hashes: Hashes
    in_place: frozenset[str]

    def stretches(self, positions: Sequence[int], first: Sequence[int]) -> Iterator[RedactedStretch]:
        """What is cut out for the runs that begin at some of these positions. `first` is the first block of each."""
        at, num_false = 0, 0
        while at < len(positions) and num_false < _MAX_FALSE:
            runs = [self._run(positions[at], *block) for block in self.blocks.equal_to(first[at])]
            wanted = [run for run in runs if run is not None and _counts(run, self.in_place)]
            if wanted:
                longest = max(wanted, key=lambda run: run.num_chars)
                yield _stretch(self.text, longest, longest.sealed.fragment_id in self.in_place)
                at = bisect_left(positions, longest.start + longest.num_chars)
            else:
                at, num_false = at + 1, num_false + 1

    def _run(self, position: int, sealed: RedactedText, number: int) -> _Run | None:
        """The blocks of a text from one on that stand one behind the other. None where the first does not."""
        width, offset = sealed.num_block_chars, sealed.offset(number)
        last = offset
        while number < sealed.num_blocks:
            at = position + sealed.offset(number) - offset
            if at >= len(self.hashes) or int(self.hashes[at]) != sealed.hash(number):
                break
            if digest_block(self.text.text[at : at + width], self.key) != sealed.digest(number):
                break
            last = sealed.offset(number) + width
            number += 1
        return None if last == offset else _Run(sealed, position, offset, last - offset)


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
