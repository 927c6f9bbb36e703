"""Compaction as clients of agents do it: behind the conversation they ask for a summary, and go on with it.

    [system][user][step][step][step][results]                 the next step would not fit
    [system][user][step][step][step][results][summarize]      a prompt more, which every cache knows but for its end
    [system][user][summary][next step]                        little is left, so every server computes little

Nobody writes a summary here. Its words are the beginnings of the messages that it stands for. They are cut at as many
tokens as a summary is to have. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from acmserve.bench.agent.plain_prompt import Plain, as_plain
from acmserve.bench.agent.recording import RecordedStep
from acmserve.bench.harness.library_text import cut
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

SUMMARY_TOKENS = 300
"""Invented: no recording tells how long a summary is."""
_ASKED = "Summarize the work so far: what was asked, what was found, what was changed, and what is to be done next."
_HEAD = "Summary of the work so far:\n"
_BEGINNING_CHARS = 120

Weigh = Callable[[Sequence[Plain]], int]


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """What a client sends: `messages`, and behind them what stands in this prompt alone.

    `answer` is what is said to it where the recording has no answer. `is_forced`: the policy alone did not suffice.
    `removed` are the messages of the conversation, by their numbers, whose text the policy has taken out.
    """

    messages: tuple[Plain, ...]
    fleeting: tuple[Plain, ...] = ()
    is_forced: bool = False
    answer: str = ""
    removed: frozenset[int] = frozenset()


class Compacting:
    """One conversation. `weigh` counts the tokens of a prompt. A summary has `num_summary` at most."""

    def __init__(self, max_tokens: int, weigh: Weigh, tokenizer: Tokenizer, num_summary: int = SUMMARY_TOKENS) -> None:
        self._max_tokens, self._weigh, self._tokenizer = max_tokens, weigh, tokenizer
        self._num_summary = num_summary
        self._head: tuple[Plain, ...] = ()
        self._rest: tuple[Plain, ...] = ()
        self._num_messages = 0
        self._removed: frozenset[int] = frozenset()

    def show(self, step: RecordedStep) -> Iterator[ShownPrompt]:
        """The prompt of a step. In front of it the one that asks for a summary, where the next would be too large."""
        new, fleeting = tuple(map(as_plain, step.new)), tuple(map(as_plain, step.fleeting))
        asked: Plain = {"role": "user", "content": _ASKED}
        if not self._head:
            self._head = new
        elif self._weigh([*self._head, *self._rest, *new, *fleeting, asked]) > self._max_tokens:
            summary = self._summary()
            yield ShownPrompt((*self._head, *self._rest), (asked,), answer=summary)
            self._rest = ({"role": "user", "content": summary}, *new)
            self._removed = frozenset(range(len(self._head), self._num_messages))
        else:
            self._rest += new
        self._num_messages += len(new)
        shown = (*self._head, *self._rest)
        num_tokens = self._weigh([*shown, *fleeting])
        if num_tokens > self._max_tokens:
            raise AcmError(
                f"--budget {self._max_tokens}: the first prompt, a summary and the last step alone have {num_tokens:,} "
                "tokens; give a larger budget"
            )
        yield ShownPrompt(shown, fleeting, removed=self._removed)

    def _summary(self) -> str:
        beginnings = "\n".join(f"- {message['content'][:_BEGINNING_CHARS]}" for message in self._rest)
        return cut(_HEAD + beginnings, self._num_summary, self._tokenizer)
