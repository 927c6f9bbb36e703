"""The words of tool results. Short, since every one is appended to the conversation; exact about ids and tokens.

Like the markers they are part of the cached prefix: the same call on the same state reads the same, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.edits.cost import EditCost
from acmserve.context.edits.fragments import Cut
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.state import SearchHit, SessionState
from acmserve.context.tools.search import Found, TextMatch, look_at
from acmserve.errors import InvalidRequest

_PREVIEW_CHARS = 40
_QUOTE_CHARS = 80


def refused(error: InvalidRequest) -> str:
    """A wrong call: what was wrong, and what to do instead."""
    return f"Error: {error}"


def cut(made: Cut, costs: Sequence[EditCost], num_asked: int) -> str:
    """The new fragments, one a line."""
    fewer = f" ({num_asked} were asked for, the text has no more to cut)" if len(made.fragments) < num_asked else ""
    first = f" The start marker occurs {made.num_candidates:,} times; the first was taken." * (made.num_candidates > 1)
    lines = [f"Made {_number(len(made.fragments), 'fragment')}{fewer}, nothing is hidden yet.{first}"]
    for fragment, cost in zip(made.fragments, costs, strict=True):
        start, end = _ends(made.state, fragment)
        lines.append(
            f'{fragment.fragment_id}: {fragment.num_tokens:,} tokens, from "{start}" to "{end}"; folding it now {cost}.'
        )
    lines.append("Text that follows it makes a fold dearer: fold early, and several at once.")
    return "\n".join(lines)


def hidden(fragment: Fragment, num_shown: int, cost: EditCost) -> str:
    """A fold or a summary."""
    saved = fragment.num_tokens - num_shown
    return (
        f"{fragment.fragment_id} is {fragment.visibility.value}, {saved:,} tokens fewer. The next step {cost}; "
        "folds of text behind it, asked for now, add nothing to that."
    )


def restored(fragment: Fragment, cost: EditCost) -> str:
    """One fragment shown again."""
    return f"{fragment.fragment_id} is visible again: {fragment.num_tokens:,} tokens. The next step {cost} at most."


def restored_all(gone: Sequence[Fragment], hidden_ids: Sequence[str]) -> str:
    """Everything shown again."""
    if not gone:
        return "There are no fragments; nothing was hidden."
    shown = f"{', '.join(hidden_ids)} visible again" if hidden_ids else "nothing was hidden"
    return f"Forgot {_number(len(gone), 'fragment')}, the old ids are void; {shown}."


def found(result: Found, query: str, role: str) -> str:
    """The matches of a search."""
    if not result.matches:
        elsewhere = "" if role == "all" else ", or role 'all'"
        return f"No match for {_quote(query)} in messages of role '{role}'. Try fewer or other words{elsewhere}."
    total = result.num_matches
    listed = (
        f"{_number(total, 'match', 'matches')}"
        if total == len(result.matches)
        else f"The first {len(result.matches)} of {total:,} matches"
    )
    case = ", upper and lower case ignored" if result.ignored_case else ""
    return "\n".join([f"{listed} for {_quote(query)}{case}:", *(_match(match) for match in result.matches)])


def detail(state: SessionState, hit: SearchHit, context_size: int) -> str:
    """More of the text around one match."""
    [match] = look_at(state, [hit], context_size)
    return _match(match)


def _match(match: TextMatch) -> str:
    score = "" if match.score is None else f", similarity {match.score}"
    inside = match.hidden_in
    hidden = "" if inside is None else f", in {inside.visibility.value} {inside.fragment_id}"
    evicted = ", evicted" if match.evicted else ""
    hit = match.hit
    return f"{hit.search_id} (message {hit.place.entry}, {match.role}{hidden}{evicted}{score}): {match.excerpt}"


def _ends(state: SessionState, fragment: Fragment) -> tuple[str, str]:
    first, last = state.piece_text(fragment.pieces[0]), state.piece_text(fragment.pieces[-1])
    return " ".join(first.lstrip()[:_PREVIEW_CHARS].split()), " ".join(last.rstrip()[-_PREVIEW_CHARS:].split())


def _quote(text: str) -> str:
    return repr(text if len(text) <= _QUOTE_CHARS else text[: _QUOTE_CHARS - 3] + "...")


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
