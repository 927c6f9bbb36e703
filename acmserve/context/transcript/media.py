"""What images and other media weigh, which only the model's processor knows: learned from prompts that were served.

    served prompt    1,820 tokens
    as text          1,244 tokens     the template's text without its media
    media              576 tokens     shared by those of this prompt whose weight is not known yet

A part is known by the digest of its JSON, so the same image is learned once in a session. Until then it weighs as the
known ones do on average, and `num_unknown` says that somebody guesses. It reads no image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

_NO_MEDIA = frozenset({"text", "refusal", "thinking", "redacted_thinking", "reasoning"})


def is_media(part: object) -> bool:
    """Whether a part of a content list is an image, a sound, a video or a file."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind not in _NO_MEDIA and not isinstance(part.get("text"), str)  # type: ignore[attr-defined]


def media_keys(message: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The identity of each medium of a message, in order."""
    content = message.get("content")
    if not isinstance(content, list):
        return ()
    return tuple([_key(part) for part in content if is_media(part)])


def without_media(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message without its media. The very object where it has none."""
    content = message.get("content")
    if not isinstance(content, list) or not any(is_media(part) for part in content):
        return message
    return {**message, "content": [part for part in content if not is_media(part)]}


def _key(part: object) -> bytes:
    written = json.dumps(part, sort_keys=True, default=repr)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class MediaTokens:
    """Tokens of each medium of one session, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def weight(self, keys: Iterable[bytes]) -> int:
        """Tokens of media, the unknown ones as the known ones are on average, or 0."""
        guess = round(fmean(self._known.values())) if self._known else 0
        return sum([self._known.get(key, guess) for key in keys])

    def num_unknown(self, keys: Iterable[bytes]) -> int:
        """How many of them have a weight that is a guess."""
        return sum(key not in self._known for key in keys)

    def learn(self, keys: Sequence[bytes], num_tokens: int) -> bool:
        """A prompt with these media had `num_tokens` for them all. Whether anything was learned."""
        unknown = [key for key in keys if key not in self._known]
        if not unknown:
            return False
        rest = max(0, num_tokens - sum(self._known.get(key, 0) for key in keys))
        different = dict.fromkeys(unknown)
        each, left = divmod(rest, len(unknown))
        for index, key in enumerate(different):
            self._known[key] = each + (index < left)
        return True
