"""What `acmserve bench fidelity` edits, as token ids: contexts, the edits made to them, and how the text goes on. Pure.

    context      [ P ][     F     ][       S       ]( continuation )     D: a text that goes on behind S
    fold         [ P ][m][       S       ]                               m stands for F
    deletion     [ P ][       S       ]
    eviction     [P][       S       ]                                    the same, close to the front
    two holes    [ P ][m][ S1 ][m][ S2 ]                                 from [ P ][ F1 ][ S1 ][ F2 ][ S2 ]
    insertion    [ P ][     F     ][       S       ]                     from [ P ][ S ]
    moved        [ P ][ B ][     F     ][ S ]                            from [ P ][ F ][ B ][ S ]
    replaced     [ P ][   F, one token another   ][       S       ]
    restore      [ P ][     F     ][       S       ]                     by way of the fold

How S depends on F decides what KV computed beside F is worth without it, so each case says how it does:

    unrelated    P, S and the continuation are one text, F is a piece of another one
    related      P, F, S and the continuation are one text
    superseded   lines that say where things are, over and over. S repeats the last round, the continuation asks for it

`num_movable` is how much of the old text behind the edit a move could carry. One document gives one cluster: its cases
share text, so they are no independent samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from acmserve.bench.fidelity.text import Document, superseded_text

Tokens = tuple[int, ...]
Encode = Callable[[str], Tokens]

UNRELATED, RELATED, SUPERSEDED = "unrelated", "related", "superseded"
DEPENDENCES = (UNRELATED, RELATED, SUPERSEDED)
FOLD, RESTORE = "fold", "restore"
KINDS = (FOLD, "deletion", "eviction", "two holes", "insertion", "moved", "replaced", RESTORE)
MARKERS = ("\n[{} tokens of earlier text were folded away]\n", "\n(To save space, {} tokens are left out here.)\n")
_PREFIX_SHARE, _EVICTION_PREFIX = 0.15, 24


@dataclass(frozen=True, slots=True)
class FidelitySizes:
    """Tokens of a context and of its continuation. `share` of the context is folded."""

    context: int
    continuation: int
    share: float

    @property
    def folded(self) -> int:
        return round(self.context * self.share)


@dataclass(frozen=True, slots=True)
class CaseTurn:
    """One prompt of a session. Without a `continuation` it is read only. Else the distributions along it are compared.

    The references of a measured turn are prompts of their own, empty where there is none. `unedited` is the context
    without any edit, and `reworded` has another marker.
    """

    prompt: Tokens
    continuation: Tokens = ()
    num_movable: int = 0
    unedited: Tokens = ()
    reworded: Tokens = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A session: turns in order, the first of which is the context before any edit."""

    name: str
    document: str
    kind: str
    dependence: str
    turns: tuple[CaseTurn, ...]


def with_lead(case: Case, lead: Tokens) -> Case:
    """The case with `lead` in front of every prompt: what a model expects at the beginning of any text."""
    fields = ("prompt", "unedited", "reworded")
    turns = [replace(t, **{name: lead + getattr(t, name) for name in fields if getattr(t, name)}) for t in case.turns]
    return replace(case, turns=tuple(turns))


@dataclass(frozen=True, slots=True)
class CasePieces:
    """A context before an edit, cut where the edit cuts. `markers` stand for F, the second one in other words."""

    prefix: Tokens
    folded: Tokens
    suffix: Tokens
    continuation: Tokens
    markers: tuple[Tokens, Tokens]

    @property
    def context(self) -> Tokens:
        return self.prefix + self.folded + self.suffix

    def turn(self, prompt: Tokens, num_movable: int, unedited: Tokens | None = None, reworded: Tokens = ()) -> CaseTurn:
        """The measured turn. Where nothing else is said, the context is the prompt without an edit."""
        return CaseTurn(
            prompt, self.continuation, num_movable, self.context if unedited is None else unedited, reworded
        )


