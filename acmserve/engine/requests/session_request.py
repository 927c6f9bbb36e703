"""One session request on its way through the scheduler: its plan, what of the plan is still to do, and its receipt.

The plan was made when the request arrived (`request_plan.py`). The cache changes until the request is scheduled. So the
plan is a list of *segments*, prompt ranges whose KV may be taken from a source. Each segment is carried out, shortened,
or refused when the scheduler stands at its first token:

    prompt   [0 ............)[....)[..................)[.....)[..........)
              Keep of a source  |   Move: segment       |      Move: segment      the rest is computed
              segment, delta 0  |                       |
              (what the engine's own prefix hit does not cover: a partial block)

A refused segment is computed. When nothing of a move was carried out its lineage mark goes too. The blocks computed in
its stead are then what they are: exact.

It knows positions, sources and hashes. Blocks are named in `engine/scheduling/jump.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from acmserve.engine.requests.receipt import EditBoundaries, KVOrigin, Receipt, ReceiptBuilder, Span
from acmserve.errors import IntegrityError
from acmserve.plan.auto import AutoDecision
from acmserve.plan.lineage import LineageMark, position_of
from acmserve.plan.owner import Owner
from acmserve.plan.source import KeptState, ServedSequence, Tokens

_START, _END = attrgetter("dst_start"), attrgetter("dst_end")


@dataclass(frozen=True, slots=True)
class ReusableRange:
    """Prompt tokens `[dst_start, dst_end)` may take the KV of `source` from token `src_start` on."""

    dst_start: int
    dst_end: int
    src_start: int
    source: ServedSequence
    origin: KVOrigin

    def src_at(self, position: int) -> int:
        """Token of the source whose KV belongs at prompt token `position`."""
        return self.src_start + position - self.dst_start


@dataclass(slots=True)
class SessionRequest:
    """State of one request. `segments` are sorted and disjoint, and shrink as they are carried out or refused.

    `hidden_from` is set when the session is forgotten while this request is alive. Nobody may find its blocks from that
    one on, and the request does not become a source. Neither does an `unrecorded` one. `precompute` marks a background
    request, `draft` one whose answer is verified before anybody sees it. `inherited_from` is where the tokens begin
    that it copied in this step and that had been precomputed.
    `anew` and `choice` are for the receipt: see `plan.fidelity.FidelityPlan`. `leaves_out` is set where the plan
    left matches out. `prompt` is int32 [n]. `foldable` are the pieces of the prompt that a later edit may take out.
    `count_boundaries` says what is kept for that, once the prompt is prefilled. `states` are those kept of its prefix,
    and `answer_state` is the one in front of its own answer.

    The request stands aside while `is_planned` is False, and until the keys behind `evictions_ticket` are gone.
    """

    request_id: str
    owner: Owner
    fidelity: str
    receipt_builder: ReceiptBuilder
    prompt: Tokens
    is_planned: bool = False
    evictions_ticket: int = 0
    anew: tuple[Span, ...] = ()
    choice: AutoDecision | None = None
    segments: list[ReusableRange] = field(default_factory=list)
    marks: list[LineageMark] = field(default_factory=list)
    fallback_reason: str | None = None
    num_hit: int = 0
    planned: tuple[ReusableRange, ...] = ()
    taken_back: list[int] = field(default_factory=list)
    hidden_from: int | None = None
    precompute: bool = False
    leaves_out: bool = False
    inherited_from: int | None = None
    receipt: Receipt | None = None
    acm: dict[str, Any] | None = None
    account: str = ""
    unrecorded: bool = False
    draft: bool = False
    foldable: tuple[Span, ...] = ()
    states: tuple[KeptState, ...] = ()
    answer_state: KeptState | None = None
    count_boundaries: Callable[[], EditBoundaries | None] | None = None

    @property
    def session_id(self) -> str:
        return self.owner.session_id

    @property
    def states_left(self) -> tuple[KeptState, ...]:
        """Its states: of its prefix none behind a mark that was taken back, and that in front of its answer."""
        end = min(self.taken_back, default=None)
        own = () if self.answer_state is None else (self.answer_state,)
        return (*(state for state in self.states if end is None or state.num_tokens <= end), *own)

    def tokens_with(self, answer: Sequence[int]) -> Tokens:
        """The prompt and what was answered so far, int32. The prompt is not read again: it may be long."""
        return np.concatenate([self.prompt, np.array(answer, dtype=np.int32)])

    def arm(self) -> None:
        """Set out with the whole plan again, after a preemption.

        Except where a mark was taken back: from there on the block hashes promise exact KV, and moved KV under such a
        hash would leak.
        """
        self.receipt = self.acm = None
        self.segments = []
        gone = sorted(self.taken_back)
        for segment in self.planned:
            first = bisect_left(gone, segment.dst_start)
            end = min(gone[first], segment.dst_end) if first < len(gone) else segment.dst_end
            if end > segment.dst_start:
                self.segments.append(replace(segment, dst_end=end))

    def admit(self, precompute: Sequence[Span]) -> None:
        """It starts (again) on its prefix hit, of which `precompute` is what was precomputed.

        Output of the run before may have come behind a preemption, with the receipt of that run.
        """
        self.receipt = self.acm = None
        self.receipt_builder.admit(self.num_hit, precompute)
        self.carry_out(0, self.num_hit)

    def end_early(self, num_computed: int, reason: str) -> None:
        """A background request goes no further. `num_computed` tokens are computed now."""
        self.receipt_builder.advance(num_computed)
        self.receipt_builder.end_here()
        self.fallback_reason = reason
        self.receipt = self.acm = None

    def answer(self) -> dict[str, Any]:
        """The session id and the receipt as they leave with every output. One object for all of them."""
        receipt = self.settle()
        if self.acm is None:
            self.acm = {"session_id": self.session_id, "receipt": receipt.as_dict()}
        return {"acm": self.acm}

    def settle(self) -> Receipt:
        """The receipt, made once, when the prompt is prefilled (after a preemption, again)."""
        if self.receipt is None:
            self.receipt = self._close()
        return self.receipt

    def _close(self) -> Receipt:
        """A reason is given only where a planned move ended up computed."""
        missed = self.leaves_out or any(
            segment.origin is KVOrigin.MOVED and not self.receipt_builder.covers(segment.dst_start, segment.dst_end)
            for segment in self.planned
        )
        planned_anything = any(segment.origin is KVOrigin.MOVED for segment in self.planned)
        reason = self.fallback_reason if missed or not planned_anything else None
        receipt = self.receipt_builder.close(self.fidelity, reason, self.anew, self.choice)
        boundaries = None if self.count_boundaries is None else self.count_boundaries()
        return receipt if boundaries is None else replace(receipt, edit_boundaries=boundaries)

    def segment_at(self, position: int) -> ReusableRange | None:
        """The segment that covers prompt token `position`, if any."""
        index = bisect_right(self.segments, position, key=_START) - 1
        return self.segments[index] if index >= 0 and position < self.segments[index].dst_end else None

    def next_stop(self, position: int) -> int | None:
        """First token after `position` where a segment begins: a prefill chunk must end there."""
        index = bisect_right(self.segments, position, key=_START)
        return self.segments[index].dst_start if index < len(self.segments) else None

    def carry_out(self, start: int, end: int) -> None:
        """Tokens `[start, end)` were taken from their segments. Whatever lies before `end` is past."""
        first, last = bisect_right(self.segments, start, key=_END), bisect_left(self.segments, end, key=_START)
        for segment in self.segments[first:last]:
            self._cut(segment, end)

    def refuse(
        self, segment: ReusableRange, start: int, end: int, reason: str, *, take_back: bool = True
    ) -> int | None:
        """Tokens `[start, end)` of `segment` will be computed. The part behind `end` stays and is asked for again.

        When nothing of the segment remains, the lineage marks in the refused range are taken back: no moved KV
        begins there. Returns the position of the first mark taken back (block hashes change from its block on). Without
        `take_back` the marks stay: what is computed there is the session's own then, as if it had been moved.
        """
        self._cut(segment, end)
        if segment.origin is KVOrigin.MOVED:
            self.fallback_reason = self.fallback_reason or reason
        if end < segment.dst_end or not take_back:
            return None
        # A mark of no tokens hides a forgotten request. No segment put it there.
        first, last = (bisect_left(self.marks, place, key=position_of) for place in (start, end))
        gone = [mark for mark in self.marks[first:last] if mark.num_tokens]
        self.marks[first:last] = [mark for mark in self.marks[first:last] if not mark.num_tokens]
        self.taken_back += [mark.position for mark in gone]
        changed = min((mark.position for mark in gone), default=None)
        if changed is not None:
            self.receipt_builder.retract(changed)
        return changed

    def _cut(self, segment: ReusableRange, end: int) -> None:
        """Drop what lies before `end` from `segment`."""
        index = bisect_left(self.segments, segment.dst_start, key=_START)
        if index == len(self.segments) or self.segments[index] != segment:
            raise IntegrityError(f"no segment [{segment.dst_start}, {segment.dst_end}) is left of {self.request_id}")
        rest = []
        if end < segment.dst_end:
            src_start = segment.src_at(end)
            rest.append(ReusableRange(end, segment.dst_end, src_start, segment.source, segment.origin))
        self.segments[index : index + 1] = rest
