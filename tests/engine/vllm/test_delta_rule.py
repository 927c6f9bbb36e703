"""What the watched layers tell of tokens, beside vLLM's own kernels: two states run over the same tokens.

Each is `P S + C` behind them, with the same `C`. So their difference there is `P` times their difference in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import vllm._custom_ops as ops
from torch import Tensor

from acmserve.engine.vllm.model.delta_rule import CHUNK, STEP, DeltaTokens, watch_delta_rule
from acmserve.engine.vllm.model.state_space import DecayedTokens
from acmserve.engine.vllm.model.token_inputs import TokenInputs

KEY_HEADS, HEADS, SIZE, NUM_TOKENS = 2, 4, 64, 23
PLACES = torch.tensor([2, 1], dtype=torch.int32)
"""Two sequences run side by side, in these blocks. The second one has the same tokens, from another state on."""


class Layer:
    """Inputs of a layer of gated delta nets over some tokens, and its weights. Gates are slow."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)

        def tensor(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).bfloat16()

        self.query, self.key = (tensor(1, NUM_TOKENS, KEY_HEADS, SIZE) for _ in range(2))
        self.value = tensor(1, NUM_TOKENS, HEADS, SIZE)
        self.a, self.b = tensor(NUM_TOKENS, HEADS), tensor(NUM_TOKENS, HEADS)
        self.rates, self.bias = torch.full((HEADS,), -4.0), torch.zeros(HEADS).bfloat16()
        self.states = torch.randn(3, HEADS, SIZE, SIZE, generator=draw)

    def step(self, index: int) -> None:
        """Token `index` of both sequences, by the kernel that decodes."""

        def twice(tensor: Tensor, dim: int) -> Tensor:
            token = tensor.narrow(dim, index, 1)
            return torch.cat([token, token], dim=dim).contiguous()

        ops.fused_sigmoid_gating_delta_rule_update_cpu(
            A_log=self.rates,
            dt_bias=self.bias,
            q=twice(self.query, 1),
            k=twice(self.key, 1),
            v=twice(self.value, 1),
            a=twice(self.a, 0),
            b=twice(self.b, 0),
            initial_state_source=self.states,
            initial_state_indices=PLACES,
            cu_seqlens=torch.tensor([0, 1, 2], dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
        )

    def chunk(self, start: int, end: int) -> None:
        """The tokens `[start, end)` of both sequences, by the kernel that prefills."""

        def twice(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[:, start:end], tensor[:, start:end]], dim=1).contiguous()

        a, b = (torch.cat([one[start:end], one[start:end]]).contiguous() for one in (self.a, self.b))
        gate, strength = ops.fused_gdn_gating_cpu(A_log=self.rates, a=a, b=b, dt_bias=self.bias)
        ops.chunk_gated_delta_rule_cpu(
            query=twice(self.query),
            key=twice(self.key),
            value=twice(self.value),
            g=gate,
            beta=strength,
            initial_state=self.states,
            output_final_state=True,
            cu_seqlens=torch.tensor([0, end - start, 2 * (end - start)], dtype=torch.int32),
            head_first=False,
            use_qk_l2norm_in_kernel=True,
            initial_state_indices=PLACES,
        )

    def difference(self) -> Tensor:
        """Of the two states as they are now."""
        return self.states[2] - self.states[1]


@pytest.fixture
def seen() -> Iterator[list[TokenInputs]]:
    """The inputs of the second sequence, as the watcher gets them."""
    rule, step = getattr(ops, CHUNK), getattr(ops, STEP)
    found: list[TokenInputs] = []

    def watch(states: Tensor, block_ids: Tensor, inputs_of: Callable[[int], TokenInputs]) -> None:
        assert block_ids.tolist() == PLACES.tolist()
        found.append(inputs_of(1))

    watch_delta_rule(watch)
    yield found
    setattr(ops, CHUNK, rule)
    setattr(ops, STEP, step)


def off(layer: Layer, before: Tensor, transition: Tensor) -> float:
    """How far the states are from what a transition over the tokens says, of what is left of their difference."""
    left = layer.difference()
    return float((transition @ before - left).norm() / left.norm())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("num_prefilled", [0, 9, NUM_TOKENS])
def test_watch_delta_rule_tells_the_transition_over_prefilled_and_decoded_tokens(
    seed: int, num_prefilled: int, seen: list[Any]
) -> None:
    """Control: without the last token it is another one."""
    layer = Layer(seed)
    before = layer.difference()
    if num_prefilled:
        layer.chunk(0, num_prefilled)
    for index in range(num_prefilled, NUM_TOKENS):
        layer.step(index)
    first, *others = seen
    tokens = first.joined(others)
    assert isinstance(tokens, DeltaTokens)
    assert tokens.num_tokens == NUM_TOKENS
    assert off(layer, before, tokens.transition()) < 0.02
    layer_of_less = DeltaTokens(
        tokens.key[:, :-1], tokens.gate[:, :-1], tokens.strength[:, :-1], tokens.state_type, True, tokens.rule
    )
    assert off(layer, before, layer_of_less.transition()) > 0.05


def test_watching_twice_watches_once(seen: list[TokenInputs]) -> None:
    others: list[int] = []
    watch_delta_rule(lambda states, block_ids, inputs_of: others.append(inputs_of(0).num_tokens))
    layer = Layer(3)
    layer.chunk(0, 5)
    layer.step(5)
    assert (others, seen) == ([5, 1], [])


def test_what_decays_is_multiplied() -> None:
    parts = [DecayedTokens(n, torch.full((3, 1, 1), 0.5**n)) for n in (1, 2, 4)]
    whole = parts[0].joined(parts[1:])
    assert whole.num_tokens == 7
    assert torch.allclose(whole.transition(), torch.full((3, 1, 1), 0.5**7))
