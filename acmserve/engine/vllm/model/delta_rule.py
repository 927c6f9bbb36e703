"""vLLM's gated delta rule on a CPU, watched: whoever records transitions sees the inputs of every token.

    layer.forward -> vllm._custom_ops.chunk_gated_delta_rule_cpu                    many tokens of a sequence
                     vllm._custom_ops.fused_sigmoid_gating_delta_rule_update_cpu    one token of each
                     ^ replaced here, once a process                                unchanged themselves

A transition is the same recurrence without values, begun at the identity. So vLLM's own kernel makes it.

Knows vLLM's functions and their tensors. Does not know which tokens are to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from acmserve.engine.vllm.model.token_inputs import Watcher
from acmserve.errors import MoveRefused

CHUNK, STEP = "chunk_gated_delta_rule_cpu", "fused_sigmoid_gating_delta_rule_update_cpu"


@dataclass(frozen=True, slots=True)
class DeltaTokens:
    """Tokens of one sequence: `key` `[1, num_tokens, key_heads, key_size]`, the others `[1, num_tokens, heads]`.

    `rule` is vLLM's kernel for many tokens, with states of `state_type`. Where it `normalises`, keys are of any length.
    """

    key: Tensor
    gate: Tensor
    strength: Tensor
    state_type: torch.dtype
    normalises: bool
    rule: Callable[..., Any]

    @property
    def num_tokens(self) -> int:
        """How many tokens."""
        return self.key.shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory that is held."""
        return self.key.nbytes + self.gate.nbytes + self.strength.nbytes

    def joined(self, others: Sequence[DeltaTokens]) -> DeltaTokens:
        """These tokens, and others behind them."""
        parts = [self, *others]
        key, gate, strength = (
            torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("key", "gate", "strength")
        )
        return replace(self, key=key, gate=gate, strength=strength)

    def transition(self) -> Tensor:
        """The transition over them, `[heads, key_size, key_size]` in float32."""
        num_heads, key_size = self.gate.shape[2], self.key.shape[3]
        state = torch.eye(key_size, dtype=self.state_type).repeat(1, num_heads, 1, 1)
        self.rule(
            query=self.key,
            key=self.key,
            value=self.key.new_zeros(1, self.num_tokens, num_heads, key_size),
            g=self.gate,
            beta=self.strength,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=torch.tensor([0, self.num_tokens], dtype=torch.int32),
            head_first=False,
            use_qk_l2norm_in_kernel=self.normalises,
            initial_state_indices=torch.zeros(1, dtype=torch.int32),
        )
        return state[0].float()


class WatchedDeltaRule:
    """Callable as vLLM's function for many tokens. `watch` is called first, with what it is going to run on."""

    def __init__(self, rule: Callable[..., Any], watch: Watcher) -> None:
        self.rule = rule
        self._watch = watch

    def __call__(self, **inputs: Any) -> Any:
        starts = inputs["cu_seqlens"]
        self._watch(
            inputs["initial_state"],
            inputs["initial_state_indices"],
            lambda index: self._tokens(inputs, *starts[index : index + 2].tolist()),
        )
        return self.rule(**inputs)

    def _tokens(self, inputs: dict[str, Any], start: int, end: int) -> DeltaTokens:
        key, gate, strength = (inputs[name][:, start:end].clone() for name in ("key", "g", "beta"))
        normalises = inputs["use_qk_l2norm_in_kernel"]
        return DeltaTokens(key, gate, strength, inputs["initial_state"].dtype, normalises, self.rule)


class WatchedDeltaStep:
    """Callable as vLLM's function for one token of each sequence, which makes gates and strengths itself."""

    def __init__(self, rule: Callable[..., Any], step: Callable[..., Any], watch: Watcher) -> None:
        self.step = step
        self._rule = rule
        self._watch = watch

    def __call__(self, **inputs: Any) -> Any:
        self._watch(
            inputs["initial_state_source"],
            inputs["initial_state_indices"],
            lambda index: self._token(inputs, index),
        )
        return self.step(**inputs)

    def _token(self, inputs: dict[str, Any], index: int) -> DeltaTokens:
        import vllm._custom_ops as ops

        a, b = (inputs[name][index : index + 1].contiguous() for name in ("a", "b"))
        gate, strength = ops.fused_gdn_gating_cpu(A_log=inputs["A_log"], a=a, b=b, dt_bias=inputs["dt_bias"])
        key = inputs["k"][:, index : index + 1].clone()
        normalises = inputs["use_qk_l2norm_in_kernel"]
        return DeltaTokens(key, gate, strength, inputs["initial_state_source"].dtype, normalises, self._rule)


def watch_delta_rule(watch: Watcher) -> None:
    """Have `watch` called for all tokens of this process. Who watched before does no longer.

    Raises `MoveRefused` where this vLLM has no such functions.
    """
    import vllm._custom_ops as ops

    rule, step = getattr(ops, CHUNK, None), getattr(ops, STEP, None)
    if rule is None or step is None:
        raise MoveRefused(f"model: this vLLM has no {CHUNK if rule is None else STEP}, whose inputs tell transitions")
    rule = rule.rule if isinstance(rule, WatchedDeltaRule) else rule
    step = step.step if isinstance(step, WatchedDeltaStep) else step
    setattr(ops, CHUNK, WatchedDeltaRule(rule, watch))
    setattr(ops, STEP, WatchedDeltaStep(rule, step, watch))
