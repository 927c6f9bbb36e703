"""Whether moved KV would change the answer, judged from token ids alone, before anything is moved.

    source   [P .....][F: a = 1, b = 7, ...][S: a = 2, and so on ..........]
    prompt   [P .....][m][S .............................................]
                           ^ "a =" stood in F with another continuation: S's KV of "2" knows that it was 1

Three things are measured, all of the text that would move (S) against what was removed in front of it (F):

    size         F against S, F of earlier edits included as far as the lineage says. Long F, much influence; short S,
                 little to win by moving it
    echoes       tokens of S in phrases that F had too
    superseded   phrases of S that F had with another continuation: state that was updated. This is where moved KV loses
                 most of what folding is for, for the model meets the old value in the KV of the new one

`choose_fidelity` turns that into a decision. `Thresholds` is the one place that holds its numbers. What it cannot see:
text that depends on F without a word in common.

Pure numpy, about 5 milliseconds at 32K tokens. No model, no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from acmserve.plan.ngrams import GramIndex, Mask, cover
from acmserve.plan.pieces import Compute, EditPlan
from acmserve.plan.repair import DEFAULT_REPAIR, ECHO_TOKENS, EVERYTHING, Repair
from acmserve.plan.source import ServedSequence, Tokens

WINDOW = 256
"""Tokens of S within which updates of removed state are looked for, for they may be a small part of a long S."""


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of a planned edit without a model. All counts are tokens.

    `num_moved` S: what the plan moves. `num_removed` F: what stood in front of it and is gone. `num_inserted` stands
    newly in front of moved text: markers, summaries, restored text. `num_echoed` and `num_superseded` are parts of S.
    `peak_echoed` and `peak_superseded` count in the `WINDOW` tokens of S that have most of them. `num_removed_before`
    is gone since earlier edits and still in the KV that would be kept or moved. `num_stale_kept` are the tokens of the
    kept prefix from its first moved one on. `num_segments` pieces of text would be moved.
    """

    num_moved: int = 0
    num_removed: int = 0
    num_inserted: int = 0
    num_echoed: int = 0
    num_superseded: int = 0
    peak_echoed: int = 0
    peak_superseded: int = 0
    num_removed_before: int = 0
    num_stale_kept: int = 0
    num_segments: int = 1

    @property
    def num_reused(self) -> int:
        """Tokens that would carry what they saw in an earlier context."""
        return self.num_moved + self.num_stale_kept

    @property
    def echoed_share(self) -> float:
        """Part of S that lies in phrases of F."""
        return self.num_echoed / max(self.num_moved, 1)

    @property
    def superseded_share(self) -> float:
        """Part of S that follows a phrase of F and is not what followed it there."""
        return self.num_superseded / max(self.num_moved, 1)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where `choose_fidelity` draws its lines.

    What moves is repaired: `head_tokens` of each segment, and the echoes. Up to `plain_ratio` of changed text to S the
    head of an S longer than `wide_head_tokens` stays, too. Echoes may be so much of S that less than `least_rest_share`
    of it, or fewer than `min_rest` tokens, would be left. Then `wide_head_tokens` of each segment are repaired instead,
    unless S updates F. It does above the largest share, or the largest peaks in a window, of what is superseded or
    echoed. Exact where that leaves fewer than `min_rest`, and above `max_changed_ratio` of changed text to S
    (`max_removed_before_ratio` of what is reused, with what earlier edits removed).

    From a 135M model. KL of 54 edits: with head and echoes at most 0.08 nats, also on updated lines, where heads alone
    leave 0.2. Few echoes do the harm (70 of 2,000 tokens: 0.9 nats under `reuse`), so no share of them is safe. Heads
    help where much was changed. Below `plain_ratio` they are worth 0.0001 nats and no answer. Accuracy of 300 folds:
    text full of echoes loses 4 to 5 points with a head of 128 tokens, less than 1 with 256. Lists of `key: value`
    updates have 0.28 to 0.36 superseded (80 in a window), other tables at most 0.26 (68).
    """

    head_tokens: int = 64
    wide_head_tokens: int = 256
    min_rest: int = 64
    least_rest_share: float = 0.25
    plain_ratio: float = 0.45
    max_changed_ratio: float = 3.0
    max_removed_before_ratio: float = 1.0
    max_superseded_share: float = 0.27
    max_superseded_peak: int = 70
    max_echoed_peak: int = 240


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class AutoDecision:
    """The fidelity that fits an edit (`exact`, `repair` or `reuse`) and why, with the numbers that decided."""

    fidelity: str
    reason: str
    repair: Repair = DEFAULT_REPAIR


def measure(plan: EditPlan, prompt: Tokens, sources: Sequence[ServedSequence]) -> Features:
    """The features of a plan that moves whatever can be moved. `prompt` is int32 [n]."""
    num_echoed = num_superseded = peak_echoed = peak_superseded = 0
    for index in sorted({removed.source for removed in plan.removed}):
        spans = [(r.start, r.end) for r in plan.removed if r.source == index]
        phrases = GramIndex(sources[index].tokens, spans, ECHO_TOKENS)
        continued = GramIndex(sources[index].tokens, spans, ECHO_TOKENS + 1)
        for move in (m for m in plan.moves if m.source == index and m.num_tokens > ECHO_TOKENS):
            text, limit = prompt[move.dst_start : move.dst_end], move.src_start
            found = phrases.find(text, limit)
            echoed = cover(found, ECHO_TOKENS)
            superseded = found[:-1] & ~continued.find(text, limit)
            num_echoed, peak_echoed = num_echoed + int(echoed.sum()), max(peak_echoed, _peak(echoed))
            num_superseded += int(superseded.sum())
            peak_superseded = max(peak_superseded, _peak(superseded))
    holes = (piece for piece in plan.pieces()[:-1] if isinstance(piece, Compute))
    first_stale, removed_before = _lineage(plan, sources)
    return Features(
        num_moved=sum(move.num_tokens for move in plan.moves),
        num_removed=sum(removed.num_tokens for removed in plan.removed),
        num_inserted=sum(hole.num_tokens for hole in holes),
        num_echoed=num_echoed,
        num_superseded=num_superseded,
        peak_echoed=peak_echoed,
        peak_superseded=peak_superseded,
        num_removed_before=removed_before,
        num_stale_kept=plan.num_kept - first_stale,
        num_segments=len(plan.moves),
    )


def choose_fidelity(
    features: Features, repair: Repair = DEFAULT_REPAIR, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> AutoDecision:
    """The least that is computed for an answer like the exact one. `repair` is what is repaired where that is enough.

    A prefix with moved KV was chosen by an earlier turn. It stays unless too much was removed from it by now. What may
    not be moved behind it is then computed on top of it.
    """
    f = features
    if not f.num_reused:
        return AutoDecision("exact", "nothing would be moved")
    num_removed = f.num_removed + f.num_removed_before
    if f.num_removed_before and num_removed > thresholds.max_removed_before_ratio * f.num_reused:
        return AutoDecision(
            "exact", f"{num_removed} tokens were removed by this and earlier edits, {f.num_reused} saw them"
        )
    if not f.num_moved:
        return AutoDecision(
            "reuse", f"a prefix is kept as it was served: {f.num_stale_kept} tokens of it behind a move"
        )
    found = _repaired(f, repair, thresholds)
    if found.fidelity == "exact" and f.num_stale_kept:
        return AutoDecision("repair", f"{found.reason}; the prefix in front is kept as it was served", EVERYTHING)
    return found


def _repaired(f: Features, repair: Repair, thresholds: Thresholds) -> AutoDecision:
    """How the text that could move is served, whatever stands in front of it."""
    num_changed = max(f.num_removed, f.num_inserted)
    if num_changed > thresholds.max_changed_ratio * f.num_moved:
        what = "removed" if f.num_removed >= f.num_inserted else "inserted"
        return AutoDecision("exact", f"{num_changed} tokens were {what} in front of {f.num_moved} that could move")
    sizes = f"{f.num_moved} tokens move, {f.num_removed} were removed"
    narrow = replace(repair, echoes=True)
    if repair == DEFAULT_REPAIR:
        is_long = f.num_moved > thresholds.wide_head_tokens
        is_small = is_long and num_changed <= thresholds.plain_ratio * f.num_moved
        narrow = replace(narrow, head_tokens=0 if is_small else thresholds.head_tokens)
    if not f.num_echoed and not narrow.head_tokens:
        return AutoDecision("reuse", sizes)
    num_rest = f.num_moved - f.num_echoed - f.num_superseded - narrow.head_tokens * f.num_segments
    if num_rest >= max(thresholds.min_rest, thresholds.least_rest_share * f.num_moved):
        return AutoDecision(
            "repair", f"{sizes}; {narrow.head_tokens} of a head and {f.num_echoed} echoes are computed anew", narrow
        )
    danger = _dangerous_text(f, thresholds)
    if danger is not None:
        return AutoDecision("exact", danger)
    wide = replace(repair, head_tokens=max(repair.head_tokens, thresholds.wide_head_tokens))
    num_rest = f.num_moved - wide.head_tokens * f.num_segments
    if num_rest < thresholds.min_rest:
        left = f"{max(num_rest, 0)} behind repaired heads, fewer than {thresholds.min_rest}"
        return AutoDecision("exact", f"only {f.num_moved} tokens could move, {left}")
    return AutoDecision(
        "repair", f"{sizes}; {f.num_echoed} are echoes, so {wide.head_tokens} of a head are computed anew", wide
    )


def _dangerous_text(f: Features, thresholds: Thresholds) -> str | None:
    """Why parts of this edit's text should not be moved, in words."""
    if f.superseded_share > thresholds.max_superseded_share or f.peak_superseded > thresholds.max_superseded_peak:
        return f"the text that could move updates removed text in {_share(f.num_superseded, f.peak_superseded, f)}"
    if f.peak_echoed > thresholds.max_echoed_peak:
        return f"the text that could move repeats removed text in {_share(f.num_echoed, f.peak_echoed, f)}"
    return None


def _lineage(plan: EditPlan, sources: Sequence[ServedSequence]) -> tuple[int, int]:
    """(first token of the kept prefix with moved KV, most tokens that earlier edits took from what is reused)."""
    first, num_removed = plan.num_kept, [0]
    if plan.keep and plan.keep.source is not None:
        kept = sources[plan.keep.source]
        first = min((mark.position for mark in kept.marks if mark.position < first), default=first)
        num_removed.append(kept.num_removed(plan.num_kept))
    ends: dict[int, int] = {}
    for move in plan.moves:
        ends[move.source] = max(ends.get(move.source, 0), move.src_start + move.num_tokens)
    num_removed += [sources[index].num_removed(end) for index, end in ends.items()]
    return first, max(num_removed)


def _peak(mask: Mask) -> int:
    """Most true values in `WINDOW` neighbours."""
    sums = np.concatenate([[0], np.cumsum(mask)])
    width = min(WINDOW, len(mask))
    return int((sums[width:] - sums[: len(sums) - width]).max())


def _share(num_tokens: int, peak: int, f: Features) -> str:
    return f"{num_tokens} of {f.num_moved} tokens, up to {peak} of {WINDOW} neighbours"
