"""The transitions of recurrent layers that the workers hold: over which tokens, and how to find those of a suffix.

    sequence      [0 ........)[s1 ......)[s2 ......)[s3 ... | answer )e      from state to state
    transitions                    7          8          9                recorded behind the first foldable piece
    path [s1, e)                  (7,         8,         9)               known by the key of the state where it ends

Such a key names all tokens in front of it and their lineage. So a transition belongs to its tokens, whoever computed
them again. It is named once it has come to a state. The tensors are the workers'. Here are numbers, norms and bytes,
under a budget: what was used longest ago goes first. A transition counts once every worker has said of each of its
steps that no layer lacks a token.

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
    """Over the tokens from `start` to the state of `key`, None until it has come to one.

    `fact` is what the workers said last. Of `num_steps` steps they have said nothing yet.
    """

    start: int
    key: bytes | None = None
    fact: RecordedTransition | None = None
    num_steps: int = 0


class TransitionIndex:
    """See the module. `max_bytes` bounds what each worker holds."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._next = 0
        self._by_number: dict[int, _Transition] = {}
        self._by_end: dict[bytes, dict[int, int]] = {}
        self._dropped: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def knows(self, key: bytes, start: int) -> bool:
        """Whether the transition from `start` to the state of `key` needs no recording any more."""
        return start in self._by_end.get(key, {})

    def begin(self, start: int) -> int:
        """A number for a transition that is going to be recorded from token `start` on."""
        self._next += 1
        self._by_number[self._next] = _Transition(start)
        return self._next

    def go_on(self, number: int) -> None:
        """A step records tokens of this transition."""
        self._by_number[number].num_steps += 1

    def name(self, number: int, key: bytes) -> None:
        """A transition that was begun ends at the state of `key`. Dropped where that one is known already."""
        transition = self._by_number[number]
        if self.knows(key, transition.start):
            self.drop(number)
            return
        transition.key = key
        self._by_end.setdefault(key, {})[transition.start] = number

    def confirm(self, facts: Mapping[int, RecordedTransition | None]) -> None:
        """What the workers have recorded by now. None where a worker lacks something: that one is of no use."""
        for number, fact in facts.items():
            if (transition := self._by_number.get(number)) is None:
                continue
            if fact is None:
                self.drop(number)
                continue
            transition.num_steps -= 1
            self._num_bytes += fact.num_bytes - (transition.fact.num_bytes if transition.fact is not None else 0)
            transition.fact = fact
        for number in [n for n, transition in self._by_number.items() if transition.fact is not None]:
            if self._num_bytes <= self._max_bytes:
                break
            self.drop(number)

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

        Each begins and ends with a block, or within one, where a turn ended.
        """
        key = source.state_key(end)
        known = self._by_end.get(key, {}) if key is not None else {}
        for position in sorted(known):
            transition = self._by_number[known[position]]
            if position >= start and transition.fact is not None and not transition.num_steps:
                yield position, known[position], min(transition.fact.norm, 1.0)

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
                self.drop(number)

    def clear(self) -> None:
        """The prefix cache was reset."""
        for number in list(self._by_number):
            self.drop(number)

    def drop(self, number: int) -> None:
        """Forget a transition. The workers are told of it."""
        transition = self._by_number.pop(number)
        if transition.key is not None:
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
        known = {number for number, transition in self._by_number.items() if transition.key is not None}
        if named != known:
            raise IntegrityError(f"transitions: {len(named)} are named and {len(known)} known")
        num_bytes = sum(t.fact.num_bytes for t in self._by_number.values() if t.fact is not None)
        if num_bytes != self._num_bytes or num_bytes > self._max_bytes:
            raise IntegrityError(
                f"transitions: {num_bytes} bytes, {self._num_bytes} counted, {self._max_bytes} allowed"
            )
