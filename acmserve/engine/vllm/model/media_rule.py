"""What an engine's model allows with images: whether text between them moves, and when.

    positions count tokens (1-D rotary)                        text moves
    M-RoPE                                                     text moves where the same media are in front of it
    M-RoPE over pruned videos                                  positions are known when the encoder ran: refused
    M-RoPE with other axes than time, height and width         refused
    images whose tokens attend to later ones of the image      a range that starts inside an image is wrong: refused
    an encoder that attention crosses to                       refused

Reads vLLM's model configuration once. Text without media is not concerned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MediaRule:
    """`refusal` says why prompts with media reuse nothing, None where they may. See `plan.rules.media.text_moves`."""

    media_shift_positions: bool = False
    refusal: str | None = None

    def __str__(self) -> str:
        """In words, for `acmserve doctor`."""
        if self.refusal is not None:
            return f"prompts with images are computed exactly ({self.refusal})"
        where = "where the same images stand in front of it" if self.media_shift_positions else "wherever it stands"
        return f"text between images moves {where}"

    @classmethod
    def of_model(cls, model_config: Any) -> MediaRule:
        """The rule for a vLLM `ModelConfig`."""
        uses_mrope, pruned = bool(model_config.uses_mrope), model_config.multimodal_config
        reasons = {
            "media: attention crosses to an encoder": model_config.is_encoder_decoder,
            "media: images attend in both directions": model_config.is_mm_prefix_lm,
            "media: positions have other axes than M-RoPE's three": uses_mrope and model_config.mrope_num_dims != 3,
            "media: vLLM prunes videos, which changes positions": pruned is not None
            and pruned.is_multimodal_pruning_enabled(),
        }
        refusal = next((reason for reason, holds in reasons.items() if holds), None)
        return cls(uses_mrope, refusal)
