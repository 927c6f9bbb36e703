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
    chain        [ P ][m][ S .... ][new]  ten times over                 each fold takes more, and text is appended

How S depends on F decides what KV computed beside F is worth without it, so each case says how it does:

    unrelated    P, S and the continuation are one text, F is a piece of another one
    related      P, F, S and the continuation are one text
    superseded   lines that say where things are, over and over; S repeats the last round, the continuation asks for it

`num_movable` is how much of the old text behind the edit a move could carry. One document gives one cluster: its cases
share text, so they are no independent samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from acmserve.bench.fidelity.text import Document, superseded_text
from acmserve.plan.rules.rotations import MAX_ROTATIONS

Tokens = tuple[int, ...]
Encode = Callable[[str], Tokens]

UNRELATED, RELATED, SUPERSEDED = "unrelated", "related", "superseded"
DEPENDENCES = (UNRELATED, RELATED, SUPERSEDED)
FOLD, RESTORE, CHAIN = "fold", "restore", "chain"
KINDS = (FOLD, "deletion", "eviction", "two holes", "insertion", "moved", "replaced", RESTORE, CHAIN)
MARKERS = ("\n[{} tokens of earlier text were folded away]\n", "\n(To save space, {} tokens are left out here.)\n")
CHAIN_LENGTH, CHAIN_FOLD = 10, 96
CHAIN_MEASURED = (1, 2, 4, 7, 10)
_PREFIX_SHARE, _EVICTION_PREFIX = 0.15, 24


@dataclass(frozen=True, slots=True)
class FidelitySizes:
    """Tokens of a context and of its continuation; `share` of the context is folded."""

    context: int
    continuation: int
    share: float

    @property
    def folded(self) -> int:
        return round(self.context * self.share)


@dataclass(frozen=True, slots=True)
class CaseTurn:
    """One prompt of a session. Without a `continuation` it is read only; else the distributions along it are compared.

    The references of a measured turn are prompts of their own, empty where there is none: `unedited` is the context
    without any edit, `dropped` the edited one without S, `reworded` has another marker.
    """

    prompt: Tokens
    continuation: Tokens = ()
    num_edits: int = 1
    num_prefix: int = 0
    num_folded: int = 0
    num_suffix: int = 0
    num_movable: int = 0
    unedited: Tokens = ()
    dropped: Tokens = ()
    reworded: Tokens = ()
    folded: Tokens = ()
    suffix: Tokens = ()


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
    fields = ("prompt", "unedited", "dropped", "reworded")
    turns = [
        replace(
            t,
            **{name: lead + getattr(t, name) for name in fields if getattr(t, name)},
            num_prefix=t.num_prefix + len(lead),
        )
        for t in case.turns
    ]
    return replace(case, turns=tuple(turns))


@dataclass(frozen=True, slots=True)
class CasePieces:
    """A context before an edit, cut where the edit cuts; `markers` stand for F, the second one in other words."""

    prefix: Tokens
    folded: Tokens
    suffix: Tokens
    continuation: Tokens
    markers: tuple[Tokens, Tokens]

    @property
    def context(self) -> Tokens:
        return self.prefix + self.folded + self.suffix

    def turn(self, prompt: Tokens, num_movable: int, **more: Any) -> CaseTurn:
        """The measured turn; where nothing else is said, S is its end."""
        turn = CaseTurn(
            prompt,
            self.continuation,
            num_prefix=len(self.prefix),
            num_folded=len(self.folded),
            num_suffix=len(self.suffix),
            num_movable=num_movable,
            folded=self.folded,
            suffix=self.suffix,
            unedited=self.context,
            dropped=prompt[: len(prompt) - len(self.suffix)],
        )
        return replace(turn, **more)


def _fold(text: CasePieces) -> tuple[CaseTurn, ...]:
    prompts = [text.prefix + marker + text.suffix for marker in text.markers]
    return CaseTurn(text.context), text.turn(prompts[0], len(text.suffix), reworded=prompts[1])


def _deletion(text: CasePieces) -> tuple[CaseTurn, ...]:
    return CaseTurn(text.context), text.turn(text.prefix + text.suffix, len(text.suffix))


