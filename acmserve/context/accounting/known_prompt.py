"""What is known of a session's next prompt: the last one that was rendered or served, and whether it still holds.

    rendered or served   [ prompt of n messages ]  known
    appended             [ prompt of n messages ][ + 2 ]     known but for two messages, which are counted by parts
    edited, rewound      version + 1                         nothing is known until it is rendered

A template may change old messages when one is appended (it drops their reasoning). So what is told of an appended
prompt is a guess until it is served, and `margin` is what the guess may lack. It weighs nothing itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# By how much messages may be more than their parts: a share of their tokens (a template may escape them), and tokens.
_NEW_SHARE = 0.25
_NEW_TOKENS = 16
_KEPT_DRIFT = 0.9


@dataclass(frozen=True, slots=True)
class Counted:
    """A prompt as it was counted: its tokens, and the entries of the transcript.

    `version` is that of what is known. `num_rendered` are the tokens of the template's text, None where it was not
    rendered. `media` are the keys of what stands in the prompt besides.
    """

    num_tokens: int
    num_entries: int
    version: int = -1
    num_rendered: int | None = None
    media: tuple[bytes, ...] = ()


class KnownPrompt:
    """`last` is the prompt that is known, None where there is none. `drift` is by how much a served one was more."""

    def __init__(self) -> None:
        self.version = 0
        self.last: Counted | None = None
        self.drift = 0.0

    def change(self) -> None:
        """Something else than an append has happened."""
        self.version += 1

    def rendered(self, num_entries: int) -> Counted | None:
        """The next prompt, where it is the very one that was rendered. `num_entries`: messages of the transcript."""
        last = self.last
        if last is None or last.version != self.version or last.num_rendered is None:
            return None
        return last if last.num_entries == num_entries else None

    def before(self, num_entries: int) -> int | None:
        """How many of the entries stood in the known prompt, where only appends came since. None where others did."""
        last = self.last
        if last is None or last.version != self.version or last.num_entries > num_entries:
            return None
        return last.num_entries

    def margin(self, num_new: int, num_messages: int) -> int:
        """Tokens that a prompt with `num_new` more, of so many messages, may have besides."""
        return math.ceil(self.drift + _NEW_SHARE * num_new + _NEW_TOKENS * num_messages)

    def serve(self, counted: Counted, num_served: int, *, is_guess: bool) -> None:
        """A counted prompt had so many tokens. `is_guess`: media of it were not known, so the drift says nothing."""
        if counted.num_rendered is not None:
            drift = 0 if is_guess else num_served - counted.num_tokens
            self.drift = max(float(drift), self.drift * _KEPT_DRIFT, 0.0)
        if counted.version == self.version:
            self.last = Counted(num_served, counted.num_entries, counted.version)
