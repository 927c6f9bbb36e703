"""The edit plan: a new prompt cut into what is kept, what is moved, and what must be computed.

    prompt  [0 ........ keep) [hole) [move ........) [hole) [move ...) [compute ... num_tokens)
             exact prefix of    |     KV of a source   |                the last token is always here:
             one source         |     turned by delta  |                its logits are asked for
                                computed               computed

Pure: tokens and sources in, a frozen plan out. It knows nothing of blocks being cached or free; the engine carries
out what it can and computes the rest. Decision: the prefix comes from the one source with the longest common prefix
(the one with the most exact tokens on a tie), because a kept prefix is free and bit-exact in its lineage; only the
text behind it is searched for moves, so that an ordinary append costs a comparison and no search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from acmserve.errors import IntegrityError
from acmserve.plan.match import common_prefix, find_matches
from acmserve.plan.removed import Removed, find_removed
from acmserve.plan.source import ServedSequence, Tokens

DEFAULT_MIN_MOVE_TOKENS = 32
# Each move rounds its keys again: after 8, a bf16 key is 3 times as far from the exact one as any cached key is
# (docs/kernels.md has the measurement and the alternative).
MAX_ROTATIONS = 8


@dataclass(frozen=True, slots=True)
class Keep:
    """Prompt tokens `[0, num_tokens)` equal the same tokens of a source, in the same lineage; never empty.

    `source` is None when the engine's own cache holds the prefix exactly and no source is needed to name it.
    """

    num_tokens: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Move:
    """Prompt tokens `[dst_start, +num_tokens)` take the KV of `sources[source][src_start, +num_tokens)`."""

    dst_start: int
    src_start: int
    num_tokens: int
    source: int

    @property
    def dst_end(self) -> int:
        return self.dst_start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Compute:
    """Prompt tokens `[start, +num_tokens)` go through the model."""

    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What to do for a prompt of `num_tokens` tokens. `moves` are sorted, disjoint, and end before the last token.

    `removed` is what the text of the moves had in front of it in its source and has no more.
    """

    num_tokens: int
    keep: Keep | None = None
    moves: tuple[Move, ...] = ()
    removed: tuple[Removed, ...] = ()

    @property
    def num_kept(self) -> int:
        return self.keep.num_tokens if self.keep else 0

    @property
    def num_holes(self) -> int:
        """Computed pieces that stand before a move."""
        pieces = self.pieces()
        return sum(isinstance(piece, Compute) and isinstance(after, Move) for piece, after in pairwise(pieces))

    def pieces(self) -> tuple[Keep | Move | Compute, ...]:
        """The whole prompt, left to right, without gaps or overlap."""
        pieces: list[Keep | Move | Compute] = [self.keep] if self.keep else []
        position = self.num_kept
        for move in self.moves:
            if move.dst_start > position:
                pieces.append(Compute(position, move.dst_start - position))
            pieces.append(move)
            position = move.dst_end
        pieces.append(Compute(position, self.num_tokens - position))
        return tuple(pieces)

    def num_removed_before(self, move: Move, sources: Sequence[ServedSequence]) -> int:
        """Tokens that the KV of `move` had in sight and has no more: since this edit, and since earlier ones."""
        now = sum(r.num_tokens for r in self.removed if r.source == move.source and r.end <= move.src_start)
        return now + sources[move.source].num_removed(move.src_start + move.num_tokens)

    def check(self, prompt: Tokens, sources: Sequence[ServedSequence]) -> None:
        """Raise `IntegrityError` unless the plan is well formed and every reused token equals its source."""
        position = 0
        if self.keep and self.keep.source is not None:
            kept = sources[self.keep.source].tokens[: self.num_kept]
            if common_prefix(prompt, kept) != self.num_kept:
                raise IntegrityError(f"keep of {self.num_kept} tokens differs from source {self.keep.source}")
        position = self.num_kept
        for move in self.moves:
            src = sources[move.source].tokens[move.src_start : move.src_start + move.num_tokens]
            same = common_prefix(prompt[move.dst_start : move.dst_end], src)
            if move.dst_start < position or move.num_tokens <= 0 or same != move.num_tokens:
                raise IntegrityError(f"{move} at position {position}: only {same} tokens equal the source")
            position = move.dst_end
        if position >= self.num_tokens:
            raise IntegrityError(f"plan covers {position} of {self.num_tokens} tokens: the last must be computed")


def plan_edit(
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    *,
    allow_moves: bool,
    num_cached: int = 0,
    min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS,
) -> EditPlan:
    """Plan `prompt` (int32 [n], n >= 1) against what the session served before.

    `num_cached` is the length of the prefix that the engine's cache holds exactly, whoever computed it. Without
    `allow_moves` (fidelity `exact`) only KV without lineage is kept and nothing is moved. Segments shorter than
    `min_move_tokens` are computed: carrying them out costs a step of its own. Tokens that were moved `MAX_ROTATIONS`
    times are computed anew, and so is appended text that quotes the conversation. `sources` are the newest first.
    """
    limit = len(prompt) - 1
    keep = _choose_prefix(prompt[:limit], sources, allow_moves, min(num_cached, limit))
    start = keep.num_tokens if keep else 0
    if not allow_moves or limit - start < min_move_tokens or not sources:
        return EditPlan(len(prompt), keep)
    latest = _latest(sources)
    if start >= sources[latest].num_tokens - min_move_tokens:
        return EditPlan(len(prompt), keep)
    matches = find_matches(prompt, [source.tokens for source in sources], start, limit, min_move_tokens)
    found = [Move(m.dst_start, m.src_start, m.num_tokens, m.source) for m in matches]
    kept = _without_quotes(found, latest, common_prefix(prompt[:start], sources[latest].tokens))
    moves = tuple(piece for move in kept for piece in _unworn(move, sources[move.source], min_move_tokens))
    return EditPlan(len(prompt), keep, moves, find_removed(prompt, sources, moves))


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


def _unworn(move: Move, source: ServedSequence, min_tokens: int) -> Iterator[Move]:
    """What remains of a move without the tokens that were turned `MAX_ROTATIONS` times.

    source   |......|8 8 8 8 8 8|......|2 2 2|.....|       hops
    moved    |-----)            [------------------)       the piece between is computed
    """
    start, end = move.src_start, move.src_start + move.num_tokens
    worn = [m for m in source.marks if m.num_rotations >= MAX_ROTATIONS and move.src_start != move.dst_start]
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
