"""What `acmserve bench scale` measures, as prompts: one edit for each length, place and number of holes. Pure.

    context   [ front ][h][ piece ][h][ piece ] ... [h][ piece ]         read first, not timed
    edit      [ front ][m][ piece ][m][ piece ] ... [m][ piece ][N]      every hole h is removed, m is its marker
    append    the edit's prompt, and as many new tokens as the edit had

Holes have one size and lie at one distance from each other. Behind `front` three eighths of the text is removed, so the
share that could move is the same in each cell. Every round has markers and a message of its own.

Cells that differ in the number of holes have as many new tokens as the one with the most: fewer markers, and a longer
message. Markers stand earlier than the message and attend to less, so many holes have a little less to compute.
Contexts begin alike, and a longer one goes on where a shorter one ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acmserve.bench.edit.kinds import KindEdit, Tokens
from acmserve.errors import AcmError

MARKER_TOKENS = 8
MESSAGE_TOKENS = 30
REMOVED_EIGHTHS = 3


@dataclass(frozen=True, slots=True)
class ScaleCell:
    """`context_tokens` before the edit. `front_share` of them stand in front of the first of `num_holes`."""

    context_tokens: int
    front_share: float = 0.1
    num_holes: int = 1
    message_tokens: int = MESSAGE_TOKENS

    @property
    def num_new(self) -> int:
        """Tokens of an edit that nobody has read: its markers, and the message."""
        return self.num_holes * MARKER_TOKENS + self.message_tokens

    @property
    def is_plain(self) -> bool:
        """Whether it has the markers and the message of one hole, and no more new tokens."""
        return self.num_new == MARKER_TOKENS + MESSAGE_TOKENS

    def __str__(self) -> str:
        holes = "1 hole" if self.num_holes == 1 else f"{self.num_holes} holes"
        new = "" if self.is_plain or self.num_holes > 1 else f", {self.num_new} new tokens"
        return f"{self.context_tokens:,} tokens, {holes} from {100 * self.front_share:.0f} %{new}"


def plan_cells(
    contexts: Sequence[int], front_shares: Sequence[float], numbers_of_holes: Sequence[int], at: int
) -> list[ScaleCell]:
    """Each length with one early hole. At `at` tokens each place with one hole, and each number of early holes.

    The shortest come first. Of the numbers of holes each has the new tokens of the largest.
    """
    cells = [ScaleCell(context) for context in contexts]
    cells += [ScaleCell(at, front_share=share) for share in front_shares]
    most = ScaleCell(at, num_holes=max(numbers_of_holes)).num_new
    cells += [ScaleCell(at, 0.1, number, most - number * MARKER_TOKENS) for number in numbers_of_holes]
    return sorted(dict.fromkeys(cells), key=lambda cell: cell.context_tokens)


def plan_nested(text: Tokens, cells: Sequence[ScaleCell], num_rounds: int) -> dict[ScaleCell, list[KindEdit]]:
    """The edits of all cells, on contexts that begin alike. New tokens of one stand at a place of their own in `text`.

    Raises AcmError where the text is too short, or a context too short for its holes.
    """
    start = max(cell.context_tokens for cell in cells)
    needed = start + sum(2 * num_rounds * cell.num_new for cell in cells)
    if len(text) < needed:
        raise AcmError(f"the text has {len(text):,} tokens, and all cells need {needed:,}; choose shorter contexts")
    planned = {}
    for cell in cells:
        context, size = text[: cell.context_tokens], 2 * cell.num_new
        planned[cell] = [_plan_edit(cell, context, text[start + n * size :][:size]) for n in range(num_rounds)]
        start += num_rounds * size
    return planned


def plan_rounds(text: Tokens, cell: ScaleCell, number: int, num_rounds: int) -> list[KindEdit]:
    """The edits of one repetition: one context, and new tokens of its own for each round.

    `text` is read as a ring that begins elsewhere for each `number`. Raises AcmError where it is too short, or the
    context too short for its holes.
    """
    needed = cell.context_tokens + num_rounds * 2 * cell.num_new
    if len(text) < needed:
        raise AcmError(f"the text has {len(text):,} tokens, and {cell} needs {needed:,}; choose shorter contexts")
    start = number * needed % len(text)
    ring = (text[start:] + text[:start])[:needed]
    context, fresh = ring[: cell.context_tokens], ring[cell.context_tokens :]
    return [
        _plan_edit(cell, context, fresh[2 * cell.num_new * index :][: 2 * cell.num_new]) for index in range(num_rounds)
    ]


def _plan_edit(cell: ScaleCell, context: Tokens, fresh: Tokens) -> KindEdit:
    #     [ front ][ hole ][ piece ][ hole ][ piece + what is left over ]
    #              |<-- stride --->|
    num_front = round(cell.front_share * cell.context_tokens)
    stride = (cell.context_tokens - num_front) // cell.num_holes
    hole = stride * REMOVED_EIGHTHS // 8
    if not hole:
        raise AcmError(f"{cell} leaves holes of no tokens; choose fewer holes, or a longer context")
    starts = [num_front + index * stride for index in range(cell.num_holes)]
    prompt, num_behind = context[:num_front], 0
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else cell.context_tokens
        piece = context[start + hole : end]
        prompt += fresh[index * MARKER_TOKENS :][:MARKER_TOKENS] + piece
        num_behind += len(piece)
    prompt += fresh[cell.num_holes * MARKER_TOKENS :][: cell.message_tokens]
    return KindEdit((context,), prompt, num_front, num_behind, prompt + fresh[cell.num_new :])
