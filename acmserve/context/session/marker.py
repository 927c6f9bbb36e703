"""What stands in the place of a hidden text. Short, stable, and it says the id, the size and the way back.

The wording is part of the cached prefix: a changed byte here recomputes every conversation that has a fold.
"""

from __future__ import annotations

from collections.abc import Sequence

RESTORE_TOOLS = {
    "sculptor": ("restore_fragment", "restore_fragment"),
    "sculptor-v1": ("expand_fragment", "revert_summary"),
}


def folded(fragment_id: str, num_tokens: int, num_pieces: int, suite: str) -> tuple[str, ...]:
    """The marker of a folded fragment, and a short one for every further message that it spans."""
    tool = RESTORE_TOOLS[suite][0]
    first = f'[folded {fragment_id}: {num_tokens:,} tokens hidden; {tool}("{fragment_id}") to read]'
    return (first, *_rest(fragment_id, num_pieces))


def summarized(
    fragment_id: str, num_tokens: int, num_pieces: int, suite: str, focus: str, summary: str
) -> tuple[str, ...]:
    """The summary behind its marker, and a short marker for every further message of the fragment."""
    tool = RESTORE_TOOLS[suite][1]
    first = (
        f'[summary of {fragment_id}, focus "{focus}": {num_tokens:,} tokens hidden; '
        f'{tool}("{fragment_id}") to read]\n{summary}'
    )
    return (first, *_rest(fragment_id, num_pieces))


def redacted(fragment_id: str, num_tokens: int, num_pieces: int) -> tuple[str, ...]:
    """The marker of a text that is gone for good."""
    return (f"[redacted {fragment_id}: {num_tokens:,} tokens removed]", *_rest(fragment_id, num_pieces))


def _rest(fragment_id: str, num_pieces: int) -> list[str]:
    return [continued(fragment_id)] * (num_pieces - 1)


def continued(fragment_id: str) -> str:
    """What stands for every further piece of a fragment."""
    return f"[{fragment_id} continued]"


def more(fragment_ids: Sequence[str], num_tokens: int) -> str:
    """What follows the marker of a fold for the folds right behind it. Nothing where those have markers elsewhere."""
    if not fragment_ids:
        return ""
    which = fragment_ids[0] if len(fragment_ids) == 1 else f"{len(fragment_ids)} more up to {fragment_ids[-1]}"
    return f"[and {which}: {num_tokens:,} tokens]"
