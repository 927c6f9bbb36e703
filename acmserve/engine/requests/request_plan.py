"""The plan of one session request, from its tokens to its block hashes: all that needs no turn of the scheduler.

    prompt, sources     plan_wish         what is kept, moved and computed
    plan, sources       plan_segments     prompt ranges with their sources, and the lineage marks
    segments, cache     -                 which of them the cache has given up already
    marks, sources      LineageHasher     block hashes behind those that a source has

Reads frozen sources, the tokens of a request that waits, and the keys of the prefix cache. Changes nothing, so that
another thread may make the plan (`engine/scheduling/plan_queue.py`). The cache goes on changing. What is gone when the
scheduler gets there is computed, as ever.

Decision: hashes of a kept prefix are those of its source. A conversation that was edited once appends to a prefix with
marks in every turn after that. Otherwise it would be hashed from its first mark on each time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from acmserve.engine.requests.receipt import KVOrigin, Span
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.engine.vllm.lineage_hasher import LineageHasher
from acmserve.plan.auto import DEFAULT_THRESHOLDS, AutoDecision, Thresholds
from acmserve.plan.fidelity import FidelityPlan, RequestedFidelity, plan_wish, refused
from acmserve.plan.lineage import LineageMark, move_key, order_of
from acmserve.plan.match import common_prefix
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import EditPlan
from acmserve.plan.planner import needs_search
from acmserve.plan.rules.lookahead import end_early
from acmserve.plan.rules.states import StateRules, move_between_states
from acmserve.plan.source import KeptState, ServedSequence, Tokens

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockHash, Request

TOO_MANY = "too_many_moves"
"""`fallback_reason` of a request whose plan left matches out."""
STATELESS = "too_short_for_states"
"""`fallback_reason` of a request with moves in which no two places for a recurrent state lie."""
FORGOTTEN = "forgotten"
"""`fallback_reason` of a request whose moves were forgotten on its own arrival."""

MEDIA_SHIFTED = "media: other images stand in front of the text, so its positions shift otherwise"
"""`fallback_reason` of a request with M-RoPE whose text could have been moved, had the media stayed."""
MEDIA_COMPUTED = "media: tokens of images are computed, the text between them is moved"
"""`fallback_reason` of a request that moves text on both sides of media."""

IsCached = Callable[[ServedSequence, int, int], bool]
"""Whether the cache holds any block of the tokens `[start, end)` of a source."""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What becomes of a request. `segments` are all ranges that could be reused. The KV of those in `gone` is gone.

    `marks` belong to `segments`. `block_hashes` are those without the marks of what is gone. They are all hashes of the
    prompt, and None where the request's own stay. A prompt that fills no block has marks, and no hash yet: the answer
    fills the block. `fallback_reason` says why less is moved than could be. `states` are those that were kept of the
    prefix, on a model with recurrent layers.
    `leaves_out` is set where the plan left matches out. `anew` and `choice`: see `plan.fidelity.FidelityPlan`.
    """

    segments: tuple[ReusableRange, ...] = ()
    gone: tuple[ReusableRange, ...] = ()
    marks: tuple[LineageMark, ...] = ()
    block_hashes: tuple[BlockHash, ...] | None = None
    anew: tuple[Span, ...] = ()
    choice: AutoDecision | None = None
    fallback_reason: str | None = None
    leaves_out: bool = False
    states: tuple[KeptState, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All that a plan depends on, as it was when `request` arrived. `prompt` is int32 [num_prompt_tokens].

    `num_cached` tokens are cached exactly. `forgotten` are sources that a redaction took away on this very arrival.
    They serve nothing any more. `refusal` says why nothing can be reused, `move_refusal` why nothing can be moved.
    `dropped_reason` says why sources of the session were dropped before. `num_lookahead`: see `plan.rules.lookahead`.
    `states` are the rules of a model with recurrent layers, None without. `thresholds`: see `plan.fidelity.plan_wish`.
    """

    request: Request
    prompt: Tokens
    owner: Owner
    wish: RequestedFidelity
    sources: tuple[ServedSequence, ...]
    forgotten: tuple[ServedSequence, ...]
    num_cached: int
    min_move_tokens: int
    max_rotations: int
    refusal: str | None
    move_refusal: str | None
    dropped_reason: str | None
    block_size: int
    hash_function: Callable[[Any], bytes]
    num_lookahead: int = 0
    media_shift_positions: bool = False
    states: StateRules | None = None
    has_passes: bool = True
    thresholds: Thresholds | None = DEFAULT_THRESHOLDS

    @property
    def may_move(self) -> bool:
        """Whether the request asks for moves that can be carried out."""
        return self.wish.fidelity != "exact" and self.move_refusal is None

    @property
    def num_tokens_to_read(self) -> int:
        """Tokens that the plan searches or hashes. 0 for what takes next to no time: an append, and what moves nothing.

        An append to a moved prefix is hashed behind that prefix.
        """
        if not self.may_move or not self.sources:
            return 0
        if self._needs_search(self.sources):
            return len(self.prompt) + sum(source.num_tokens for source in self.sources)
        if not any(source.marks for source in self.sources):
            return 0
        return len(self.prompt) - max(common_prefix(self.prompt, source.tokens) for source in self.sources)

    def plan(self) -> FidelityPlan:
        """What is kept, moved and computed."""
        if self.refusal is not None:
            return FidelityPlan(EditPlan(len(self.prompt)), choice=refused(self.wish, self.refusal))
        found = plan_wish(
            self.prompt,
            self.sources,
            self.wish,
            num_cached=self.num_cached,
            min_move_tokens=self.min_move_tokens,
            max_rotations=self.max_rotations,
            refusal=self.move_refusal,
            media_shift_positions=self.media_shift_positions,
            has_passes=self.has_passes,
            thresholds=self.thresholds,
        )
        plan = end_early(found.plan, self.num_lookahead)
        return replace(found, plan=move_between_states(plan, self.sources, self.states))

    def reason(self, plan: EditPlan) -> str | None:
        """Why less is planned than was asked for. None under `exact`, which asks for nothing."""
        if self.wish.fidelity == "exact":
            return None
        reasons = (self.move_refusal, FORGOTTEN if self._is_forgotten else None, self.dropped_reason)
        return next((reason for reason in reasons if reason), why_less(plan))

    @property
    def _is_forgotten(self) -> bool:
        """Whether moved KV would have served the prompt, had it not been forgotten: an edit, or a moved prefix."""
        prefixes = ((source, common_prefix(self.prompt, source.tokens)) for source in self.forgotten)
        is_marked = any(source.marks and source.marks[0].position < num_tokens for source, num_tokens in prefixes)
        return is_marked or (bool(self.forgotten) and self._needs_search(self.forgotten))

    def _needs_search(self, sources: tuple[ServedSequence, ...]) -> bool:
        return needs_search(self.prompt, sources, num_cached=self.num_cached, min_move_tokens=self.min_move_tokens)


def plan_request(inputs: PlanInputs, is_cached: IsCached, lineage_keys: bool = True) -> RequestPlan:
    """The plan of `inputs.request`. Without `lineage_keys` no hash is made: a control of the simulator."""
    found = inputs.plan()
    segments, marks = plan_segments(found.plan, inputs.sources, inputs.owner)
    states = _states_of_prefix(found.plan, inputs.sources)
    if inputs.states is not None:
        segments = [one for one in (_up_to_state(segment, states) for segment in segments) if one is not None]
    gone = tuple(s for s in segments if not is_cached(s.source, s.src_start, s.src_at(s.dst_end)))
    gone = tuple(sorted(gone, key=attrgetter("dst_start")))
    starts = [segment.dst_start for segment in gone]
    holders = ((mark, bisect_right(starts, mark.position) - 1) for mark in marks)
    left = [mark for mark, index in holders if index < 0 or mark.position >= gone[index].dst_end]
    return RequestPlan(
        tuple(segments),
        gone,
        tuple(marks),
        _block_hashes(inputs, found.plan, marks, left) if left and lineage_keys else None,
        found.anew,
        found.choice,
        inputs.reason(found.plan),
        why_less(found.plan) is not None,
        states,
    )


def _states_of_prefix(plan: EditPlan, sources: tuple[ServedSequence, ...]) -> tuple[KeptState, ...]:
    """The states that were kept of what the prompt begins with."""
    if plan.keep is None or plan.keep.source is None:
        return ()
    return tuple(state for state in sources[plan.keep.source].states if state.num_tokens <= plan.keep.num_tokens)


def _up_to_state(segment: ReusableRange, states: tuple[KeptState, ...]) -> ReusableRange | None:
    """`segment` on a model with recurrent layers. A prefix goes as far as a state was kept.

    vLLM's own hit goes as far as one is cached under a block hash.
    """
    if segment.origin is KVOrigin.MOVED:
        return segment
    return replace(segment, dst_end=states[-1].num_tokens) if states else None


def why_less(plan: EditPlan) -> str | None:
    """Why a plan moves less than what was found. None where it moves all."""
    reasons = {
        TOO_MANY: plan.num_left,
        MEDIA_SHIFTED: plan.num_shifted,
        MEDIA_COMPUTED: plan.num_media,
        STATELESS: plan.num_stateless,
    }
    return next((reason for reason, num in reasons.items() if num), None)


def plan_segments(
    plan: EditPlan, sources: tuple[ServedSequence, ...], owner: Owner
) -> tuple[list[ReusableRange], list[LineageMark]]:
    """Segments of a plan and the lineage marks of its request: those of the kept prefix, and one for each move."""
    segments: list[ReusableRange] = []
    marks: list[LineageMark] = []
    if plan.keep and plan.keep.source is not None:
        source = sources[plan.keep.source]
        segments.append(ReusableRange(0, plan.keep.num_tokens, 0, source, KVOrigin.KEPT))
        kept = [mark for mark in source.marks if mark.position < plan.keep.num_tokens]
        marks += [_cut_at(mark, plan.keep.num_tokens) for mark in kept]
    for move, num_removed in zip(plan.moves, plan.num_removed_before(sources), strict=True):
        source = sources[move.source]
        identity = source.digest_at(move.src_start + move.num_tokens)
        key = move_key(owner, identity, move.dst_start, move.src_start, move.num_tokens)
        segments.append(ReusableRange(move.dst_start, move.dst_end, move.src_start, source, KVOrigin.MOVED))
        num_rotations = source.num_rotations(move.src_start, move.src_start + move.num_tokens)
        turned = int(move.dst_start != move.src_start)
        marks.append(LineageMark(move.dst_start, key, move.num_tokens, num_rotations + turned, num_removed))
    marks.sort(key=order_of)
    return segments, marks


def _cut_at(mark: LineageMark, end: int) -> LineageMark:
    """The mark of what lies in front of `end`. Of thousands, few reach so far."""
    is_inside = mark.position + mark.num_tokens <= end
    return mark if is_inside else replace(mark, num_tokens=end - mark.position)


def _block_hashes(
    inputs: PlanInputs, plan: EditPlan, marks: list[LineageMark], left: list[LineageMark]
) -> tuple[BlockHash, ...]:
    """The hashes of all whole blocks, with the marks in `left`. `marks` are those of the whole plan.

    kept prefix with marks      [ hashes of its source ..)[ made here ........)
    else                        [ stock hashes ..)[ made here, from the first mark on )
    """
    bs, request = inputs.block_size, inputs.request
    known: Sequence[BlockHash] = ()
    if plan.keep and plan.keep.source is not None:
        known = inputs.sources[plan.keep.source].block_hashes[: plan.keep.num_tokens // bs]
    kept = [mark for mark in marks if mark.position < len(known) * bs]
    if not kept or kept != left[: len(kept)]:
        known = request.block_hashes[: left[0].position // bs]
    return LineageHasher(inputs.hash_function, bs, left, inputs.owner.adapter_key).extended(request, known)
