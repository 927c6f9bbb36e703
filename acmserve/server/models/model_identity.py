"""Which model a server writes prompts for: what has to be the same where a session goes on elsewhere, token for token.

    names           what clients call it             another one answers otherwise
    tokenizer       digest of vocabulary and probe   other token ids for the same text
    chat_template   digest of the template           other text for the same messages
    architecture    classes and sizes                other weights, as far as a shape tells

Weights are not read. Two models of one shape that are served under one name pass for the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.errors import Conflict
from acmserve.server.vllm.handlers import load_chat_template
from acmserve.validation import echo

_PROBE = (
    "The keeper wrote: 3,141.59 km, 17°C.\n\n\tdef f(x):\n\t\treturn {'a': [x, None]}  # naïve / \"ok\"?\n"
    "Größe 漢字 かな 한국어 עברית العربية Русский 🦀👩‍🚀 <tool_call> </think> <|im_start|> \u00a0\u200b end."
)
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """`names` are all that the model is served under. Token ids are below `vocab_size`."""

    names: tuple[str, ...] = ("",)
    tokenizer: str = ""
    chat_template: str = ""
    architecture: str = ""
    vocab_size: int = 2**31

    def as_dict(self) -> dict[str, str]:
        """What an export says of it. Its first name stands for all of them."""
        return {
            "name": self.names[0],
            "tokenizer": self.tokenizer,
            "chat_template": self.chat_template,
            "architecture": self.architecture,
        }

    def check_same(self, given: Mapping[str, str], where: str) -> None:
        """Raise `Conflict` naming the first part in which the model of an export is another one."""
        own = self.as_dict() | ({"name": given["name"]} if given["name"] in self.names else {})
        for part, mine in own.items():
            if given[part] != mine:
                raise Conflict(
                    f"{where}.{part}",
                    f"is {echo(given[part])} in the export, and {echo(mine)} here: its prompts would be others.",
                    "Import the session into a server of the same model, with the same flags.",
                )


def open_identity(
    names: Sequence[str], tokenizer: Any, chat_template: str | None, template_kwargs: object, config: Any
) -> ModelIdentity:
    """That of a served model. `tokenizer` is vLLM's, `config` the model's own, as Hugging Face reads it."""
    vocabulary = tokenizer.get_vocab()
    probe = tokenizer.encode(_PROBE, add_special_tokens=False)
    template = load_chat_template(chat_template) or getattr(tokenizer, "chat_template", None)
    sizes = "x".join(str(getattr(config, name, "?")) for name in _SHAPE)
    return ModelIdentity(
        tuple(names),
        _digest([sorted(vocabulary.items()), probe]),
        _digest([template, template_kwargs]),
        f"{','.join(getattr(config, 'architectures', None) or ())} {sizes}",
        max(vocabulary.values(), default=0) + 1,
    )


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
