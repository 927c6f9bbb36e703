"""What every message of a conversation weighs in tokens, by part, counted once when it is appended.

    entry   overhead | text | reasoning | call 0 | call 1 | ...        a result has overhead and text

`count` is the served model's tokenizer. The overheads are what its chat template writes around a message and a call.
`base_tokens` is what stands in every prompt besides the messages (the tools, the generation prompt). Parts are counted
alone, so the sum may be off by a token or two at each seam. `calibrate` takes the difference to a prompt that was
really served into the base. `correct` takes the sizes that the served template gives (`rendered_spans.py`). A message
weighs as its parts until then. Media weigh what `media.py` has learned.

It does not know what is shown: see `omitted_tokens.py`. A turn costs what its new messages cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from acmserve.context.transcript.media import MediaTokens
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import CLEARED_ARGUMENTS, PLACEHOLDER, Omissions
from acmserve.context.transcript.parts import Parts, Role, read_parts
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import IntegrityError

Count = Callable[[str], int]


def counter(tokenizer: Tokenizer) -> Count:
    """Counts the tokens of a text that stands alone."""
    return lambda text: len(tokenizer.starts(text)) if text else 0


@dataclass(frozen=True, slots=True)
class EntrySize:
    """Tokens of one message by part. `calls` has one number for each tool call. `total` is their sum."""

    overhead: int
    text: int = 0
    reasoning: int = 0
    calls: tuple[int, ...] = ()
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.overhead + self.text + self.reasoning + sum(self.calls))


class TokenCounts:
    """`sizes` has one for each message, in order. It is read by everybody and written here only."""

    def __init__(
        self,
        count: Count,
        message_overhead: int = 4,
        call_overhead: int = 8,
        base_tokens: int = 0,
        result_overhead: int | None = None,
        *,
        shows_reasoning: bool = True,
    ) -> None:
        """`shows_reasoning`: the served template shows that of new messages at all."""
        self._shows_reasoning = shows_reasoning
        self._count = count
        self._message_overhead = message_overhead
        self._call_overhead = call_overhead
        self._result_overhead = message_overhead if result_overhead is None else result_overhead
        self.base_tokens = base_tokens
        self.sizes: list[EntrySize] = []
        self.media = MediaTokens()
        self._media: dict[int, tuple[bytes, ...]] = {}
        self._omittable: list[bool] = []
        self._sums = [0]
        self._omittable_sums = [0]
        self._texts: dict[str, int] = {}
        self._num_summed = 0
        self._saved: tuple[Omissions, int] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole conversation with nothing taken out, and of the base."""
        return self.base_tokens + self.between(0, len(self))

    def extend(self, messages: Iterable[Message]) -> None:
        """Count the messages that are new."""
        self.extend_read(read_parts(messages))

    def extend_read(self, new: Iterable[Parts]) -> None:
        """Count messages that were taken apart."""
        for parts in new:
            if parts.media:
                self._media[len(self.sizes)] = parts.media
            self.sizes.append(self._size(parts))
            self._omittable.append(parts.role is not Role.PROTECTED)

    def recount(self, entry: int, message: Message) -> None:
        """Count one message again: what is shown of it has changed (a fold, a restore)."""
        [parts] = read_parts([message])
        self._media.pop(entry, None)
        if parts.media:
            self._media[entry] = parts.media
        self.sizes[entry] = self._size(parts)
        self._saved = None
        self._num_summed = min(self._num_summed, entry)

    def rewind(self, num_entries: int) -> None:
        """Forget all but the first messages."""
        del self.sizes[num_entries:], self._omittable[num_entries:]
        self._media = {entry: keys for entry, keys in self._media.items() if entry < num_entries}
        self._saved = None
        self._num_summed = min(self._num_summed, num_entries)

    def correct(self, sizes: Sequence[EntrySize]) -> None:
        """Take the sizes of all messages as the served template shows them, without their media."""
        self.sizes = list(sizes)
        for entry, keys in self._media.items():
            self._add_to_text(entry, self.media.weight(keys))
        self._saved = None
        self._num_summed = 0

    def has_unknown_media(self, start: int) -> bool:
        """Whether a medium from entry `start` on weighs what somebody guessed."""
        return any(self.media.num_unknown(keys) for entry, keys in self._media.items() if entry >= start)

    def learn_media(self, shown: Sequence[bytes], num_tokens: int) -> None:
        """These media had `num_tokens` in a prompt that was served."""
        before = {entry: self.media.weight(keys) for entry, keys in self._media.items()}
        if not self.media.learn(shown, num_tokens):
            return
        for entry, keys in self._media.items():
            self._add_to_text(entry, self.media.weight(keys) - before[entry])
        self._saved = None
        self._num_summed = 0

    def _add_to_text(self, entry: int, num_tokens: int) -> None:
        size = self.sizes[entry]
        self.sizes[entry] = EntrySize(size.overhead, size.text + num_tokens, size.reasoning, size.calls)

    def calibrate(self, num_counted: int, num_served: int) -> None:
        """A prompt that counted `num_counted` here had `num_served` tokens in truth."""
        self.base_tokens += num_served - num_counted

    def remember(self, omissions: Omissions, num_saved: int) -> None:
        """Keep what these very omissions save: messages that are appended do not change it."""
        self._saved = (omissions, num_saved)

    def remembered(self, omissions: Omissions) -> int | None:
        """What these omissions save, if they are the last that were remembered."""
        return self._saved[1] if self._saved is not None and self._saved[0] is omissions else None

    def size(self, entry: int) -> EntrySize:
        """The size of one message."""
        return self.sizes[entry]

    def between(self, start: int, end: int) -> int:
        """Tokens of the messages `[start, end)`."""
        self._sum_up()
        return self._sums[end] - self._sums[start]

    def omittable_between(self, start: int, end: int) -> int:
        """Tokens of the messages `[start, end)` of the assistant and of tools."""
        self._sum_up()
        return self._omittable_sums[end] - self._omittable_sums[start]

    def count(self, text: str) -> int:
        """Tokens of a text that is no part of the conversation."""
        return self._count(text)

    def text_tokens(self, text: str) -> int:
        """Tokens of a line that we write ourselves (a note, a placeholder). Each is counted once."""
        if text not in self._texts:
            self._texts[text] = self._count(text)
        return self._texts[text]

    def placeholder_tokens(self) -> int:
        """Tokens of what stands for a cleared result."""
        return self.text_tokens(PLACEHOLDER)

    def cleared_call_tokens(self, name: str) -> int:
        """Tokens of a call without its arguments."""
        return self._call_overhead + self.text_tokens(name) + self.text_tokens(CLEARED_ARGUMENTS)

    def _size(self, parts: Parts) -> EntrySize:
        text = sum([self._count(text) for text in parts.texts])
        if parts.media:
            text += self.media.weight(parts.media)
        if parts.role is not Role.ASSISTANT:
            is_result = parts.role is Role.RESULT and not parts.is_observation
            return EntrySize(self._result_overhead if is_result else self._message_overhead, text)
        reasoning = sum([self._count(text) for text in parts.reasoning]) if self._shows_reasoning else 0
        calls = tuple(
            [
                self._call_overhead + self._count(call.name) + self._count(_written(call.arguments))
                for call in parts.calls
            ]
        )
        return EntrySize(self._message_overhead, text, reasoning, calls)

    def _sum_up(self) -> None:
        """Bring the running sums up to date."""
        start = self._num_summed
        if start == len(self.sizes) == len(self._sums) - 1:
            return
        new = [size.total for size in self.sizes[start:]]
        mine = [total if own else 0 for total, own in zip(new, self._omittable[start:], strict=True)]
        self._sums[start:] = accumulate(new, initial=self._sums[start])
        self._omittable_sums[start:] = accumulate(mine, initial=self._omittable_sums[start])
        self._num_summed = len(self.sizes)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the running sums are not the sums."""
        total = sum(size.total for size in self.sizes)
        if self.between(0, len(self)) != total or len(self._omittable) != len(self.sizes):
            raise IntegrityError(
                f"token counts: {len(self)} messages of {total} tokens, summed {self.between(0, len(self))}"
            )


def _written(arguments: object) -> str:
    """Arguments as a template writes them."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments is not None else ""
