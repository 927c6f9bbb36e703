"""What the soak asks: sessions that edit what they sent before, and strangers who send the very same tokens.

    history  [ a  b  c  d ]  -->  append, fold, delete, insert, swap, restore  -->  prompt  -->  answer joins history

Everything follows from one seed and the engine's answers. It knows no engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.engine.edits import Tokens, cut, insert, swap, text

SHORTEST, LONGEST = 120, 1_500
SHORT_ANSWER, LONG_ANSWER = 4, 80
FIDELITIES = ("exact", "reuse", "reuse", "repair", "auto")
REPAIR = {"head_tokens": 7, "tail_tokens": 5, "ranges": [[60, 90]]}


@dataclass(frozen=True)
class Ask:
    """One request. It is aborted after so many steps of the engine, None lets it end. Nobody has no session."""

    prompt: Tokens
    max_tokens: int
    session: str | None = None
    salt: str | None = None
    fidelity: str = "exact"
    forget: bool = False
    priority: int = 0
    abort_after_steps: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the answer is that of a fresh computation on every model."""
        return self.session is None or self.fidelity == "exact"

    @property
    def acm(self) -> dict[str, Any] | None:
        if self.session is None:
            return None
        acm: dict[str, Any] = {"session_id": self.session, "fidelity": self.fidelity}
        if self.fidelity == "repair":
            acm["repair"] = REPAIR
        return acm | {"forget": True} if self.forget else acm


@dataclass
class Talk:
    """One session. Some talks share a beginning and a salt, so that their blocks are shared, too."""

    name: str
    rng: random.Random
    salt: str | None
    history: Tokens
    versions: list[Tokens] = field(default_factory=list)
    num_asked: int = 0

    def ask(self) -> Ask:
        """The next request. The edit goes on from what was sent last, whether it was answered or not."""
        self.num_asked += 1
        rng, prompt = self.rng, self._edited()
        self.history = prompt
        self.versions = [*self.versions[-5:], prompt]
        return Ask(
            prompt,
            rng.randint(1, LONG_ANSWER if rng.random() < 0.2 else SHORT_ANSWER),
            self.name,
            self.salt,
            rng.choice(FIDELITIES),
            forget=rng.random() < 0.05,
            priority=rng.randrange(3),
            abort_after_steps=rng.randrange(8) if rng.random() < 0.1 else None,
        )

    def stranger(self) -> Ask:
        """Nobody, or another session, sends the tokens that this session sent last."""
        session = f"{self.name} of another" if self.rng.random() < 0.3 else None
        return Ask(self.history, self.rng.randint(1, SHORT_ANSWER), session, self.salt, priority=self.rng.randrange(3))

    def take(self, answer: Tokens) -> None:
        """The answer joins what was sent, unless an edit has come between."""
        self.history = [*self.history, *answer]

    def _edited(self) -> Tokens:
        rng, tokens = self.rng, self.history
        new = text(rng.randint(1, 60), f"{self.name} {self.num_asked}")
        if len(tokens) > LONGEST - 200 or rng.random() < 0.35:
            start = rng.randrange(len(tokens) // 2)
            end = start + max(rng.randint(1, 300), len(tokens) - LONGEST + 300)
            tokens = cut(tokens, start, end, new[:11] if rng.random() < 0.7 else ())
        elif rng.random() < 0.2:
            tokens = insert(tokens, rng.randrange(len(tokens)), text(rng.randint(1, 90), f"in {new}"))
        elif rng.random() < 0.15:
            tokens = swap(tokens, *sorted(rng.sample(range(len(tokens) + 1), 3)))
        elif rng.random() < 0.3 and self.versions:
            tokens = rng.choice(self.versions)
        grown = [*tokens, *new]
        return grown if len(grown) >= SHORTEST else [*grown, *text(SHORTEST, f"more {new}")]


def make_talks(seed: int, num_talks: int) -> list[Talk]:
    """Half of them begin alike, and every third has a salt of its own."""
    talks = []
    for index in range(num_talks):
        beginning = text(300, "shared" if index % 2 else f"own {index}")
        salt = f"salt {index}" if index % 3 == 0 else None
        talks.append(Talk(f"talk {index}", random.Random(f"{seed} {index}"), salt, beginning))
    return talks
