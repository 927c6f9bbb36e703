"""What a model reads when it searches: exact, in another case, in hidden text, in its own results, by meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_between, cut_messages
from acmserve.context.edits.find import find_all, stretches
from acmserve.context.session.fragment import Piece
from acmserve.context.session.history import append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import MAX_SEARCH_HITS
from acmserve.context.tools.run import EmbeddingsWanted
from acmserve.context.tools.search.exact import search_exact
from acmserve.context.tools.search.semantic import PASSAGE_CHARS, passages
from acmserve.context.transcript.message import Place
from tests.support.context.conversation import WORDS, assistant, call, done, lines, refusal, state_of, user


def test_matches_are_listed_in_order_with_their_surroundings() -> None:
    state = state_of(user("x" * 60 + "needle" + "y" * 60), assistant("needle"), user("a needle"))
    outcome = call(state, "search_context", query="needle", context_size=50)
    assert outcome.result == (
        "2 matches for 'needle':\n"
        f"s9e375 (message 0, user): ...{'x' * 50}needle{'y' * 50}...\n"
        "s3c6ea (message 2, user): a needle"
    )
    assert not outcome.changed
    assert render(outcome.state) == render(state)
    assert call(state, "search_context", query="needle", role="all").result.startswith("3 matches for 'needle':\n")


def test_more_matches_than_asked_for_are_counted() -> None:
    outcome = call(state_of(user("na " * 1200)), "search_context", query="na", max_results=2)
    assert outcome.result.startswith("The first 2 of 1,200 matches for 'na':\ns9e375 ")
    assert len(outcome.state.hits) == 2


def test_no_match_says_what_to_try() -> None:
    state = state_of(user("hay"))
    assert call(state, "search_context", query="needle").result == (
        "No match for 'needle' in messages of role 'user'. Try fewer or other words, or role 'all'."
    )
    nowhere = call(state, "search_context", query="needle", role="all")
    assert nowhere.result.endswith("Try fewer or other words.")
    assert nowhere.error is None


def test_an_empty_query_is_refused() -> None:
    state = state_of(user("hay"))
    for suite, mode in (("sculptor", {}), ("sculptor-v1", {"mode": "semantic"})):
        outcome = call(state, "search_context", suite=suite, query="", **mode)
        assert refusal(state, outcome) == "Error: query: is empty. Give the text to search for."


def test_case_counts_until_nothing_is_found() -> None:
    state = state_of(user("Needle and needle"))
    assert call(state, "search_context", query="needle").result.startswith("1 match for 'needle':")
    assert call(state, "search_context", query="NEEDLE").result == (
        "2 matches for 'NEEDLE', upper and lower case ignored:\n"
        "s9e375 (message 0, user): Needle and needle\n"
        "s3c6ea (message 0, user): Needle and needle"
    )


@pytest.mark.parametrize(
    ("text", "query", "span"),
    [
        ("\u0130stanbul", "ISTANBUL", (0, 8)),
        ("\u0130\u0130\u0130 Needle", "needle", (4, 10)),
        ("\u03bf\u03b4\u03bf\u03c2", "\u039f\u0394\u039f\u03a3", (0, 4)),
        ("\u03a3\u039f\u03a6\u039f\u03a3 \u03a3", "\u03c3\u03bf\u03c6\u03bf\u03c3", (0, 5)),
        ("\u0418\u0413\u041b\u0410", "\u0438\u0433\u043b\u0430", (0, 4)),
    ],
)
def test_letters_that_change_length_or_form_do_not_shift_the_match(
    text: str, query: str, span: tuple[int, int]
) -> None:
    [match] = search_exact(state_of(user(text)), query, "user", 10, 50).matches
    assert (match.hit.start, match.hit.end) == span


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_found_in_the_other_case_where_it_stands(before: str, text: str) -> None:
    """Up to characters that have no one-to-one partner in the other case."""
    text = "".join(c for c in text if c.swapcase().swapcase() == c and len(c.swapcase()) == 1) + "q"
    found = search_exact(state_of(user(before + text)), text.swapcase(), "user", 50, 50)
    assert any(match.hit.start <= len(before) and match.hit.end <= len(before + text) for match in found.matches)


def test_folded_text_is_found_and_said_to_be_folded() -> None:
    state = cut_messages(state_of(user(lines(20)), user("line 7 again")), 0, 1, WORDS).state
    visible = call(state, "search_context", query="line 7")
    assert "(message 0, user):" in visible.result
    folded = call(edits.fold(state, "f9e375", "sculptor", WORDS), "search_context", query="line 7", context_size=50)
    first, second = [line for line in folded.result.splitlines() if line.startswith("s")]
    assert first.startswith("s3c6ea (message 0, user, in folded f9e375): ...")
    assert second == "sdaa5f (message 1, user): line 7 again"
    detail = call(folded.state, "get_search_detail", search_id="s3c6ea", extended_context=100)
    assert detail.result.startswith("s3c6ea (message 0, user, in folded f9e375): ...")
    assert detail.state is folded.state


def test_details_reach_further_than_the_search() -> None:
    state = state_of(user("x" * 300 + "needle" + "y" * 3000))
    found = call(state, "search_context", query="needle", context_size=50)
    detail = call(found.state, "get_search_detail", search_id="s9e375", extended_context=1000)
    assert detail.result == f"s9e375 (message 0, user): {'x' * 300}needle{'y' * 1000}..."


def test_results_of_our_own_tools_are_not_found() -> None:
    calls = [
        {"id": "ours", "type": "function", "function": {"name": "search_context", "arguments": "{}"}},
        {"id": "theirs", "type": "function", "function": {"name": "grep", "arguments": "{}"}},
    ]
    state = append_internal(
        state_of(user("the needle")),
        [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "ours", "content": "1 match for needle"},
            {"role": "tool", "tool_call_id": "theirs", "content": "grep: needle"},
        ],
    )
    found = call(state, "search_context", query="needle", role="all")
    assert found.result == (
        "2 matches for 'needle':\ns9e375 (message 0, user): the needle\ns3c6ea (message 3, tool): grep: needle"
    )


def test_redacted_text_is_neither_found_nor_shown_and_a_clients_nul_is_text() -> None:
    state = state_of(user(f"needle\x00one {lines(9)}needle two"))
    state = cut_between(state, "line 0", "line 8", 1, "user", WORDS).state
    known = call(state, "search_context", query="line 4")
    state = edits.redact(known.state, "f9e375")
    assert state.hits == ()
    assert call(state, "search_context", query="line 4").result.startswith("No match")
    nul = call(state, "search_context", query="\x00", context_size=50)
    assert nul.result.startswith("1 match for '\\x00':\n")
    assert "needle\x00one [redacted]..." in nul.result
    both = call(state, "search_context", query="needle", context_size=1000)
    assert both.result.startswith("2 matches")
    assert both.result.count("[redacted]") == 2
    assert "needle\x00one [redacted] word word word word word word word end\nneedle two" in both.result


def test_the_oldest_results_are_forgotten() -> None:
    state = state_of(user("a" * (MAX_SEARCH_HITS + 100)))
    for _ in range(MAX_SEARCH_HITS // 50 + 1):
        state = done(call(state, "search_context", query="a", max_results=50))
    assert len(state.hits) == MAX_SEARCH_HITS
    assert "there is no search result 's9e375'" in refusal(state, call(state, "get_search_detail", search_id="s9e375"))


@given(
    st.text(alphabet="ab", max_size=60),
    st.text(alphabet="ab", min_size=1, max_size=3),
    st.lists(st.integers(0, 60), max_size=8, unique=True),
    st.integers(0, 5),
)
def test_find_all_is_a_search_in_each_stretch(text: str, wanted: str, edges: list[int], limit: int) -> None:
    edges = sorted(min(edge, len(text)) for edge in edges)
    without = [Piece(Place(0), start, end) for start, end in zip(edges[::2], edges[1::2], strict=False) if start < end]
    where = stretches(len(text), without)
    covered = {i for piece in without for i in range(piece.start, piece.end)}
    assert sorted(i for start, end in where for i in range(start, end)) == sorted(set(range(len(text))) - covered)
    expected = []
    for start, end in where:
        position = start
        while position + len(wanted) <= end:
            if text.startswith(wanted, position):
                expected.append(position)
                position += len(wanted)
            else:
                position += 1
    assert find_all(text, wanted, where, limit) == (expected[:limit], len(expected))


def semantic(texts: tuple[str, ...]) -> list[list[float]]:
    """Vectors of a toy embedder: is it about cats, is it about trains."""
    return [[float("cat" in text or "feline" in text), float("train" in text), 0.1] for text in texts]


def test_semantic_search_asks_for_vectors_and_ranks_by_cosine() -> None:
    state = state_of(user("a train is late"), user("the cat sleeps by the train"), user("my cat"), user("nothing"))
    arguments: dict[str, Any] = {"query": "feline", "mode": "semantic", "similarity_threshold": 0.5}
    first = call(state, "search_context", suite="sculptor-v1", **arguments)
    assert first.state is state
    assert isinstance(first.needs, EmbeddingsWanted)
    assert first.needs.texts == ("feline", "a train is late", "the cat sleeps by the train", "my cat", "nothing")
    vectors = semantic(first.needs.texts)
    second = call(state, "search_context", suite="sculptor-v1", supplied=vectors, **arguments)
    assert second.result == (
        "2 matches for 'feline':\n"
        "s9e375 (message 2, user, similarity 1.0): my cat\n"
        "s3c6ea (message 1, user, similarity 0.709): the cat sleeps by the train"
    )
    best = call(state, "search_context", suite="sculptor-v1", supplied=vectors, max_results=1, **arguments)
    assert len(best.state.hits) == 1


@pytest.mark.parametrize("vectors", [[], [[1.0]], [[1.0], [1.0, 2.0]], [["a"], ["b"]], [1.0, 2.0], [[[1.0]], [[1.0]]]])
def test_vectors_that_do_not_fit_are_refused(vectors: object) -> None:
    state = state_of(user("one passage"))
    outcome = call(state, "search_context", suite="sculptor-v1", query="x", mode="semantic", supplied=vectors)
    assert refusal(state, outcome).startswith("Error: mode: the embedder")


def test_vectors_without_direction_match_nothing() -> None:
    state = state_of(user("one passage"))
    for vectors in ([[0.0], [0.0]], [[float("nan")], [1.0]]):
        outcome = call(state, "search_context", suite="sculptor-v1", query="x", mode="semantic", supplied=vectors)
        assert outcome.result.startswith("No match")


@given(st.lists(st.text(alphabet="a\n \x00", max_size=1500), min_size=1, max_size=3))
def test_passages_are_short_and_cover_every_word(texts: list[str]) -> None:
    found = passages(state_of(*map(user, texts)), "user")
    assert all(0 < len(passage.text) <= PASSAGE_CHARS for passage in found)
    assert all(
        passage.text == texts[passage.piece.place.entry][passage.piece.start : passage.piece.end] for passage in found
    )
    covered = [np.zeros(len(text), bool) for text in texts]
    for passage in found:
        covered[passage.piece.place.entry][passage.piece.start : passage.piece.end] = True
    assert all(cover[i] for text, cover in zip(texts, covered, strict=True) for i, c in enumerate(text) if c == "a")


def test_passages_end_with_a_line_and_skip_what_was_redacted() -> None:
    state = state_of(user(lines(100)))
    assert all(passage.text.endswith("\n") for passage in passages(state, "user"))
    state = edits.redact(cut_between(state, "line 10", "line 90", 1, "user", WORDS).state, "f9e375")
    left = "".join(passage.text for passage in passages(state, "user"))
    assert "\x00" not in left
    assert "line 9 " in left
    assert "line 91 " in left


def test_a_conversation_can_be_too_long_to_search_by_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acmserve.context.tools.search.semantic.MAX_PASSAGES", 3)
    state = state_of(user(lines(100)))
    outcome = call(state, "search_context", suite="sculptor-v1", query="x", mode="semantic")
    assert "Error: mode: semantic search reads at most 3 passages, there are 9. Search with" in refusal(state, outcome)
