"""The edits that `acmserve bench edit --kinds` and `--sweep` measure, as prompts. Pure.

    context      [ P ][     F     ][            S            ]      read first, not timed
    append       [ P ][     F     ][            S            ][m N]
    fold         [ P ][m][            S            ][N]             F is folded, m is its marker
    deletion     [ P ][            S            ][N]
    holes        [ P ][m][ S1 ][m][ S2 ] ... [N]                    F and S cut out of [F S] in turns, 2 or 10 times
    head         [    what follows the first F tokens    ][N]       the oldest text goes
    restore      [ P ][m][ S ][n]  then  [ P ][ F ][ S ][n][N]      a fold is taken back
    insertion    [ P ][m][     F     ][            S            ][N]
    moved        [ P ][ S2 ][     F     ][ S1 ][N]                  a paragraph goes to the front
    edit again   [ P ][m][ S ]  then  [ P1 ][m][ P3 ][m][ S ][N]    a second edit in front of the first
    replaced     [ P ][x][     F but one     ][ S ][N]              one token becomes another

All kinds of one shape read the same context, so it is prefilled once; every kind has markers and messages of its own,
so that none finds in the cache what another one left there. `num_front` tokens of an edited prompt stand in front of
the edit, `num_behind` are old text behind it, which could be reused; the rest is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]
POSITIONS = ("front", "middle", "back")
_FRONT_SEVENTHS = {"front": 1, "middle": 3.5, "back": 6}
_FOLDED_SHARE = 4 / 11
_MAX_HOLES = 10
# A shorter piece is not worth a step of its own: DEFAULT_MIN_MOVE_TOKENS of acmserve/plan/planner.py.
MIN_PIECE = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """A context of `num_context` tokens, and how much of it stands in front of what is edited.

    A third of it (4/11, as in the default table) is folded. Of the rest a seventh stands in front of an edit in
    front, half in front of one in the middle, six sevenths in front of one at the back.
    """

    num_context: int = 5500
    position: str = "front"
    marker: int = 20
    new: int = 30

    @property
    def folded(self) -> int:
        return round(self.num_context * _FOLDED_SHARE)

    @property
    def prefix(self) -> int:
        return round((self.num_context - self.folded) * _FRONT_SEVENTHS[self.position] / 7)

    @property
    def edited(self) -> int:
        """New tokens of an edit at most: its markers, and two messages."""
        return _MAX_HOLES * self.marker + 2 * self.new

    @property
    def fresh(self) -> int:
        """New tokens of one kind at most: those of its edit, and of the append that has to compute as many.

        An edit also computes old text that lies in pieces too short to be moved.
        """
        return 2 * self.edited + _MAX_HOLES * MIN_PIECE


@dataclass(frozen=True, slots=True)
class KindPieces:
    """A context, cut at the edit, and tokens that stand nowhere in it."""

    prefix: Tokens
    folded: Tokens
    suffix: Tokens
    markers: tuple[Tokens, ...]
    messages: tuple[Tokens, Tokens]

    @property
    def context(self) -> Tokens:
        return self.prefix + self.folded + self.suffix


@dataclass(frozen=True, slots=True)
class KindEdit:
    """`turns` are read first; `prompt` is timed; `append` continues it by as many new tokens as it has itself."""

    kind: str
    turns: tuple[Tokens, ...]
    prompt: Tokens
    num_front: int
    num_behind: int
    append: Tokens = ()

    @property
    def num_new(self) -> int:
        return len(self.prompt) - self.num_front - self.num_behind


def _append(text: KindPieces) -> KindEdit:
    new = text.markers[0] + text.messages[0]
    return KindEdit("", (text.context,), text.context + new, len(text.context), 0)


def _fold(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.markers[0] + text.suffix + text.messages[0]
    return KindEdit("", (text.context,), prompt, len(text.prefix), _worth(text.suffix))


def _deletion(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.suffix + text.messages[0]
    return KindEdit("", (text.context,), prompt, len(text.prefix), _worth(text.suffix))


def _holes(num_holes: int) -> Callable[[KindPieces], KindEdit]:
    def make(text: KindPieces) -> KindEdit:
        zone, num_kept = text.folded + text.suffix, len(text.suffix)
        prompt, behind = text.prefix, 0
        for number in range(num_holes):
            start = len(text.folded) * (number + 1) // num_holes + num_kept * number // num_holes
            end = len(text.folded) * (number + 1) // num_holes + num_kept * (number + 1) // num_holes
            prompt += text.markers[number] + zone[start:end]
            behind += _worth(zone[start:end])
        return KindEdit("", (text.context,), prompt + text.messages[0], len(text.prefix), behind)

    return make


def _head(text: KindPieces) -> KindEdit:
    left = text.context[len(text.folded) :]
    return KindEdit("", (text.context,), left + text.messages[0], 0, _worth(left))


def _restore(text: KindPieces) -> KindEdit:
    folded = text.prefix + text.markers[0] + text.suffix + text.messages[0]
    behind = _worth(text.folded + text.suffix) + _worth(text.messages[0])
    prompt = text.context + text.messages[0] + text.messages[1]
    return KindEdit("", (text.context, folded), prompt, len(text.prefix), behind)


def _insertion(text: KindPieces) -> KindEdit:
    prompt = text.prefix + text.markers[0] + text.folded + text.suffix + text.messages[0]
    return KindEdit("", (text.context,), prompt, len(text.prefix), _worth(text.folded + text.suffix))


def _moved(text: KindPieces) -> KindEdit:
    first, second = text.suffix[: len(text.suffix) // 2], text.suffix[len(text.suffix) // 2 :]
    prompt = text.prefix + second + text.folded + first + text.messages[0]
    return KindEdit("", (text.context,), prompt, len(text.prefix), _worth(second) + _worth(text.folded + first))


def _again(text: KindPieces) -> KindEdit:
    third = len(text.prefix) // 3
    first, last = text.prefix[:third], text.prefix[2 * third :]
    tail = text.markers[0] + text.suffix
    prompt = first + text.markers[1] + last + tail + text.messages[0]
    return KindEdit("", (text.context, text.prefix + tail), prompt, third, _worth(last + tail))


def _replaced(text: KindPieces) -> KindEdit:
    other = next(token for token in text.markers[0] if token != text.folded[0])
    rest = text.folded[1:] + text.suffix
    return KindEdit(
        "", (text.context,), (*text.prefix, other, *rest, *text.messages[0]), len(text.prefix), _worth(rest)
    )


KINDS: dict[str, Callable[[KindPieces], KindEdit]] = {
    "append": _append,
    "fold": _fold,
    "deletion": _deletion,
    "two-holes": _holes(2),
    "ten-holes": _holes(10),
    "head-eviction": _head,
    "restore": _restore,
    "insertion": _insertion,
    "moved-paragraph": _moved,
    "edit-of-an-edit": _again,
    "replaced-token": _replaced,
}
# These have no other place: a sweep measures them at one position only.
WITHOUT_POSITION = ("append", "head-eviction")


def plan_edits(text: Sequence[int], number: int, shape: Shape, kinds: Sequence[str]) -> tuple[KindEdit, ...]:
    """One edit of each kind out of `text`, read as a ring that begins at another token for each `number`.

    Raises ValueError when the text is shorter than what is needed: tokens would repeat.
    """
    needed = shape.num_context + len(KINDS) * shape.fresh
    if len(text) < needed:
        raise ValueError(f"the text has {len(text)} tokens, {shape.num_context} of context need {needed}")
    start = number * needed % len(text)
    ring = (tuple(text[start:]) + tuple(text[:start]))[:needed]
    context, fresh = ring[: shape.num_context], ring[shape.num_context :]
    offsets = {kind: index * shape.fresh for index, kind in enumerate(KINDS)}
    return tuple(_plan(context, fresh[offsets[kind] :][: shape.fresh], shape, kind) for kind in kinds)


def _plan(context: Tokens, fresh: Tokens, shape: Shape, kind: str) -> KindEdit:
    end = shape.prefix + shape.folded
    num_marked = _MAX_HOLES * shape.marker
    text = KindPieces(
        prefix=context[: shape.prefix],
        folded=context[shape.prefix : end],
        suffix=context[end:],
        markers=tuple(fresh[start : start + shape.marker] for start in range(0, num_marked, shape.marker)),
        messages=(fresh[num_marked:][: shape.new], fresh[num_marked + shape.new :][: shape.new]),
    )
    edit = KINDS[kind](text)
    append = edit.prompt + fresh[shape.edited :][: edit.num_new]
    return KindEdit(kind, edit.turns, edit.prompt, edit.num_front, edit.num_behind, append)


def _worth(piece: Tokens) -> int:
    """Tokens of a piece that could be reused; none where it is too short to be moved."""
    return len(piece) if len(piece) >= MIN_PIECE else 0
