"""The receipt: what really happened to the prompt of one request, token by token.

`ReceiptBuilder` follows the prompt from left to right as the scheduler advances over it and remembers how each token's
KV came about. A preempted request starts again from whatever its blocks still hold in the cache. The tokens that
survive keep their first entry, so the three counts always sum to the prompt length.

`precomputed_tokens` are a part of the kept ones, not a fourth count. A background request had computed them, and nobody
used them before this request. `loaded_tokens` are a part of the kept and the moved ones. Their KV had left the pool,
and came back for this request from the tier below. In the same way `repaired_tokens` are a part of the computed ones.
KV of another context could have served them, and the fidelity of the request had them computed. A background request
that was ended early has a receipt over the tokens it got to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from acmserve.plan.auto import AutoDecision

Span = tuple[int, int]
"""Tokens `[start, end)` of a sequence."""


class KVOrigin(Enum):
    """How the KV of a token came about."""

    KEPT = "kept"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class ReceiptEntry:
    """Tokens `[start, end)` of the prompt. `src_start` is where moved KV lay in its source."""

    start: int
    end: int
    origin: KVOrigin
    src_start: int = 0


def num_covered(entries: Sequence[ReceiptEntry], start: int, end: int) -> int:
    """Tokens of `[start, end)` in `entries`, which are in order and share no token. Thousands may be asked for them."""
    num_tokens = 0
    for index in range(bisect_right(entries, start, key=attrgetter("end")), len(entries)):
        if entries[index].start >= end:
            break
        num_tokens += min(entries[index].end, end) - max(entries[index].start, start)
    return num_tokens


def merged(spans: Iterable[Span]) -> list[Span]:
    """The tokens of `spans`, in order, each once."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@dataclass(frozen=True, slots=True)
class EditBoundaries:
    """What a hybrid model keeps of a prompt for later edits (`engine/scheduling/edit_boundaries.py`).

    `kept` boundaries are in the cache, of `wanted` that the foldable pieces ask for. Their tails have `kv_bytes` bytes.
    """

    kept: int
    wanted: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Counts in tokens. `moves` are (dst_start, src_start, num_tokens). Kept + moved + computed = prompt.

    `fidelity` is what was asked for. Where that was `auto`, `chosen` is what was chosen and `reason` why.
    Of a background request that was ended early, `prompt_tokens` is the part that is ready, and `fallback_reason` says
    why it ends there. `edit_boundaries` is None where every KV cache group keeps everything, and where no piece of the
    prompt was called foldable. `transition_norm` bounds what is left of a difference between two recurrent states
    behind the moved tokens. It is None where no state was moved.
    """

    fidelity: str
    prompt_tokens: int
    kept_tokens: int
    moved_tokens: int
    computed_tokens: int
    moves: tuple[tuple[int, int, int], ...]
    fallback_reason: str | None
    precomputed_tokens: int = 0
    loaded_tokens: int = 0
    repaired_tokens: int = 0
    chosen: str | None = None
    reason: str | None = None
    edit_boundaries: EditBoundaries | None = None
    transition_norm: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The receipt as it appears in answers."""
        keys = ("dst_start", "src_start", "num_tokens")
        return {
            "fidelity": self.fidelity,
            "prompt_tokens": self.prompt_tokens,
            "kept_tokens": self.kept_tokens,
            "moved_tokens": self.moved_tokens,
            "computed_tokens": self.computed_tokens,
            "precomputed_tokens": self.precomputed_tokens,
            "loaded_tokens": self.loaded_tokens,
            "repaired_tokens": self.repaired_tokens,
            "chosen": self.chosen,
            "reason": self.reason,
            "moves": [dict(zip(keys, move, strict=True)) for move in self.moves],
            "fallback_reason": self.fallback_reason,
            "edit_boundaries": None if self.edit_boundaries is None else asdict(self.edit_boundaries),
            "transition_norm": self.transition_norm,
        }


