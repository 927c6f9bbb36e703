"""Whether moved KV would change the answer, judged from token ids alone, before anything is moved.

    source   [P .....][F: a = 1, b = 7, ...][S: a = 2, and so on ..........]
    prompt   [P .....][m][S .............................................]
                           ^ "a =" stood in F with another continuation: S's KV of "2" knows that it was 1

Six things are measured, all of the text that would move (S) against what was removed in front of it (F):

    size        F against S, F of earlier edits included as far as the lineage says
    echoes      tokens of S in phrases that F had, too
    cuts        in how many pieces F stood: what continues one long text depends on it, calls on no result between
    unmarked    pieces of F that nothing stands for: a template drops the thoughts of a chain of calls like that
    anew        the echoes with what is behind them, and rests that are too short to move
    listed      what lies in somewhat longer rests. Text that is one list of a form has no others: coreference

`choose_fidelity` turns that into a decision. `Thresholds` is the one place that holds its numbers. What it cannot see:
text that depends on F without a word in common. Where echoes are few, nothing says how much S depends on F, so the old
bounds on sizes hold there. What each token paid attention to would say it. It is not recorded.

Pure numpy. No model, no attention.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from acmserve.plan.ngrams import Mask
from acmserve.plan.pieces import Compute, EditPlan, Move
from acmserve.plan.repair import (
    DEFAULT_REPAIR,
    EVERYTHING,
    Grain,
    Repair,
    covered,
    fill_short_rests,
    find_echoes,
    find_marks,
    grain_of,
)
from acmserve.plan.source import ServedSequence, Tokens

LINE_TOKENS = 24
"""Rests below that are parts of lines of one form. They move only beside longer ones."""
MARK_TOKENS = 2
"""What a cut leaves at a seam of tokens, at most. A marker has more."""
AUTO_REPAIR = Repair(head_tokens=0, echoes=True)
"""What `auto` computes of text that moves. No heads: one that ends within an item makes it worse (LOG)."""


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of a planned edit without a model. Counts are tokens, where nothing else is said.

    `num_moved` S: what the plan moves. `num_removed` F: what stood in front of it and is gone. `num_inserted` stands
    newly in front of moved text: markers, summaries, restored text. `num_echoed`, `num_anew` and `num_listed` are
    parts of S. `num_removed_before` is gone since earlier edits and still in the KV that would be kept or moved.
    `num_stale_kept` are the tokens of the kept prefix from its first moved one on, and `num_removed_of_kept` is what is
    gone from their sight. `num_cuts` counts moves with a piece of F right in front of them. `num_unmarked` counts
    those of them where at most `MARK_TOKENS` stand in its place.
    """

    num_moved: int = 0
    num_removed: int = 0
    num_inserted: int = 0
    num_echoed: int = 0
    num_anew: int = 0
    num_listed: int = 0
    num_removed_before: int = 0
    num_stale_kept: int = 0
    num_removed_of_kept: int = 0
    num_cuts: int = 0
    num_unmarked: int = 0

    @property
    def num_reused(self) -> int:
        """Tokens that would carry what they saw in an earlier context."""
        return self.num_moved + self.num_stale_kept

    @property
    def num_rest(self) -> int:
        """Tokens of S that move under `AUTO_REPAIR`."""
        return self.num_moved - self.num_anew

    @property
    def echoed_share(self) -> float:
        """Part of S that lies in phrases of F."""
        return self.num_echoed / max(self.num_moved, 1)

    @property
    def anew_share(self) -> float:
        """Part of S that `AUTO_REPAIR` computes."""
        return self.num_anew / max(self.num_moved, 1)

    @property
    def listed_share(self) -> float:
        """Part of what would move that lies in rests shorter than `LINE_TOKENS`."""
        return self.num_listed / max(self.num_rest, 1)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where `choose_fidelity` draws its lines. All from one model of 135M parameters.

    `max_anew_share`, `min_rest`
                        beyond them a move saves too little to risk anything.
    `max_listed_share`  coreference, where echoes lost 15 points, has 1.00. Three quarters of the training cases of
                        `bench repairs` in any other family have at most 0.64.
    `max_removed_ratio` up to which F was tried. It holds for a prefix that an earlier turn chose, too.
    `wide_ratio`, `min_wide_echoed_share`
                        longer F needs more echoes. Removals of 3 and 10 times S with a fifth of echoes had 0.11 and
                        0.45 nats, and those with more than half of them 0.005.
    `max_single_ratio`  up to which F may be one piece. One text of 2.6 to 9 times S had 0.1 nats and lost 3 points.
                        Clearings of several results as long had 0.01 and lost none.
    `min_echoed_share`  below it echoes do not tell what depends on F.
    `max_plain_ratio`, `min_plain_tokens`
                        there F may be little longer than S, and S has to be long. Such cases had at most 0.07 nats, and
                        an earlier study with S of 200 had 0.37.
    `max_unmarked`      up to which pieces without a marker were tried, and moved well. Chains of 8 to 20 dropped
                        thoughts had 0.12 nats and lost 11 points, and no repair of them was near enough (LOG).
    `max_inserted_ratio`, `max_removed_before_ratio`
                        older bounds on what was not tried anew: insertions, and edits that add up.
    """

    max_anew_share: float = 0.9
    min_rest: int = 32
    max_listed_share: float = 0.9
    max_removed_ratio: float = 12.0
    wide_ratio: float = 3.0
    min_wide_echoed_share: float = 0.35
    max_single_ratio: float = 2.0
    min_echoed_share: float = 0.1
    max_plain_ratio: float = 1.5
    min_plain_tokens: int = 256
    max_unmarked: int = 4
    max_inserted_ratio: float = 3.0
    max_removed_before_ratio: float = 1.0


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class AutoDecision:
    """The fidelity that fits an edit (`exact`, `repair` or `reuse`) and why, with the numbers that decided."""

    fidelity: str
    reason: str
    repair: Repair = DEFAULT_REPAIR


@dataclass(frozen=True, slots=True, eq=False)
class EditSurvey:
    """The features of a planned edit, and what `AUTO_REPAIR` computes of each move: bool [n]."""

    features: Features
    anew: Sequence[Mask]


def measure(
    plan: EditPlan,
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    grain: Grain | None = None,
) -> EditSurvey:
    """What is known of a plan that moves whatever can be moved. `prompt` is int32 [n]."""
    grain = grain or grain_of()
    echoes = find_echoes(plan, prompt, sources)
    anew = find_marks(plan, prompt, AUTO_REPAIR, echoes)
    num_echoed = sum(_count([covered(found, len(one))]) for found, one in zip(echoes, anew, strict=True))
    anew = fill_short_rests(anew, grain.rest_tokens, grain.min_move_tokens)
    listed = fill_short_rests(anew, None, LINE_TOKENS)
    holes = (piece for piece in plan.pieces()[:-1] if isinstance(piece, Compute))
    first_stale, removed_of_kept, removed_before = _lineage(plan, sources)
    num_cuts, num_unmarked = _cuts(plan)
    features = Features(
        num_moved=sum(move.num_tokens for move in plan.moves),
        num_removed=sum(removed.num_tokens for removed in plan.removed),
        num_inserted=sum(hole.num_tokens for hole in holes),
        num_echoed=num_echoed,
        num_anew=_count(anew),
        num_listed=_count(listed) - _count(anew),
        num_removed_before=removed_before,
        num_stale_kept=plan.num_kept - first_stale,
        num_removed_of_kept=removed_of_kept,
        num_cuts=num_cuts,
        num_unmarked=num_unmarked,
    )
    return EditSurvey(features, anew)


def _cuts(plan: EditPlan) -> tuple[int, int]:
    """How many moves had removed text right in front of them, and how many of these have no text in its place."""
    pieces = plan.pieces()
    marked = {
        move.dst_start
        for hole, move in pairwise(pieces)
        if isinstance(hole, Compute) and isinstance(move, Move) and hole.num_tokens > MARK_TOKENS
    }
    behind: list[Move] = []
    for source in {removed.source for removed in plan.removed}:
        ends = [removed.end for removed in plan.removed if removed.source == source]
        num_before = 0
        for move in sorted((m for m in plan.moves if m.source == source), key=lambda m: m.src_start):
            num_in_front = bisect_right(ends, move.src_start)
            if num_in_front > num_before:
                behind.append(move)
            num_before = num_in_front
    return len(behind), sum(move.dst_start not in marked for move in behind)


def _count(masks: Sequence[Mask]) -> int:
    return sum(int(np.count_nonzero(mask)) for mask in masks)


def choose_fidelity(
    features: Features, repair: Repair | None = None, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> AutoDecision:
    """The least that is computed for an answer like the exact one. `repair` is what is repaired where that is enough.

    A prefix with moved KV was chosen by an earlier turn, and what this edit removes stood behind it. So it stays,
    unless too much had been removed from it. What may not be moved behind it is then computed on top of it.
    """
    f = features
    if not f.num_reused:
        return AutoDecision("exact", "nothing would be moved")
    added_up = _added_up(f, thresholds)
    is_alone = not f.num_moved or added_up is not None
    if is_alone and f.num_removed_of_kept > thresholds.max_removed_ratio * f.num_stale_kept:
        gone = f"{f.num_removed_of_kept} tokens were removed by earlier edits, {f.num_stale_kept} saw them"
        return AutoDecision("exact", added_up or gone)
    if not f.num_moved:
        kept = f"a prefix is kept as it was served: {f.num_stale_kept} tokens of it behind a move"
        return AutoDecision("reuse", kept)
    refusal = added_up or _refusal(f, thresholds)
    if refusal is None:
        sizes = f"{f.num_moved} tokens could move, {f.num_removed} were removed"
        if not f.num_anew and repair is None:
            return AutoDecision("reuse", f"{sizes} and share no phrase with them")
        anew = f"{f.num_echoed} echo them, and {f.num_anew} are computed anew with what is behind them"
        return AutoDecision("repair", f"{sizes}; {anew}", _repair(repair))
    if f.num_stale_kept:
        return AutoDecision("repair", f"{refusal}; the prefix in front is kept as it was served", EVERYTHING)
    return AutoDecision("exact", refusal)


def _repair(asked: Repair | None) -> Repair:
    """What is repaired: the rule's own, or what the caller asks for and the rule's echoes."""
    return AUTO_REPAIR if asked is None else replace(asked, echoes=True)


def _added_up(f: Features, thresholds: Thresholds) -> str | None:
    """Why the edits of a session have removed too much for another move. None where they have not."""
    num_removed = f.num_removed + f.num_removed_before
    if not f.num_removed_before or num_removed <= thresholds.max_removed_before_ratio * f.num_reused:
        return None
    return f"{num_removed} tokens were removed by this and earlier edits, {f.num_reused} saw them"


def _refusal(f: Features, thresholds: Thresholds) -> str | None:
    """Why the text that could move is computed, whatever stands in front of it. None where it moves."""
    t = thresholds
    if f.num_inserted > t.max_inserted_ratio * f.num_moved:
        return f"{f.num_inserted} tokens were inserted in front of {f.num_moved} that could move"
    if f.num_removed > t.max_removed_ratio * f.num_moved:
        return f"{f.num_removed} tokens were removed in front of {f.num_moved} that could move"
    if f.num_unmarked > t.max_unmarked:
        return f"{f.num_unmarked} pieces were removed and nothing stands for them, as of a chain of dropped thoughts"
    if f.anew_share > t.max_anew_share or f.num_rest < t.min_rest:
        repeated = f"{f.num_echoed} of {f.num_moved} tokens that could move repeat removed text"
        return f"{repeated}, which leaves {f.num_rest} of them: too few to move"
    if f.num_anew and f.listed_share > t.max_listed_share:
        return f"{f.num_listed} of {f.num_rest} tokens that could move stand in lines that begin as removed text does"
    is_wide = f.num_removed > t.wide_ratio * f.num_moved
    needed = t.min_wide_echoed_share if is_wide else t.min_echoed_share
    if f.echoed_share < needed and not _is_plain(f, t):
        return (
            f"{f.num_moved} tokens could move, {f.num_removed} were removed, and only {f.num_echoed} echo them: "
            "too few to tell what depends on it"
        )
    if f.num_cuts == 1 and f.num_removed > t.max_single_ratio * f.num_moved:
        return f"{f.num_removed} tokens were removed in one piece in front of {f.num_moved} that could move"
    return None


def _is_plain(f: Features, thresholds: Thresholds) -> bool:
    """Whether long text stays behind a cut that is not much longer, as most edits of long contexts are."""
    is_long = f.num_moved >= thresholds.min_plain_tokens
    return is_long and f.num_removed <= thresholds.max_plain_ratio * f.num_moved


def _lineage(plan: EditPlan, sources: Sequence[ServedSequence]) -> tuple[int, int, int]:
    """The first token of the kept prefix with moved KV. Then what earlier edits removed, at most: from what is kept,
    and from all that is reused.
    """
    first, num_removed = plan.num_kept, 0
    if plan.keep and plan.keep.source is not None:
        kept = sources[plan.keep.source]
        first = min((mark.position for mark in kept.marks if mark.position < first), default=first)
        num_removed = kept.num_removed(plan.num_kept)
    ends: dict[int, int] = {}
    for move in plan.moves:
        ends[move.source] = max(ends.get(move.source, 0), move.src_start + move.num_tokens)
    behind = (sources[index].num_removed(end) for index, end in ends.items())
    return first, num_removed, max(num_removed, *behind, 0)