def _two_holes(text: CasePieces) -> tuple[CaseTurn, ...]:
    f, s = len(text.folded) // 2, len(text.suffix) // 2
    context = text.prefix + text.folded[:f] + text.suffix[:s] + text.folded[f:] + text.suffix[s:]
    prompts = [text.prefix + marker + text.suffix[:s] + marker + text.suffix[s:] for marker in text.markers]
    dropped = text.prefix + text.markers[0]
    more = {"unedited": context, "dropped": dropped, "reworded": prompts[1]}
    return CaseTurn(context), text.turn(prompts[0], len(text.suffix), **more)


def _insertion(text: CasePieces) -> tuple[CaseTurn, ...]:
    context = text.prefix + text.suffix
    return CaseTurn(context), text.turn(text.context, len(text.suffix), unedited=context)


def _moved(text: CasePieces) -> tuple[CaseTurn, ...]:
    b = len(text.suffix) // 2
    prompt = text.prefix + text.suffix[:b] + text.folded + text.suffix[b:]
    more = {"dropped": prompt[: len(prompt) - len(text.suffix) + b]}
    return CaseTurn(text.context), text.turn(prompt, len(text.folded) + len(text.suffix), **more)


def _replaced(text: CasePieces) -> tuple[CaseTurn, ...]:
    at = len(text.folded) // 2
    other = next(token for token in text.suffix if token != text.folded[at])
    prompt = (*text.prefix, *text.folded[:at], other, *text.folded[at + 1 :], *text.suffix)
    num_behind = len(text.folded) - at - 1 + len(text.suffix)
    return CaseTurn(text.context), text.turn(prompt, num_behind)


def _restore(text: CasePieces) -> tuple[CaseTurn, ...]:
    folded = text.prefix + text.markers[0] + text.suffix
    return CaseTurn(text.context), CaseTurn(folded), text.turn(text.context, 0, unedited=(), dropped=())


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
    """One case out of `document`; `other` gives the folded text of an unrelated one.

    Raises ValueError when a text is shorter than what is needed.
    """
    name = f"{document.name}/{kind}/{dependence}/{sizes.context}/{sizes.share:g}"
    case = partial(Case, name, document.name, kind, dependence)
    if kind == CHAIN:
        return case(_chain(document, sizes, encode))
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


def _chain(document: Document, sizes: FidelitySizes, encode: Encode) -> tuple[CaseTurn, ...]:
    """A window that slides: edit k folds the oldest text of it into the marker and appends as much new text.

    edit k       [ P ][m k]           [ window ......................][new]( continuation )
    edit k + 1   [ P ][m k+1]                [ window .....................][new]( continuation )
    """
    num_prefix = _EVICTION_PREFIX
    window = sizes.context - num_prefix - CHAIN_FOLD
    text = document.cut(num_prefix + window + CHAIN_LENGTH * CHAIN_FOLD + sizes.continuation)
    prefix, rest = text[:num_prefix], text[num_prefix:]
    turns = [CaseTurn(prefix + rest[:window])]
    for k in range(1, CHAIN_LENGTH + 1):
        start, end = k * CHAIN_FOLD, window + (k - 1) * CHAIN_FOLD
        markers = [encode(marker.format(start)) for marker in MARKERS]
        # At edit k the first window has been turned k - 1 times; what was turned too often is computed anew.
        first_fresh = start if k <= MAX_ROTATIONS else max(start, window)
        old = window + (k - 2) * CHAIN_FOLD if k > 1 else end
        turns.append(
            CaseTurn(
                prefix + markers[0] + rest[start:end],
                rest[end : end + sizes.continuation] if k in CHAIN_MEASURED else (),
                num_edits=k,
                num_prefix=num_prefix,
                num_folded=start,
                num_suffix=end - start,
                num_movable=max(old - first_fresh, 0),
                unedited=prefix + rest[:end],
                dropped=prefix + markers[0],
                reworded=prefix + markers[1] + rest[start:end],
                folded=rest[:start],
                suffix=rest[start:end],
            )
        )
    return tuple(turns)