class ReceiptBuilder:
    """Entries of one request in order of position. What no entry covers was computed."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self._entries: list[ReceiptEntry] = []
        self._precompute: list[Span] = []
        self._loaded: list[Span] = []
        self._end = 0
        self._transition_norm: float | None = None

    def admit(self, num_hit: int, precompute: Iterable[Span] = ()) -> None:
        """The request starts (again) on a prefix of `num_hit` tokens found in the cache, of which `precompute` were
        precomputed."""
        self._cut(num_hit)
        self._precompute += [span for span in precompute if span[0] >= self._end]
        if num_hit > self._end:
            self._add(ReceiptEntry(self._end, num_hit, KVOrigin.KEPT))
        self._end = max(self._end, num_hit)

    def retract(self, position: int) -> None:
        """From `position` on the blocks are others now: what an earlier run kept or moved there serves nobody.

            before a preemption   [ kept )[ moved )[ moved ............)
            the move is refused   [ kept )[ moved )^position
            admitted again        [ kept )[ moved )[ kept, as exact ...)

        What is kept there is told by the next `admit`.
        """
        self._cut(position)
        self._end = min(self._end, position)

    def jump(self, entries: list[ReceiptEntry], transition_norm: float | None = None) -> None:
        """One step took `entries` from their sources. Of several transitions the largest norm counts."""
        if transition_norm is not None:
            self._transition_norm = max(transition_norm, self._transition_norm or 0.0)
        for entry in entries:
            self._add(entry)

    def add_precomputed(self, spans: Iterable[Span]) -> None:
        """The KV that one step kept in `spans` was precomputed."""
        self._precompute += spans

    def add_loaded(self, spans: Iterable[Span]) -> None:
        """KV that serves tokens of `spans` came back from the tier. Some of them may be told again."""
        self._loaded += spans

    def advance(self, end: int) -> None:
        """The scheduler has computed up to token `end`."""
        self._end = max(self._end, end)

    def end_here(self) -> None:
        """Nothing behind what was computed so far will be: the receipt is about that part."""
        self.num_prompt_tokens = min(self._end, self.num_prompt_tokens)

    def covers(self, start: int, end: int) -> bool:
        """Whether every token of `[start, end)` was kept or moved."""
        return self._num_computed(start, end) == 0

    def _num_computed(self, start: int, end: int) -> int:
        return end - start - num_covered(self._entries, start, end)

    def close(
        self, fidelity: str, fallback_reason: str | None, anew: Iterable[Span] = (), choice: AutoDecision | None = None
    ) -> Receipt:
        """The receipt of the prompt as it stands. `anew` was planned to be computed for fidelity's sake."""
        moved = self._merged_moves()
        kept = [entry for entry in self._entries if entry.origin is KVOrigin.KEPT]
        num_kept = sum(entry.end - entry.start for entry in kept)
        num_precomputed = sum(num_covered(kept, start, end) for start, end in self._precompute)
        num_moved = sum(num_tokens for _, _, num_tokens in moved)
        loaded = merged(self._loaded)
        return Receipt(
            fidelity=fidelity,
            prompt_tokens=self.num_prompt_tokens,
            kept_tokens=num_kept,
            moved_tokens=num_moved,
            computed_tokens=self.num_prompt_tokens - num_kept - num_moved,
            moves=moved,
            fallback_reason=fallback_reason,
            precomputed_tokens=num_precomputed,
            loaded_tokens=sum(num_covered(self._entries, start, end) for start, end in loaded),
            repaired_tokens=sum(self._num_computed(start, end) for start, end in anew),
            chosen=choice.fidelity if choice else None,
            reason=choice.reason if choice else None,
            transition_norm=self._transition_norm,
        )

    def _add(self, entry: ReceiptEntry) -> None:
        end = min(entry.end, self.num_prompt_tokens)
        if end > entry.start:
            self._entries.append(ReceiptEntry(entry.start, end, entry.origin, entry.src_start))
        self._end = max(self._end, entry.end)

    def _cut(self, end: int) -> None:
        """Drop what lies behind token `end`."""
        before = [entry for entry in self._entries if entry.start < end]
        self._entries = [ReceiptEntry(e.start, min(e.end, end), e.origin, e.src_start) for e in before]
        self._precompute = [(start, min(stop, end)) for start, stop in self._precompute if start < end]

    def _merged_moves(self) -> tuple[tuple[int, int, int], ...]:
        moves: list[tuple[int, int, int]] = []
        for e in self._entries:
            if e.origin is not KVOrigin.MOVED:
                continue
            n = e.end - e.start
            if moves and (moves[-1][0] + moves[-1][2], moves[-1][1] + moves[-1][2]) == (e.start, e.src_start):
                dst_start, src_start, before = moves.pop()
                moves.append((dst_start, src_start, before + n))
            else:
                moves.append((e.start, e.src_start, n))
        return tuple(moves)