def _fold(text: CasePieces) -> tuple[CaseTurn, ...]:
    prompts = [text.prefix + marker + text.suffix for marker in text.markers]
    return CaseTurn(text.context), text.turn(prompts[0], len(text.suffix), reworded=prompts[1])


def _deletion(text: CasePieces) -> tuple[CaseTurn, ...]:
    return CaseTurn(text.context), text.turn(text.prefix + text.suffix, len(text.suffix))


def _two_holes(text: CasePieces) -> tuple[CaseTurn, ...]:
    f, s = len(text.folded) // 2, len(text.suffix) // 2
    context = text.prefix + text.folded[:f] + text.suffix[:s] + text.folded[f:] + text.suffix[s:]
    prompts = [text.prefix + marker + text.suffix[:s] + marker + text.suffix[s:] for marker in text.markers]
    return CaseTurn(context), text.turn(prompts[0], len(text.suffix), context, prompts[1])


def _insertion(text: CasePieces) -> tuple[CaseTurn, ...]:
    context = text.prefix + text.suffix
    return CaseTurn(context), text.turn(text.context, len(text.suffix), unedited=context)


def _moved(text: CasePieces) -> tuple[CaseTurn, ...]:
    b = len(text.suffix) // 2
    prompt = text.prefix + text.suffix[:b] + text.folded + text.suffix[b:]
    return CaseTurn(text.context), text.turn(prompt, len(text.folded) + len(text.suffix))


def _replaced(text: CasePieces) -> tuple[CaseTurn, ...]:
    at = len(text.folded) // 2
    other = next(token for token in text.suffix if token != text.folded[at])
    prompt = (*text.prefix, *text.folded[:at], other, *text.folded[at + 1 :], *text.suffix)
    num_behind = len(text.folded) - at - 1 + len(text.suffix)
    return CaseTurn(text.context), text.turn(prompt, num_behind)


def _restore(text: CasePieces) -> tuple[CaseTurn, ...]:
    folded = text.prefix + text.markers[0] + text.suffix
    return CaseTurn(text.context), CaseTurn(folded), text.turn(text.context, 0, unedited=())


_EDITS: dict[str, Callable[[CasePieces], tuple[CaseTurn, ...]]] = {
    FOLD: _fold,
    "deletion": _deletion,
    "eviction": _deletion,
    "two holes": _two_holes,
    "insertion": _insertion,
    "moved": _moved,
    "replaced": _replaced,
    RESTORE: _restore,
}


def plan_case(
    kind: str, dependence: str, document: Document, other: Document, sizes: FidelitySizes, encode: Encode, seed: int
) -> Case:
    """One case out of `document`. `other` gives the folded text of an unrelated one.

    Raises ValueError when a text is shorter than what is needed.
    """
    name = f"{document.name}/{kind}/{dependence}/{sizes.context}/{sizes.share:g}"
    case = partial(Case, name, document.name, kind, dependence)
    markers = [encode(marker.format(sizes.folded)) for marker in MARKERS]
    num_prefix = _EVICTION_PREFIX if kind == "eviction" else round(sizes.context * _PREFIX_SHARE)
    num_suffix = sizes.context - num_prefix - sizes.folded
    pieces = partial(CasePieces, markers=(markers[0], markers[1]))
    if dependence == SUPERSEDED:
        text = superseded_text(document, encode, (num_prefix, sizes.folded, num_suffix), f"{seed}/{name}")
        return case(_EDITS[kind](pieces(*text[:3], text[3][: sizes.continuation])))
    folded = other.cut(sizes.folded) if dependence == UNRELATED else None
    num_needed = num_prefix + num_suffix + sizes.continuation + (0 if folded else sizes.folded)
    rest = document.cut(num_needed)
    prefix, rest = rest[:num_prefix], rest[num_prefix:]
    if folded is None:
        folded, rest = rest[: sizes.folded], rest[sizes.folded :]
    return case(_EDITS[kind](pieces(prefix, folded, rest[:num_suffix], rest[num_suffix:])))
