"""A model that says what a script has written down: a logits processor of vLLM that forces every token.

    vllm_xargs = {"script_id": "s1", "script": ["<tool_call>...</tool_call>", "The answer."]}

The first request with this id is answered with the first line, the next with the second. Prefill, KV cache, chat
template, guided decoding and tool parser are the real ones. Under guided decoding a line has to be what the grammar
allows. Where the grammar has masked the next token, the random weights choose. Requests without a script get
`UNSCRIPTED`.

Small models do not call tools by themselves. This model stands behind the same interface in tests and benchmarks.
Loaded by `--logits-processors acmserve.bench.models.scripted_model:ScriptedModel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

UNSCRIPTED = "Noted."
STEP = "script_step"


class ScriptedModel(AdapterLogitsProcessor):
    """Forces the tokens of the line that is due, then the end of the answer."""

    unscripted: Sequence[str] = (UNSCRIPTED,)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
        self.end_token: int = self._tokenizer.eos_token_id
        self._num_seen: Counter[str] = Counter()

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """Called again when the engine takes a request back into its batch: the step is kept in the request itself."""
        extra: dict[str, Any] = params.extra_args if params.extra_args is not None else {}
        script = extra.get("script", self.unscripted)
        if STEP not in extra:
            extra[STEP] = self._num_seen[extra.get("script_id", "")]
            self._num_seen[extra.get("script_id", "")] += 1
        line = script[min(extra[STEP], len(script) - 1)]
        tokens = [*self._tokenizer.encode(line, add_special_tokens=False), self.end_token]

        def force(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            token = tokens[min(len(output_token_ids), len(tokens) - 1)]
            if torch.isneginf(logits[token]):
                return logits
            forced = torch.full_like(logits, float("-inf"))
            forced[token] = 0.0
            return forced

        return force
