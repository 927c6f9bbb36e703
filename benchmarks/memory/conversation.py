"""The conversation whose memory is counted, as prompts of token ids: turns that append, and turns that fold. Pure.

    first    [ context                     ]
    append   [ context                     ][ new ]
    fold     [ quarter ][m][ what stood behind the folded tokens ][ new ]          and so on, in turns

Every way to serve it is sent the same prompts. What a fold removes stands a quarter into the prompt, so three quarters
of it stand behind the edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from acmserve.bench.edit.kinds import Tokens
from acmserve.errors import AcmError

_FRONT_SHARE = 4


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """Tokens of the context that is read first, of what a turn brings, and of a fold and its marker.

    `num_turns` turns come behind the context. Each second one of these turns folds.
    """

    context: int = 4_000
    new: int = 600
    folded: int = 600
    marker: int = 20
    num_turns: int = 10

    @property
    def text(self) -> int:
        """Tokens of text that it takes."""
        return self.context + self.num_turns * (self.new + self.marker)


QUICK = MemorySizes(context=1_000, new=150, folded=200, num_turns=4)


@dataclass(frozen=True, slots=True)
class MemoryTurn:
    """One prompt."""

    prompt: Tokens
    is_fold: bool


def plan_turns(text: Sequence[int], sizes: MemorySizes) -> list[MemoryTurn]:
    """All prompts, the first context among them. Raises AcmError where the text is too short."""
    if len(text) < sizes.text:
        raise AcmError(f"the text has {len(text):,} tokens, and the conversation needs {sizes.text:,}")
    tokens = iter(text)
    prompt = tuple(islice(tokens, sizes.context))
    turns = [MemoryTurn(prompt, is_fold=False)]
    for number in range(sizes.num_turns):
        if is_fold := number % 2 == 1:
            start = len(prompt) // _FRONT_SHARE
            prompt = prompt[:start] + tuple(islice(tokens, sizes.marker)) + prompt[start + sizes.folded :]
        prompt += tuple(islice(tokens, sizes.new))
        turns.append(MemoryTurn(prompt, is_fold))
    return turns
