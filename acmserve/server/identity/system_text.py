"""The system text of a prompt, as something that can be compared: is it the same one, in slightly other words?

A clock, a git status or a folder listing inside it changes some lines. Another agent's system prompt shares few.
Two texts are the same prompt where at least half of the longer one stands in the other, counted in characters of lines.
Short texts have few lines, and are compared by words.

Holds hashes and lengths, never the text. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_SHARED = 0.5
MAX_LINES = 2048
MAX_CHARS_BY_WORD = 4000
MAX_LATELY = 256
"""Texts of which the hashes are kept, so that a text that comes with every request is read once."""
_BYTES_PER_PIECE = 100


@dataclass(frozen=True, slots=True)
class SystemText:
    """`lines` and `words` map hashes to lengths. A long text has no `words`."""

    digest: int
    lines: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    words: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, text: str) -> SystemText:
        """That of a text. One pass, and none for a text that came lately."""
        digest = hash(text) if text else 0
        known = _LATELY.pop(digest, None)
        made = cls._read(text, digest) if known is None else known
        _LATELY[digest] = made
        if len(_LATELY) > MAX_LATELY:
            del _LATELY[next(iter(_LATELY))]
        return made

    @classmethod
    def _read(cls, text: str, digest: int) -> SystemText:
        lines = {hash(line): len(line) for line in text.splitlines()[:MAX_LINES]}
        words = {hash(word): len(word) for word in text.split()} if len(text) <= MAX_CHARS_BY_WORD else {}
        return cls(digest, lines, words)

    @property
    def is_empty(self) -> bool:
        return self.digest == 0

    @property
    def num_bytes(self) -> int:
        """Host memory, roughly."""
        return (len(self.lines) + len(self.words)) * _BYTES_PER_PIECE

    def is_like(self, other: SystemText) -> bool:
        """Whether both are the same system prompt."""
        if self.digest == other.digest:
            return True
        if self.is_empty or other.is_empty:
            return False
        if self.words and other.words:
            return _share(self.words, other.words) >= MIN_SHARED
        return _share(self.lines, other.lines) >= MIN_SHARED


_LATELY: dict[int, SystemText] = {}


def _share(some: dict[int, int], others: dict[int, int]) -> float:
    """The part of the longer text that stands in the other."""
    most = max(sum(some.values()), sum(others.values()))
    return sum(length for piece, length in some.items() if piece in others) / most if most else 0.0
