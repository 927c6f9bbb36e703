"""Finds an exact text in parts of a long one: the first few positions and the number of all.

    text        ....[hidden].............[hidden].....
    stretches   [==)        [===========)        [===)      a match lies within one stretch. Matches do not overlap

Everything runs in `str.find` and `str.count`, which are linear whatever is searched for. No object is made for a match
that nobody reads, so that one letter in a million is found as fast as a sentence. It knows neither case nor meaning.

Long strings in the arguments of tool calls are texts, too. Arguments of context tools are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from acmserve.context.schema.suite_registry import SUITE_FILES
from acmserve.context.session.fragment import Piece, Visibility
from acmserve.context.session.nesting import outermost
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.call_arguments import (
    MIN_ARGUMENT_CHARS,
    ArgumentPart,
    argument_texts,
    call_name_at,
)
from acmserve.context.transcript.message import FOLDABLE_ROLES, Message, Part, Place, texts

HIDDEN = (Visibility.FOLDED, Visibility.SUMMARIZED, Visibility.REDACTED)
FoundText = tuple[int, Part, str]
"""Entry, part (None where the content is a string) and the text there: a `Place` with its text."""


def searched_texts(message: Message) -> list[tuple[Part, str]]:
    """The texts of a message and of its calls' arguments. Those of context tools would only find themselves."""
    found, arguments = texts(message), argument_texts(message, MIN_ARGUMENT_CHARS)
    if not arguments:
        return found
    own = {tool.name for suite in SUITE_FILES.values() for tool in suite.tools}
    return [*found, *((part, text) for part, text in arguments if call_name_at(message, part.call) not in own)]


def editable_texts(message: Message) -> list[tuple[Part, str]]:
    """Those of them that can be hidden: of arguments the strings in a JSON object."""
    return [found for found in searched_texts(message) if not isinstance(found[0], ArgumentPart) or found[0].path]


def texts_of(
    state: SessionState, role: str, read: Callable[[Message], list[tuple[Part, str]]] = editable_texts
) -> Iterator[FoundText]:
    """The texts of a role, in order. `all` is every role but the instructions (system, developer)."""
    roles = FOLDABLE_ROLES if role == "all" else (role,)
    for index, entry in enumerate(state.entries):
        if entry.message.get("role") in roles:
            for part, text in read(entry.message):
                yield index, part, text


def pieces_by_place(state: SessionState, *kinds: Visibility) -> dict[Place, list[Piece]]:
    """The outermost pieces of the fragments in one of these states, by text, ascending and disjoint."""
    found = outermost(fragment for fragment in state.fragments if fragment.visibility in kinds)
    return {place: [piece for piece, _ in pieces] for place, pieces in found.items()}


def stretches(num_chars: int, without: Iterable[Piece]) -> list[tuple[int, int]]:
    """`[0, num_chars)` without these pieces, which are ascending and disjoint."""
    found, position = [], 0
    for piece in without:
        if position < piece.start:
            found.append((position, piece.start))
        position = piece.end
    if position < num_chars:
        found.append((position, num_chars))
    return found


def find_all(text: str, wanted: str, where: Sequence[tuple[int, int]], limit: int) -> tuple[list[int], int]:
    """The first `limit` positions of `wanted` (not empty) within `where`, and the number of all."""
    positions: list[int] = []
    num_further = 0
    for start, end in where:
        begin = start
        while len(positions) < limit and (position := text.find(wanted, begin, end)) >= 0:
            positions.append(position)
            begin = position + len(wanted)
        if len(positions) == limit:
            num_further += text.count(wanted, begin, end)
    return positions, len(positions) + num_further
