"""The transitions of recurrent layers that the workers hold: over which tokens, and how to find those of a suffix.

    prompt        [0 ........)[s1 ......)[s2 ......)[s3 ..... end)       chunks of prefill, each from state to state
    transitions                    7          8                          recorded behind the first foldable piece
    path [s1, s3)                 (7,         8)                         known by the block hash where each one ends

A block hash names all tokens in front of it and their lineage. So a transition belongs to its tokens, whoever computed
them again. The tensors are the workers'. Here are numbers, norms and bytes, under a budget: what was used longest ago
goes first. A transition counts once every worker has recorded it in all its layers.

Does not know blocks, states or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from acmserve.engine.scheduling.leaps.runs import TransitionPath
from acmserve.engine.worker.copies import RecordedTransition
from acmserve.errors import IntegrityError
from acmserve.plan.source import ServedSequence


@dataclass(slots=True)
class _Transition:
    """Over the tokens from `start` to the block of `key`. `fact` is None until the workers have recorded it."""

    key: bytes
    start: int
    fact: RecordedTransition | None = None


class TransitionIndex:
    """See the module. `max_bytes` bounds what each worker holds."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._next = 0
        self._by_number: dict[int, _Transition] = {}
        self._by_end: dict[bytes, dict[int, int]] = {}
        self._dropped: list[int] = []

    def add(self, key: bytes, start: int) -> int | None:
        """A number for a transition that is going to be recorded. None where it is known already."""
        starts = self._by_end.setdefault(key, {})
        if start in starts:
            return None
        self._next += 1
        starts[start] = self._next
        self._by_number[self._next] = _Transition(key, start)
        return self._next

    def confirm(self, facts: Mapping[int, RecordedTransition]) -> None:
        """The workers have recorded these. Steps end in order, so what was to be recorded before is not."""
        for number in [n for n, t in self._by_number.items() if n < max(facts, default=0) and t.fact is None]:
            if number not in facts:
                self._drop(number)
        for number, fact in facts.items():
            if (transition := self._by_number.get(number)) is not None and transition.fact is None:
                transition.fact = fact
                self._num_bytes += fact.num_bytes
        for number in [n for n, transition in self._by_number.items() if transition.fact is not None]:
            if self._num_bytes <= self._max_bytes:
                break
            self._drop(number)

    def find_path(self, source: ServedSequence, start: int, end: int) -> TransitionPath | None:
        """The transitions over tokens `[start, end)` of a source. What is found is used: it goes last.

        The longest one is tried first. Where nothing leads on from it, a shorter one is. No place is tried twice.
        """
        if start == end:
            return TransitionPath((), 1.0)
        path: list[tuple[int, float]] = []
        tried: set[int] = set()
        open_ends = [self._ending_at(source, start, end)]
        while open_ends and (not path or start not in tried):
            position, number, norm = next(open_ends[-1], (None, 0, 0.0))
            if position is None:
                open_ends.pop()
                path = path[:-1]
            elif position not in tried:
                tried.add(position)
                path.append((number, norm))
                open_ends.append(self._ending_at(source, start, position))
        if not path:
            return None
        for number, _ in path:
            self._by_number[number] = self._by_number.pop(number)
        return TransitionPath(tuple(number for number, _ in reversed(path)), prod(norm for _, norm in path))

    def _ending_at(self, source: ServedSequence, start: int, end: int) -> Iterator[tuple[int, int, float]]:
        """Where a transition begins that ends there, its number and its norm, the longest first.

        Each ends with a block. It may begin within one, where a turn ended.
        """
        size = source.block_size
        key = source.block_key(end // size - 1, size) if not end % size else None
        known = self._by_end.get(key, {}) if key is not None else {}
        for position in sorted(known):
            fact = self._by_number[known[position]].fact
            if position >= start and fact is not None:
                yield position, known[position], min(fact.norm, 1.0)

    @property
    def num_dropped(self) -> int:
        """Numbers that the workers still have to be told of."""
        return len(self._dropped)

    def take_dropped(self) -> tuple[int, ...]:
        """Numbers that the workers may forget, once this step's moves are done."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def forget(self, keys: Iterable[bytes]) -> None:
        """A redaction takes these keys out of the prefix cache. A transition is made of the keys of its tokens."""
        for key in keys:
            for number in list(self._by_end.get(key, {}).values()):
                self._drop(number)

    def clear(self) -> None:
        """The prefix cache was reset."""
        for number in list(self._by_number):
            self._drop(number)

    def _drop(self, number: int) -> None:
        transition = self._by_number.pop(number)
        starts = self._by_end[transition.key]
        del starts[transition.start]
        if not starts:
            del self._by_end[transition.key]
        if transition.fact is not None:
            self._num_bytes -= transition.fact.num_bytes
        self._dropped.append(number)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the index, the bytes or the budget are off."""
        named = {number for starts in self._by_end.values() for number in starts.values()}
        if named != self._by_number.keys():
            raise IntegrityError(f"transitions: {len(named)} are named and {len(self._by_number)} known")
        num_bytes = sum(t.fact.num_bytes for t in self._by_number.values() if t.fact is not None)
        if num_bytes != self._num_bytes or num_bytes > self._max_bytes:
            raise IntegrityError(
                f"transitions: {num_bytes} bytes, {self._num_bytes} counted, {self._max_bytes} allowed"
            )
