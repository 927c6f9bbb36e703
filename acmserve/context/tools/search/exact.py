"""Exact search over the conversation, hidden text included. It only reads.

The state that it returns differs in the ids of the results it has shown. The conversation stays as it was, so the next
step computes no old token again. What an eviction took out of the conversation is found too, and said to be so.

The search is for the very text. When that is nowhere, letters may differ in case, and the result says so. Results of
context tools (`own_tools`) are not searched, because they would find themselves. A redacted text is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from acmserve.context.edits.find import FoundText, find_all, pieces_by_place, searched_texts, stretches, texts_of
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import outermost
from acmserve.context.session.render import EvictedTexts, splice
from acmserve.context.session.state import MAX_SEARCH_HITS, SearchHit, SessionState
from acmserve.context.transcript.call_arguments import ArgumentPart, part_name
from acmserve.context.transcript.message import Message, Place
from acmserve.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TextMatch:
    """One match to show: its hit, the text around it, and the hidden fragment it stands in, if any.

    `evicted`: the model does not see its message any more. `where` names the argument of a call.
    """

    hit: SearchHit
    excerpt: str
    role: str
    hidden_in: Fragment | None
    score: float | None = None
    evicted: bool = False
    where: str = ""

    def __str__(self) -> str:
        """The match as one entry of a result."""
        score = "" if self.score is None else f", similarity {self.score}"
        inside = self.hidden_in
        hidden = "" if inside is None else f", in {inside.visibility.value} {inside.fragment_id}"
        evicted = ", evicted" if self.evicted else ""
        argument = f", {self.where}" if self.where else ""
        where = f"message {self.hit.place.entry}, {self.role}{argument}{hidden}{evicted}{score}"
        return f"{self.hit.search_id} ({where}): {self.excerpt}"


@dataclass(frozen=True, slots=True)
class Found:
    """The matches shown, out of `num_matches`, and the state that knows their ids.

    An exact search shows them in the order of the conversation, a semantic one the best first.
    """

    state: SessionState
    matches: tuple[TextMatch, ...]
    num_matches: int
    ignored_case: bool = False


def search_exact(
    state: SessionState,
    query: str,
    role: str,
    max_results: int,
    context_size: int,
    own_tools: Collection[str] = (),
) -> Found:
    """Find `query` in the texts of a role, left to right."""
    if not query:
        raise InvalidRequest("query", "is empty.", "Give the text to search for.")
    where = list(searchable_texts(state, role, own_tools))
    spans, num_matches = _find(state, where, query, max_results, _as_it_is)
    ignored_case = num_matches == 0
    if ignored_case:
        spans, num_matches = _find(state, where, query, max_results, _lower)
    found = show(state, [(span, None) for span in spans], context_size)
    return replace(found, num_matches=num_matches, ignored_case=ignored_case and num_matches > 0)


def show(state: SessionState, spans: Sequence[tuple[Piece, float | None]], context_size: int) -> Found:
    """Give each span an id and cut out the text around it."""
    hits = []
    for span, _ in spans:
        search_id, state = state.new_id("s")
        hits.append(SearchHit(search_id, span.place, span.start, span.end))
    state = replace(state, hits=(*state.hits, *hits)[-MAX_SEARCH_HITS:])
    matches = look_at(state, hits, context_size)
    scored = (replace(match, score=score) for match, (_, score) in zip(matches, spans, strict=True))
    return Found(state, tuple(scored), len(matches))


def look_at(state: SessionState, hits: Sequence[SearchHit], context_size: int) -> list[TextMatch]:
    """Each hit with `context_size` characters of its text on either side, as far as that goes."""
    hiding = outermost(fragment for fragment in state.fragments if fragment.hidden)
    erased = pieces_by_place(state, Visibility.REDACTED)
    matches, evicted = [], EvictedTexts.of(state)
    for hit in hits:
        span = Piece(hit.place, hit.start, hit.end)
        hidden_in = next((f for piece, f in hiding.get(hit.place, ()) if piece.overlaps(span)), None)
        redacted = erased.get(hit.place, ())
        role = str(state.entries[hit.place.entry].message.get("role"))
        excerpt = _excerpt(state.text_at(hit.place), hit, context_size, redacted)
        part, message = hit.place.part, state.entries[hit.place.entry].message
        where = part_name(message, part) if isinstance(part, ArgumentPart) else ""
        matches.append(TextMatch(hit, excerpt, role, hidden_in, evicted=hit.place in evicted, where=where))
    return matches


def _excerpt(text: str, hit: SearchHit, context_size: int, redacted: Sequence[Piece]) -> str:
    start, end = max(0, hit.start - context_size), min(len(text), hit.end + context_size)
    gone = [
        (replace(piece, start=max(piece.start - start, 0), end=piece.end - start), "[redacted]")
        for piece in redacted
        if piece.start < end and start < piece.end
    ]
    before = "..." if start > 0 else ""
    after = "..." if end < len(text) else ""
    return before + splice(text[start:end], gone) + after


def searchable_texts(state: SessionState, role: str, own_tools: Collection[str] = ()) -> Iterator[FoundText]:
    """The texts of a role without the results of these tools."""
    ours = {call_id for entry in state.entries for call_id in _calls_of(own_tools, entry.message)}
    for found in texts_of(state, role, searched_texts):
        call_id = state.entries[found[0]].message.get("tool_call_id") if ours else None
        if not isinstance(call_id, str) or call_id not in ours:
            yield found


def _calls_of(tools: Collection[str], message: Message) -> Sequence[str]:
    """The ids of the calls of these tools in a message, whatever its client wrote there."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(call.get("id"), str):
            name = function.get("name")
            if isinstance(name, str) and name in tools:
                found.append(call["id"])
    return found


def _find(
    state: SessionState, where: Sequence[FoundText], query: str, limit: int, spell: Callable[[str], str]
) -> tuple[list[Piece], int]:
    """The first matches outside of redacted text, and the number of all. `spell` keeps the length of a text."""
    wanted = spell(query)
    redacted = pieces_by_place(state, Visibility.REDACTED)
    spans: list[Piece] = []
    num_found = 0
    for entry, part, original in where:
        text = spell(original)
        if len(spans) == limit and not redacted:
            num_found += text.count(wanted)
        elif wanted in text:
            place = Place(entry, part)
            readable = stretches(len(text), redacted.get(place, ()))
            positions, num = find_all(text, wanted, readable, limit - len(spans))
            spans += [Piece(place, position, position + len(wanted)) for position in positions]
            num_found += num
    return spans, num_found


def _as_it_is(text: str) -> str:
    return text


def _lower(text: str) -> str:
    """Lower case, character for character: one capital grows when it is lowered, and one has two small forms."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")
