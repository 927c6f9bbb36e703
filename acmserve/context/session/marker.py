"""What stands in the place of a hidden text. Short, stable, and it says the id, the size and the way back.

The wording is that of the suite (`context/suites/`), and part of the cached prefix: a changed byte recomputes every
conversation that has a fold. A redaction is no tool of a model, so its marker is the same in every suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acmserve.context.schema.suite_file import MORE
from acmserve.context.schema.suite_registry import editing_suites, find_suite_file
from acmserve.errors import NotFound


def folded(fragment_id: str, num_tokens: int, num_pieces: int, suite: str) -> tuple[str, ...]:
    """The marker of a folded fragment, and a short one for every further message that it spans."""
    markers = _markers(suite)
    first = markers["folded"].format(id=fragment_id, tokens=f"{num_tokens:,}")
    return (first, *_rest(markers["continued"], fragment_id, num_pieces))


def summarized(
    fragment_id: str, num_tokens: int, num_pieces: int, suite: str, focus: str, summary: str
) -> tuple[str, ...]:
    """The summary behind its marker, and a short marker for every further message of the fragment."""
    markers = _markers(suite)
    first = markers["summarized"].format(id=fragment_id, tokens=f"{num_tokens:,}", focus=focus, summary=summary)
    return (first, *_rest(markers["continued"], fragment_id, num_pieces))


def redacted(fragment_id: str, num_tokens: int, num_pieces: int) -> tuple[str, ...]:
    """The marker of a text that is gone for good."""
    first = f"[redacted {fragment_id}: {num_tokens:,} tokens removed]"
    return (first, *[continued(fragment_id)] * (num_pieces - 1))


def continued(fragment_id: str) -> str:
    """What stands for a further piece of a fragment whose suite nobody remembers."""
    return f"[{fragment_id} continued]"


def more_template(suite: str) -> str:
    """The words of a suite for `more`, "" where it has none of its own."""
    return _markers(suite).get(MORE, "")


def more(fragment_ids: Sequence[str], num_tokens: int, template: str = "") -> str:
    """What follows the marker of a fold for the folds right behind it. Nothing where those have markers elsewhere."""
    if not fragment_ids:
        return ""
    if template:
        return template.format(count=len(fragment_ids), last=fragment_ids[-1], tokens=f"{num_tokens:,}")
    which = fragment_ids[0] if len(fragment_ids) == 1 else f"{len(fragment_ids)} more up to {fragment_ids[-1]}"
    return f"[and {which}: {num_tokens:,} tokens]"


def _markers(suite: str) -> Mapping[str, str]:
    markers = find_suite_file(suite).markers
    if not markers:
        raise NotFound("suite", f"{suite} hides nothing.", f"Choose {' or '.join(editing_suites())}.")
    return markers


def _rest(template: str, fragment_id: str, num_pieces: int) -> list[str]:
    return [template.format(id=fragment_id)] * (num_pieces - 1)
