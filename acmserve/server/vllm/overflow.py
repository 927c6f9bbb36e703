"""A prompt that is too long for the model: what vLLM says, read as numbers, and how long the prompt really is.

vLLM stops counting one token behind the limit, and says it in four ways. Clients compact by the number: one token too
many lets them drop one message, and ask again, many times. So the text is tokenized once more, without the limit.

    renderer  text --tokens, cut at the limit--> too long --tokens of the whole text--> the vendor's sentence
    routes    any of vLLM's sentences --find_overflow--> Overflow(num_tokens, max_tokens)

Of a text of more than `MAX_COUNTED_CHARS` characters per token of the limit, only the beginning is counted. The rest is
taken to be as dense. Does not know how a vendor's client wants to hear it (`server/http/vendor_errors.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from acmserve.server.vllm.handlers import VLLMValidationError

MAX_COUNTED_CHARS = 16
_SENTENCES = (
    r"maximum context length is (?P<max>\d+) tokens\. However, your messages resulted in (?P<num>\d+) tokens",
    r"maximum context length is (?P<max>\d+) tokens\. However, your prompt contains (at least )?(?P<num>\d+) input tok",
    r"maximum context length is (?P<max>\d+) tokens\. However, your prompt contains \d+ characters",
    r"Input length \((?P<num>\d+)\) exceeds model's maximum context length \((?P<max>\d+)\)",
    r"engine prompt length (?P<num>\d+) exceeds the max_model_len (?P<max>\d+)",
    r"decoder prompt \(length (?P<num>\d+)\) .*longer than the maximum model length of (?P<max>\d+)",
)
NO_ROOM = "max_tokens must be at least 1, got 0."
"""Of a prompt that fills the window, and of a request that asks for no token (`asks_for_none`)."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A prompt of `num_tokens`, one of the answer included where it fills the window, of at most `max_tokens`."""

    num_tokens: int
    max_tokens: int

    @property
    def sentence(self) -> str:
        """OpenAI's words for it. Clients that know vLLM's look for the first half."""
        return (
            f"This model's maximum context length is {self.max_tokens} tokens. However, your messages resulted in "
            f"{self.num_tokens} tokens. Please reduce the length of the messages."
        )


def find_overflow(message: str, max_model_len: int) -> Overflow | None:
    """The overflow that an error of vLLM speaks of, None for any other error."""
    for sentence in _SENTENCES:
        found = re.search(sentence, message)
        if found is not None:
            max_tokens = int(found["max"])
            num_tokens = int(found.groupdict().get("num") or 0)
            return Overflow(max(num_tokens, max_tokens + 1), max_tokens)
    return Overflow(max_model_len + 1, max_model_len) if message.startswith(NO_ROOM) else None


def asks_for_none(body: object) -> bool:
    """Whether a request itself asks for an answer of no token. The first of its limits counts, as with vLLM."""
    given = [body[name] for name in _LIMITS if body.get(name) is not None] if isinstance(body, Mapping) else []
    return bool(given) and given[0] in (0, "0")


def count_overflows(renderer: Any) -> None:
    """Have this renderer of vLLM say how many tokens a text has that is too long."""
    tokenize = renderer._tokenize_singleton_prompt_async

    async def tokenize_counted(prompt: Any, params: Any) -> Any:
        text = prompt.get("prompt") if "prompt_token_ids" not in prompt else None
        try:
            return await tokenize(prompt, params)
        except VLLMValidationError as error:
            if error.parameter not in ("input_text", "input_tokens") or not isinstance(text, str):
                raise
            num_tokens = await _count(renderer, text, params)
            overflow = Overflow(max(num_tokens, params.max_total_tokens + 1), params.max_total_tokens)
            raise VLLMValidationError(overflow.sentence, parameter=error.parameter) from error

    vars(renderer)["_tokenize_singleton_prompt_async"] = tokenize_counted


async def _count(renderer: Any, text: str, params: Any) -> int:
    counted = text[: params.max_total_tokens * MAX_COUNTED_CHARS]
    unlimited = replace(params, max_total_tokens=None, truncate_prompt_tokens=None)
    encoded = await renderer._tokenize_prompt_async({"prompt": counted}, unlimited)
    return len(encoded["prompt_token_ids"]) * len(text) // max(1, len(counted))
