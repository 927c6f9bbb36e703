"""Search by meaning: the conversation as passages, ranked by the cosine of their embeddings to the query's.

The vectors come from an embedder that the server was given. This file cuts and ranks, and is as deterministic as the
vectors are. Passages end at line boundaries where lines are short enough. None spans two messages or a redaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from acmserve.context.edits.find import pieces_by_place, stretches
from acmserve.context.session.fragment import Piece, Visibility
from acmserve.context.session.state import SessionState
from acmserve.context.tools.search.exact import searchable_texts
from acmserve.context.transcript.message import Place
from acmserve.errors import InvalidRequest

PASSAGE_CHARS = 600
MAX_PASSAGES = 20_000


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text that is embedded as one."""

    piece: Piece
    text: str


def passages(state: SessionState, role: str, own_tools: Collection[str] = ()) -> list[Passage]:
    """The searchable texts of a role, cut into passages of at most `PASSAGE_CHARS` characters."""
    redacted = pieces_by_place(state, Visibility.REDACTED)
    found = []
    for entry, part, text in searchable_texts(state, role, own_tools):
        place = Place(entry, part)
        for start, end in _spans(text, stretches(len(text), redacted.get(place, ()))):
            passage = text[start:end]
            if passage.strip():
                found.append(Passage(Piece(place, start, end), passage))
    if len(found) > MAX_PASSAGES:
        raise InvalidRequest(
            "mode",
            f"semantic search reads at most {MAX_PASSAGES:,} passages, there are {len(found):,}.",
            "Search with mode 'exact', or one role.",
        )
    return found


def _spans(text: str, readable: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, end in readable:
        start = first
        while start < end:
            stop = min(start + PASSAGE_CHARS, end)
            line_end = text.rfind("\n", start, stop) + 1
            if stop < end and line_end > start:
                stop = line_end
            yield start, stop
            start = stop


def rank(
    found: Sequence[Passage], vectors: Sequence[Sequence[float]], threshold: float, max_results: int
) -> list[tuple[Piece, float]]:
    """The passages at least `threshold` close to the query, best first. `vectors[0]` is the query's, shape [d] each."""
    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("mode", f"the embedder's vectors cannot be used: {error}.") from None
    if matrix.ndim != 2 or len(matrix) != len(found) + 1:
        raise InvalidRequest("mode", f"the embedder gave vectors of shape {matrix.shape} for {len(found) + 1} texts.")
    norms = np.linalg.norm(matrix, axis=1)
    scores = matrix[1:] @ matrix[0] / np.maximum(norms[1:] * norms[0], 1e-12)
    order = np.argsort(-scores, kind="stable")[:max_results]
    return [(found[i].piece, round(float(scores[i]), 3)) for i in order if scores[i] >= threshold]
