"""A model that is led along a given text while its distributions are kept: a logits processor of vLLM.

    extra_args = {"forced_id": "case 3/reuse", "forced": [412, 88, 9]}       max_tokens = 3

Each step hands out the logits as the model gave them (row i: what it expected in place of token i). Then the step
allows nothing but the next token of the text. So one request tells how likely every token of a continuation was,
whatever prefix caching or moved KV stood before it. `take` is for the process in which the engine itself runs.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

_kept: dict[str, dict[int, torch.Tensor]] = {}


class ForcedModel(AdapterLogitsProcessor):
    """Forces the tokens of a request that names some, and leaves others alone."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """Called again when a preempted request comes back. Rows are kept by step, so the later ones stand."""
        extra: dict[str, Any] = params.extra_args if params.extra_args is not None else {}
        if "forced_id" not in extra:
            return None
        tokens, rows = extra["forced"], _kept.setdefault(extra["forced_id"], {})

        def force(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            step = min(len(output_token_ids), len(tokens) - 1)
            rows[step] = logits.detach().to("cpu", torch.float32, copy=True)
            forced = torch.full_like(logits, float("-inf"))
            forced[tokens[step]] = 0.0
            return forced

        return force


def take(forced_id: str) -> torch.Tensor:
    """The logits of a finished request, float32 `[num_tokens, vocab]`. They are not kept any longer."""
    rows = _kept.pop(forced_id)
    return torch.stack([rows[step] for step in range(len(rows))])
