"""The edit plan: a new prompt cut into what is kept, what is moved, and what must be computed.

Pure: tokens and sources in, a frozen plan out. It knows nothing of blocks being cached or free. The engine carries out
what it can and computes the rest. Decision: the prefix comes from the one source with the longest common prefix, and on
a tie from the one with the most exact tokens. A kept prefix is free and bit-exact in its lineage. Only the text behind
it is searched for moves, so that an ordinary append costs a comparison and no search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acmserve.plan.match import TokenMatch, common_prefix, find_matches
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.removed import find_removed
from acmserve.plan.rules.media import text_moves
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import ServedSequence, Tokens

DEFAULT_MIN_MOVE_TOKENS = 32
# Each move takes a step of the scheduler of its own. A prompt that was changed everywhere is computed sooner.
MAX_MOVES = 256


def plan_edit(
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    *,
    allow_moves: bool,
    num_cached: int = 0,
    min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS,
    max_rotations: int = MAX_ROTATIONS,
    media_shift_positions: bool = False,
) -> EditPlan:
    """Plan `prompt` (int32 [n], n >= 1) against what the session served before.

    `num_cached` is the length of the prefix that the engine's cache holds exactly, whoever computed it. Without
    `allow_moves` (fidelity `exact`) only KV without lineage is kept and nothing is moved. Segments shorter than
    `min_move_tokens` are computed: carrying them out costs a step of its own. Tokens that were moved `max_rotations`
    times are computed anew, and so is appended text that quotes the conversation. Media are never moved, and text
    behind them by `media.text_moves`. Of more than `MAX_MOVES` matches the
    longest are moved. `sources` are the newest first.
    """
    limit = len(prompt) - 1
    keep = _choose_prefix(prompt[:limit], sources, allow_moves, min(num_cached, limit))
    latest = _latest(sources)
    if not allow_moves or not _is_edited(len(prompt), keep, sources, latest, min_move_tokens):
        return EditPlan(len(prompt), keep)
    start = keep.num_tokens if keep else 0
    matches = find_matches(prompt, [source.tokens for source in sources], start, limit, min_move_tokens)
    found = [Move(m.dst_start, m.src_start, m.num_tokens, m.source) for m in _longest(matches)]
    kept = _without_quotes(found, latest, common_prefix(prompt[:start], sources[latest].tokens))
    whole = [piece for move in kept for piece in _unworn(move, sources[move.source], min_move_tokens, max_rotations)]
    text = text_moves(whole, prompt, sources, min_move_tokens, media_shift_positions=media_shift_positions)
    moves = text.moves
    num_left = max(0, len(matches) - MAX_MOVES)
    removed = find_removed(prompt, sources, moves)
    return EditPlan(len(prompt), keep, moves, removed, num_left, text.num_media, text.num_shifted)


def needs_search(
    prompt: Tokens, sources: Sequence[ServedSequence], *, num_cached: int = 0, min_move_tokens: int
) -> bool:
    """Whether `plan_edit` searches `prompt` for moves, if they are allowed. An append is not searched."""
    limit = len(prompt) - 1
    keep = _choose_prefix(prompt[:limit], sources, True, min(num_cached, limit))
    return _is_edited(len(prompt), keep, sources, _latest(sources), min_move_tokens)


def _is_edited(
    num_tokens: int, keep: Keep | None, sources: Sequence[ServedSequence], latest: int, min_move_tokens: int
) -> bool:
    """Whether the prompt is more than an append: it leaves out what the conversation was served last."""
    start = keep.num_tokens if keep else 0
    if not sources or num_tokens - 1 - start < min_move_tokens:
        return False
    return start < sources[latest].num_tokens - min_move_tokens


def _longest(matches: Sequence[TokenMatch]) -> Sequence[TokenMatch]:
    """The matches that are worth most where there are more than `MAX_MOVES`, in their order."""
    if len(matches) <= MAX_MOVES:
        return matches
    longest = sorted(matches, key=lambda match: -match.num_tokens)[:MAX_MOVES]
    return sorted(longest, key=lambda match: match.dst_start)


def _latest(sources: Sequence[ServedSequence]) -> int:
    """Index of the newest source that no other one continues: the conversation as it was served last."""
    for index, source in enumerate(sources):
        others = (other for other in sources if other is not source and other.num_tokens > source.num_tokens)
        if all(common_prefix(source.tokens, other.tokens) < source.num_tokens for other in others):
            return index
    return 0


def _without_quotes(moves: list[Move], latest: int, num_in_place: int) -> list[Move]:
    """The moves, less those that only serve text appended to the conversation, which quotes old text.

    source   [P ....][F ......][S ...............]        `num_in_place` tokens of it are where they were: P
    prompt   [P ....][M][S ...............][new: "as you said, P and S"]
                         moved             |  computed: the text is still there, so this is another one

    Behind the move that reaches furthest into the conversation as it was served last, a move stands only for a
    paragraph that went there. A quote would bring KV out of a context that it has nothing to do with.
    """
    reached = [(m.src_start + m.num_tokens, index) for index, m in enumerate(moves) if m.source == latest]
    if not reached:
        return moves
    num_sure = max(reached)[1] + 1
    kept = moves[:num_sure]
    taken = [(0, num_in_place), *((m.src_start, m.src_start + m.num_tokens) for m in kept if m.source == latest)]
    for move in moves[num_sure:]:
        start, end = move.src_start, move.src_start + move.num_tokens
        if move.source == latest and all(end <= first or last <= start for first, last in taken):
            kept.append(move)
            taken.append((start, end))
    return kept


def _unworn(move: Move, source: ServedSequence, min_tokens: int, max_rotations: int) -> Iterator[Move]:
    """What remains of a move without the tokens that were turned `max_rotations` times, here 8.

    source   |......|8 8 8 8 8 8|......|2 2 2|.....|       times turned
    moved    |-----)            [------------------)       the piece between is computed
    """
    start, end = move.src_start, move.src_start + move.num_tokens
    worn = [m for m in source.marks_over(start, end) if m.num_rotations >= max_rotations and start != move.dst_start]
    cuts = sorted((max(m.position, start), min(m.position + m.num_tokens, end)) for m in worn)
    for first, behind in [*((a, b) for a, b in cuts if a < b), (end, end)]:
        if first - start >= min_tokens:
            yield Move(move.dst_start + start - move.src_start, start, first - start, move.source)
        start = max(start, behind)


def _choose_prefix(
    prompt: Tokens, sources: Sequence[ServedSequence], any_lineage: bool, num_cached: int
) -> Keep | None:
    best = Keep(num_cached, None)
    best_exact = num_cached
    for index, source in enumerate(sources):
        num_tokens = common_prefix(prompt, source.tokens)
        num_exact = min(num_tokens, source.num_exact_tokens)
        if not any_lineage:
            num_tokens = num_exact
        if (num_tokens, num_exact) > (best.num_tokens, best_exact):
            best, best_exact = Keep(num_tokens, index), num_exact
    return best if best.num_tokens else None
