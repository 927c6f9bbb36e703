"""Text that goes on by itself, without a download: documents of the standard library, and lists of updates.

Prose is the manual (`pydoc_data.topics`), code the modules. Another version of Python has other text, so a report
carries `digest`. A list of updates is superseded state: things that are put elsewhere again and again. What a reader
of the list needs is its last round only, and that is the text whose KV has seen the earlier rounds.

It knows tokens, no edits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acmserve.bench.harness.library_text import Library

Tokens = tuple[int, ...]
Encode = Callable[[str], Tokens]

# Long enough for every context of a run, with what tokenizers make of prose and code.
_LEAST_CHARS = 20_000
_MAX_CHARS = 60_000
# fmt: off
THINGS = (
    "anchor", "barrel", "bell", "blanket", "boat", "book", "bottle", "brush", "bucket", "camera", "candle", "chain",
    "clock", "coin", "compass", "drum", "flag", "hammer", "hat", "kettle", "key", "knife", "ladder", "lamp", "letter",
    "map", "mirror", "needle", "paddle", "pipe", "plate", "radio", "ring", "rope", "saddle", "shovel",
)
PLACES = (
    "attic", "bakery", "barn", "bridge", "cabin", "canal", "castle", "cave", "cellar", "chapel", "church", "cottage",
    "court", "dock", "factory", "farm", "ferry", "field", "forest", "fort", "garden", "gate", "hall", "harbour", "hill",
    "hotel", "inn", "island", "kitchen", "lake", "library", "market", "meadow", "mill", "mine", "museum", "office",
    "orchard", "palace", "park", "pier", "pond", "port", "prison", "quarry", "river", "school", "shed", "shop", "shore",
    "square", "stable", "station", "tower", "tunnel", "valley", "village", "wharf", "yard",
)
# fmt: on
_INTRO = "A list of where things are. A later line about a thing replaces the earlier ones.\n"
_QUESTION = "\nWhere things are now:\n"
_NUM_THINGS = 16
_LEAST_FILLER = 160


@dataclass(frozen=True, slots=True)
class Document:
    """A text in tokens, from a beginning that the seed chose."""

    name: str
    tokens: Tokens

    def cut(self, num_tokens: int) -> Tokens:
        """Its first tokens. Raises ValueError when it has fewer."""
        if len(self.tokens) < num_tokens:
            raise ValueError(f"{self.name} has {len(self.tokens)} tokens, {num_tokens} are needed")
        return self.tokens[:num_tokens]


def choose_documents(
    library: Library, encode: Encode, num_documents: int, num_tokens: int, seed: int
) -> list[Document]:
    """Prose and code in turns, each cut at a line that the seed chose. Raises ValueError when there are too few."""
    draw = random.Random(f"documents {seed}")
    shelves = [
        [(name, text) for name, text in texts.items() if len(text) >= _LEAST_CHARS]
        for texts in (library.topics, library.sources)
    ]
    for shelf in shelves:
        draw.shuffle(shelf)
    documents: list[Document] = []
    while len(documents) < num_documents:
        shelf = shelves[len(documents) % 2] or shelves[0] or shelves[1]
        if not shelf:
            raise ValueError(f"only {len(documents)} texts have {num_tokens} tokens, {num_documents} are needed")
        name, text = shelf.pop()
        lines = text.splitlines(keepends=True)
        first = draw.randrange(len(lines) // 3)
        tokens = encode("".join(lines[first:])[:_MAX_CHARS])
        if len(tokens) >= num_tokens:
            documents.append(Document(name, tokens[:num_tokens]))
    return documents


def superseded_text(
    document: Document, encode: Encode, sizes: tuple[int, int, int], seed: str
) -> tuple[Tokens, Tokens, Tokens, Tokens]:
    """Prefix, folded rounds of updates, the kept text with the last round in it, and the recall of that round.

    `sizes` are the tokens of the first three. The kept text has other text in front of the last round or behind it,
    as the seed says, where there is room.
    """
    num_prefix, num_folded, num_suffix = sizes
    draw = random.Random(seed)
    things = draw.sample(THINGS, _NUM_THINGS)
    rest = document.tokens
    prefix = (*rest[:num_prefix], *encode(_INTRO))[-num_prefix:]
    folded: Tokens = ()
    while len(folded) < num_folded:
        folded += encode(_round(draw, things)[0])
    last, where = _round(draw, things)
    updates = encode(last)
    filler = rest[num_prefix:][: max(num_suffix - len(updates), 0)]
    in_front = draw.random() < 0.5 and len(filler) >= _LEAST_FILLER
    suffix = (filler + updates if in_front else updates + filler)[:num_suffix]
    asked = draw.sample(things, len(things))
    return prefix, folded[-num_folded:], suffix, encode(_QUESTION + "".join(f"{t}: {where[t]}\n" for t in asked))


def digest(texts: Sequence[Tokens]) -> str:
    """What text a run was made of, as 16 hexadecimal digits."""
    found = hashlib.sha256()
    for tokens in texts:
        found.update(",".join(map(str, tokens)).encode() + b"\n")
    return found.hexdigest()[:16]


def _round(draw: random.Random, things: Sequence[str]) -> tuple[str, dict[str, str]]:
    where = {thing: draw.choice(PLACES) for thing in draw.sample(things, len(things))}
    return "".join(f"{thing}: {place}\n" for thing, place in where.items()), where
