"""Two baselines of the long-context papers as prompt makers for a trace: BM25 retrieval, and MemAgent.

Both show the whole conversation until it exceeds the budget. Then

    bm25       system | 1,500 tokens of old text in chunks of 200, and the question | last steps, three at most
    memagent   system | memory, and the question | what came since the memory was updated

Retrieval asks no model, but shows other text in every turn. MemAgent reads the old text once, in chunks of 5,000 tokens
(fewer where the budget is small), and asks for a new memory after each. The words of a memory are scripted
(`summaries.py`), because what counts here is what the server has to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter, as_plain
from acmserve.bench.agent.recording import Step
from acmserve.bench.harness.library_text import cut
from acmserve.bench.harness.summaries import SUMMARIES
from acmserve.bench.trace.bm25 import chunks_of, rank
from acmserve.bench.trace.policy import SUMMARY_TOKENS, Aside, Limits, Shown
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

CHUNK_TOKENS = 200
READ_TOKENS = 5_000
# Recent steps and chunks to show, the first that fit; seven chunks are the 1,500 tokens of the papers, about.
_SHARES = ((3, 7), (2, 7), (1, 7), (1, 3), (1, 0))
_QUERY_CHARS = 2_000
_READ = "Update the memory with what matters of this part of a conversation.\n\nMemory:\n"


class _History:
    """The conversation in steps: an assistant's message with the results behind it, or a message of somebody else."""

    def __init__(self, limits: Limits, tools: Sequence[Any], writer: PromptWriter, tokenizer: Tokenizer) -> None:
        self.limits, self.tokenizer = limits, tokenizer
        self._tools, self._writer = tools, writer
        self.system: list[Plain] = []
        self.question: Plain = {"role": "user", "content": ""}
        self.steps: list[list[Plain]] = []
        self.num_fleeting = 0

    def add(self, step: Step) -> None:
        """Take in what is new."""
        for message in step.new:
            self._add_message(message)
        self.num_fleeting = sum(len(self.tokenizer.starts(as_plain(one)["content"])) + 8 for one in step.fleeting)

    def _add_message(self, message: Message) -> None:
        plain = as_plain(message)
        if message["role"] == "system":
            self.system.append(plain)
        elif message["role"] == "tool" and self.steps:
            self.steps[-1].append(plain)
        else:
            self.steps.append([plain])
            if message["role"] == "user":
                self.question = plain

    def fits(self, messages: Sequence[Plain]) -> bool:
        """Whether a prompt of these messages is within the budget."""
        num_tokens = len(self._writer.tokens(self._writer.write(messages, self._tools)))
        return num_tokens + self.num_fleeting <= self.limits.max_tokens


def flat(steps: Sequence[Sequence[Plain]]) -> list[Plain]:
    """The messages of steps."""
    return [message for step in steps for message in step]


class Retrieving:
    """Shows what BM25 finds in the old text."""

    def __init__(self, limits: Limits, tools: Sequence[Any], writer: PromptWriter, tokenizer: Tokenizer) -> None:
        self._history = _History(limits, tools, writer, tokenizer)

    def show(self, step: Step) -> Shown:
        """See `Editor`. Raises AcmError where not even the last step fits into the budget."""
        history = self._history
        history.add(step)
        whole = [*history.system, *flat(history.steps)]
        if history.fits(whole):
            return Shown(tuple(whole))
        for num_recent, num_chunks in _SHARES:
            old, recent = history.steps[:-num_recent], history.steps[-num_recent:]
            shown = [*history.system, *self._found(old, recent, num_chunks), *flat(recent)]
            if history.fits(shown):
                return Shown(tuple(shown))
        raise AcmError(f"--budget {history.limits.max_tokens}: bm25 cannot show even the last step; give a larger one")

    def _found(self, old: Sequence[Sequence[Plain]], recent: Sequence[Sequence[Plain]], num_chunks: int) -> list[Plain]:
        history = self._history
        shown = flat(recent)
        text = "\n".join(message["content"] for message in flat(old) if message is not history.question)
        chunks = chunks_of(text, CHUNK_TOKENS, history.tokenizer)
        query = f"{history.question['content']} {shown[-1]['content'][:_QUERY_CHARS]}"
        taken = sorted(rank(query, chunks)[:num_chunks])
        parts = "\n...\n".join(chunks[number] for number in taken)
        asked = "" if any(message is history.question for message in shown) else f"\n\n{history.question['content']}"
        return [{"role": "user", "content": f"Parts of the conversation so far:\n{parts}{asked}"}]


class Remembering:
    """MemAgent: a memory of bounded size takes the place of all that was read."""

    def __init__(self, limits: Limits, tools: Sequence[Any], writer: PromptWriter, tokenizer: Tokenizer) -> None:
        self._history = _History(limits, tools, writer, tokenizer)
        self._num_read = 0
        self._num_updates = 0

    def show(self, step: Step) -> Shown:
        """See `Editor`. Raises AcmError where not even the last step fits into the budget."""
        history = self._history
        history.add(step)
        asides: list[Aside] = []
        shown = self._shown()
        while not history.fits(shown):
            if self._num_read >= len(history.steps) - 1:
                raise AcmError(
                    f"--budget {history.limits.max_tokens}: memagent cannot show even the last step; give a larger one"
                )
            asides.append(self._read())
            shown = self._shown()
        return Shown(tuple(shown), tuple(asides))

    def _memory(self) -> str:
        return SUMMARIES[(self._num_updates - 1) % len(SUMMARIES)] if self._num_updates else ""

    def _shown(self) -> list[Plain]:
        history = self._history
        recent = flat(history.steps[self._num_read :])
        if not self._num_updates:
            return [*history.system, *recent]
        asked = "" if any(message is history.question for message in recent) else f"\n\n{history.question['content']}"
        return [*history.system, {"role": "user", "content": f"Memory:\n{self._memory()}{asked}"}, *recent]

    def _read(self) -> Aside:
        """Read the next chunk: as many steps as it takes, all but the last one at most."""
        history = self._history
        room = min(READ_TOKENS, history.limits.max_tokens)
        parts: list[str] = []
        num_tokens = 0
        while self._num_read < len(history.steps) - 1:
            text = "\n".join(message["content"] for message in history.steps[self._num_read])
            size = len(history.tokenizer.starts(text))
            if parts and num_tokens + size > room:
                break
            parts.append(cut(text, room, history.tokenizer))
            num_tokens += size
            self._num_read += 1
        asked = f"{_READ}{self._memory()}\n\nQuestion: {history.question['content']}\n\n" + "\n".join(parts)
        self._num_updates += 1
        return Aside(({"role": "user", "content": asked},), SUMMARY_TOKENS)
