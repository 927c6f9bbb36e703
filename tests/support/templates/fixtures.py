"""Twelve chat templates, written after the published rules of their families, and a renderer of prompts for each.

They stand in tests/support/templates. vLLM reads a conversation before the template does (arguments as objects, parts
as one text, reasoning under two names): `as_read` does the same here. An image is its placeholder, which a processor
expands to as many tokens as its width says.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from acmserve.context.transcript.media import without_media
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TemplateRules
from acmserve.models.smollm2 import prepare
from acmserve.server.models.piece_counter import PieceCounter, piece_counter
from acmserve.server.models.template_probe import rules_of, template_render

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))
IMAGE = "<image_pad>"
_SPECIAL = re.compile(
    r"<\|[^|<>']*\|>|<(?:bos|s|start_of_turn|end_of_turn|BOS_TOKEN|image_pad)>|</s>|\[/?[A-Z_]{3,}\]|\[e~\[|\]~b\]"
)


@cache
def tokenizer() -> Any:
    """SmolLM2's, with the special tokens of all twelve."""
    found = AutoTokenizer.from_pretrained(prepare())
    written = {token for name in NAMES for token in _SPECIAL.findall(source(name))}
    found.add_special_tokens({"additional_special_tokens": sorted(written | {IMAGE})})
    return found


@cache
def source(name: str) -> str:
    """The text of a template."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def rules(name: str) -> TemplateRules:
    """The rules of a template, probed as the server does."""
    return rules_of(template_render(tokenizer(), source(name)))


@cache
def counter() -> PieceCounter:
    return piece_counter(tokenizer())


def as_read(message: Message) -> dict[str, Any]:
    """A message as vLLM gives it to a template."""
    read = copy.deepcopy(dict(message))
    content = read.get("content")
    if isinstance(content, list):
        read["content"] = "\n".join(IMAGE if part["type"] == "image_url" else part["text"] for part in content)
    elif content is None:
        read["content"] = ""
    for call in read.get("tool_calls") or ():
        if isinstance(call["function"].get("arguments"), str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
    thought = read.get("reasoning") or read.get("reasoning_content")
    if thought:
        read["reasoning"] = read["reasoning_content"] = thought
    return read


def image_tokens(part: Mapping[str, Any]) -> int:
    """What a processor makes of an image: its width stands in its name."""
    return int(part["image_url"]["url"].rpartition("=")[2])


@dataclass(slots=True)
class TemplateRenderer:
    """Writes prompts with one of the templates: a `PromptRenderer`. It counts what it was asked."""

    name: str
    tools: Sequence[Mapping[str, Any]] = ()
    num_asked: int = field(default=0)

    def render(self, messages: Sequence[Message]) -> str:
        """Raises `TemplateError` where the template refuses."""
        written = tokenizer().apply_chat_template(
            [as_read(message) for message in messages],
            chat_template=source(self.name),
            tools=list(self.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        return str(written)

    def written(self, messages: Sequence[Message]) -> str | None:
        try:
            return self.render([without_media(message) for message in messages])
        except TemplateError:
            return None

    def num_tokens(self, messages: Sequence[Message]) -> int | None:
        self.num_asked += 1
        text = self.written(messages)
        return None if text is None else counter().count(text)

    def served(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt as it would reach the engine: tokenized at once, its images expanded."""
        text = self.render(messages)
        num_tokens = len(tokenizer()(text, add_special_tokens=False)["input_ids"])
        parts = [
            part for message in messages if isinstance(message.get("content"), list) for part in message["content"]
        ]
        images = [image_tokens(part) for part in parts if part.get("type") == "image_url"]
        return num_tokens + sum(images) - text.count(IMAGE)
