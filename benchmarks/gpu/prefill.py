"""What a move saves: the same tokens through the model's layers again, in plain torch with fused attention.

One layer with random weights is timed and multiplied by the number of layers: whole models do not fit beside their KV
cache, and all layers cost the same. Left out, all in favour of the prefill: embedding and logits, the attention to the
text before the tokens, the routing of experts (an expert layer is timed as the dense layer of the same arithmetic).
What is cached is not written anywhere. Does not know how time is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from acmserve.bench.gpu.shapes import Latent, ModelShape
from acmserve.kernels.rope import angles

F = torch.nn.functional


class Layer:
    """One decoder layer of a model; call it with hidden states `[num_tokens, hidden_size]`, bf16."""

    def __init__(self, shape: ModelShape, num_tokens: int, device: str) -> None:
        self._shape, self._device = shape, device
        hidden, heads = shape.hidden_size, shape.num_heads
        self.gate_up = self._weight(2 * shape.mlp_size, hidden)
        self.down = self._weight(hidden, shape.mlp_size)
        cos, sin = (torch.from_numpy(table) for table in angles(shape.rope, range(num_tokens)))
        self.turns = torch.complex(cos, sin).to(torch.complex64).to(device)[:, None, :]
        self._attend: Callable[[Tensor], Tensor]
        if shape.latent is None:
            size = shape.head_size
            self.qkv = self._weight((heads + 2 * shape.num_kv_heads) * size, hidden)
            self.out = self._weight(hidden, heads * size)
            self._attend = self._grouped
        else:
            latent = shape.latent
            self.query_down = self._weight(latent.query_rank, hidden)
            self.query_up = self._weight(heads * (latent.nope_size + latent.rope_size), latent.query_rank)
            self.cached = self._weight(latent.rank + latent.rope_size, hidden)
            self.key_value_up = self._weight(heads * (latent.nope_size + latent.value_size), latent.rank)
            self.out = self._weight(hidden, heads * latent.value_size)
            self._attend = self._latent

    def __call__(self, hidden: Tensor) -> Tensor:
        """The layer's output, shaped as its input."""
        hidden = hidden + F.linear(self._attend(_norm(hidden)), self.out)
        gate, up = F.linear(_norm(hidden), self.gate_up).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, self.down)

    def _grouped(self, hidden: Tensor) -> Tensor:
        shape = self._shape
        qkv = F.linear(hidden, self.qkv).unflatten(-1, (-1, shape.head_size))
        query, key, value = qkv.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        if shape.qk_norm:
            query, key = _norm(query), _norm(key)
        return _attention(self._turn(query), self._turn(key), value, shape.num_heads)

    def _latent(self, hidden: Tensor) -> Tensor:
        shape, latent = self._shape, self._shape.latent
        assert isinstance(latent, Latent)
        query = F.linear(_norm(F.linear(hidden, self.query_down)), self.query_up).unflatten(-1, (shape.num_heads, -1))
        query_nope, query_rope = query.split([latent.nope_size, latent.rope_size], dim=-1)
        compressed, key_rope = F.linear(hidden, self.cached).split([latent.rank, latent.rope_size], dim=-1)
        expanded = F.linear(_norm(compressed), self.key_value_up).unflatten(-1, (shape.num_heads, -1))
        key_nope, value = expanded.split([latent.nope_size, latent.value_size], dim=-1)
        key_rope = self._turn(key_rope[:, None]).expand(-1, shape.num_heads, -1)
        # Fused kernels want values as wide as keys.
        padded = F.pad(value, (0, latent.nope_size + latent.rope_size - latent.value_size))
        query = torch.cat((query_nope, self._turn(query_rope)), dim=-1)
        attended = _attention(query, torch.cat((key_nope, key_rope), dim=-1), padded, shape.num_heads)
        return attended.unflatten(-1, (shape.num_heads, -1))[..., : latent.value_size].flatten(1)

    def _turn(self, x: Tensor) -> Tensor:
        """Interleaved pairs; the pairing changes numbers, not time."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2).to(x.dtype)

    def _weight(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, dtype=torch.bfloat16, device=self._device) * columns**-0.5


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def _attention(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    """Causal attention over `[num_tokens, heads, size]` in one fused kernel; `[num_tokens, num_heads * size]`."""
    batch = [x.transpose(0, 1)[None] for x in (query, key, value)]
    grouped = key.shape[1] != num_heads
    return F.scaled_dot_product_attention(*batch, is_causal=True, enable_gqa=grouped)[0].transpose(0, 1).flatten(1)
