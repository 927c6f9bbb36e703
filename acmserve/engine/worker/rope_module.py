"""The frequencies of one rotary embedding module of vLLM, as the numbers that its table was made of.

For the classes named in `_FREQUENCIES` they are computed anew from the module's parameters, by the float32 arithmetic
of vLLM, then held in float64. For moves across 131,072 positions, tables from the ideal frequencies would be twice as
far from the engine's own keys. For any other class they are read off its `cos_sin_cache`. Either way they must
reproduce that table. A class that changed its meaning, or whose table is no rotation by fixed frequencies, is refused.

Whether a layer's keys carry this rotation is not its matter (`rope_check.py`).

Source of the families: vllm/model_executor/layers/rotary_embedding (0.32.0). YaRN: arXiv 2309.00071.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from acmserve.errors import MoveRefused
from acmserve.kernels.rope import Rope


def is_rotary(module: nn.Module) -> bool:
    """Whether a module is one of vLLM's rotary embeddings, of whatever class."""
    tables = ("cos_sin_cache", "long_short_cos_sin_cache")
    return isinstance(getattr(module, "rotary_dim", None), int) and any(hasattr(module, name) for name in tables)


def num_rows_of(module: nn.Module) -> int:
    """Positions that a rotary module has a row for. 0 where it has no table that is known."""
    facts: Any = module
    tables = [getattr(facts, name, None) for name in ("cos_sin_cache", "long_short_cos_sin_cache")]
    num_rows = [table.shape[0] for table in tables if isinstance(table, Tensor) and table.dim() == 2]
    if not num_rows or not hasattr(facts, "long_short_cos_sin_cache"):
        return max(num_rows, default=0)
    num_short = int(facts.original_max_position_embeddings)
    return num_rows[0] - num_short if facts.use_long_rope else num_short


def rope_of_module(module: nn.Module) -> Rope:
    """The rotation that one of vLLM's rotary embedding modules applies.

    Raises MoveRefused where no fixed frequencies reproduce the module's own table.
    """
    name = type(module).__name__
    facts: Any = module
    if name == "Phi3LongRoPEScaledRotaryEmbedding":
        facts = _LongRope(facts)
    if name in _FREQUENCIES:
        frequencies, position_scale = _FREQUENCIES[name](facts)
        magnitude = float(getattr(facts, "mscale", 1.0))
    else:
        frequencies, position_scale, magnitude = _read_table(facts)
    _check_table(facts, frequencies, position_scale, magnitude)
    inv_freq = (frequencies.double() / position_scale).tolist()
    return Rope(tuple(inv_freq), int(facts.rotary_dim), bool(facts.is_neox_style))


def _table(module: Any) -> Tensor:
    """`cos_sin_cache`, `[num_positions, rotary_dim]`: cosines, then sines."""
    table = getattr(module, "cos_sin_cache", None)
    if not isinstance(table, Tensor) or table.dim() != 2 or table.shape[1] != module.rotary_dim:
        raise MoveRefused(f"rope: {type(module).__name__} has no table of {module.rotary_dim} columns")
    return table


def _read_table(module: Any) -> tuple[Tensor, float, float]:
    """Frequencies, 1.0 and magnitude of a table, from rows 1, 2, 4, ...: each tells the last one's error in half.

    angle of row 2p, known modulo 2 pi   ->   the one value next to 2 x angle of row p
    """
    table = _table(module)
    last = table.shape[0] - 1
    rows = [2**i for i in range(last.bit_length())]
    cos, sin = table[[0, *rows]].float().cpu().double().chunk(2, dim=-1)
    magnitude = float(cos[0].mean())
    frequencies = torch.zeros_like(cos[0])
    for index, row in enumerate(rows, start=1):
        expected = frequencies * row
        off = torch.atan2(sin[index], cos[index]) - expected
        frequencies = (expected + off - 2 * math.pi * torch.round(off / (2 * math.pi))) / row
    return frequencies.float(), 1.0, magnitude


def _check_table(module: Any, frequencies: Tensor, position_scale: float, magnitude: float) -> None:
    """Raise MoveRefused unless the frequencies reproduce rows of the module's table."""
    table = _table(module)
    last = table.shape[0] - 1
    rows = torch.tensor(sorted({0, last, *(min(2**i + i, last) for i in range(last.bit_length()))}))
    turn = (rows.float() / position_scale)[:, None] * frequencies[None, :]
    expected = torch.cat((turn.cos(), turn.sin()), dim=-1) * magnitude
    found = table[rows.to(table.device)].float().cpu()
    # One rounding of the table's type, and one ulp of a frequency (a GPU's pow differs by that much).
    allowed = abs(magnitude) * (torch.finfo(table.dtype).eps + turn.abs().repeat(1, 2) * 2.0**-22 + 1e-6)
    if not bool(((found - expected).abs() <= allowed).all()):
        raise MoveRefused(f"rope: {type(module).__name__}'s table is no rotation by the frequencies of its parameters")


def _powers(base: float, num_dims: int, divisor: int) -> Tensor:
    """`1 / base ** (2i / divisor)` for the pairs of `num_dims` dimensions, in vLLM's float32 arithmetic."""
    result: Tensor = 1.0 / (base ** (torch.arange(0, num_dims, 2, dtype=torch.float) / divisor))
    return result


def _plain(m: Any) -> tuple[Tensor, float]:
    return _powers(m.base, m.rotary_dim, m.rotary_dim), 1.0


def _linear(m: Any) -> tuple[Tensor, float]:
    if len(m.scaling_factors) != 1:
        raise MoveRefused(f"rope: linear scaling by {len(m.scaling_factors)} factors at once")
    return _powers(m.base, m.rotary_dim, m.rotary_dim), float(m.scaling_factors[0])


def _ntk(m: Any) -> tuple[Tensor, float]:
    """Static NTK scaling (a fixed larger base)."""
    if m.mixed_b is not None:
        raise MoveRefused("rope: mixed NTK scaling is not supported")
    powers = _powers(m.base * m.scaling_factor, m.rotary_dim, m.rotary_dim)
    return powers / m.scaling_factor ** (2 / m.rotary_dim), 1.0


def _llama3(m: Any) -> tuple[Tensor, float]:
    powers = _powers(m.base, m.rotary_dim, m.rotary_dim)
    wavelength = 2 * math.pi / powers
    smooth: Tensor | float = 0.0
    if m.low_freq_factor != m.high_freq_factor:
        smooth = (m.orig_max_position / wavelength - m.low_freq_factor) / (m.high_freq_factor - m.low_freq_factor)
    scaled = powers / m.scaling_factor
    blend = (1 - smooth) * powers / m.scaling_factor + smooth * powers
    slow = torch.where(wavelength > m.orig_max_position / m.low_freq_factor, scaled, blend)
    return torch.where(wavelength < m.orig_max_position / m.high_freq_factor, powers, slow), 1.0


def _yarn(m: Any) -> tuple[Tensor, float]:
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp between (arXiv 2309.00071, section 3.2)."""
    pos_freqs = m.base ** (torch.arange(0, m.rotary_dim, 2, dtype=torch.float) / m.rotary_dim)

    def pair_that_turns(num_rotations: float) -> float:
        turns = m.max_position_embeddings / (num_rotations * 2 * math.pi)
        return float(m.rotary_dim * math.log(turns) / (2 * math.log(m.base)))

    low, high = pair_that_turns(m.beta_fast), pair_that_turns(m.beta_slow)
    if getattr(m, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, m.rotary_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(m.rotary_dim // 2, dtype=torch.float) - low) / width).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (m.scaling_factor * pos_freqs) * (1 - kept) + 1.0 / pos_freqs * kept, 1.0


def _mrope(m: Any) -> tuple[Tensor, float]:
    """Three positions per token, equal ones for text: then the sections and their order do not matter.

    Sessions hold text only (`requests/admission.py` refuses multimodal requests and keeps them from being sources).
    """
    return _plain(m) if m.scaling_factor is None else _yarn(m)


def _longrope(m: Any) -> tuple[Tensor, float]:
    """vLLM chooses the short or the long factors once, from the engine's `max_model_len`."""
    powers = m.base ** (torch.arange(0, m.rotary_dim, 2, dtype=torch.float) / m.rotary_dim)
    return 1.0 / (torch.tensor(m.factors, dtype=torch.float) * powers), 1.0


class _LongRope:
    """The half of a long-rope module that the engine uses, in the words of the other classes."""

    def __init__(self, m: Any) -> None:
        if not isinstance(m.use_long_rope, bool):
            raise MoveRefused("rope: longrope switches its frequencies")
        self.base, self.rotary_dim, self.is_neox_style = m.base, m.rotary_dim, True
        num_short = m.original_max_position_embeddings
        table = m.long_short_cos_sin_cache
        self.cos_sin_cache = table[num_short:] if m.use_long_rope else table[:num_short]
        self.factors = m.long_factor if m.use_long_rope else m.short_factor
        self.mscale = m.long_mscale if m.use_long_rope else m.short_mscale


def _proportional(m: Any) -> tuple[Tensor, float]:
    """Gemma 4: the pairs behind `rope_angles` do not turn."""
    turning = _powers(m.base, 2 * m.rope_angles, m.head_size)
    return torch.cat((turning, torch.zeros(m.nope_angles))), 1.0


_FREQUENCIES: Mapping[str, Callable[[Any], tuple[Tensor, float]]] = {
    "RotaryEmbedding": _plain,
    "LinearScalingRotaryEmbedding": _linear,
    "NTKScalingRotaryEmbedding": _ntk,
    "Llama3RotaryEmbedding": _llama3,
    "YaRNScalingRotaryEmbedding": _yarn,
    "Gemma4RotaryEmbedding": _proportional,
    "Phi3LongRoPEScaledRotaryEmbedding": _longrope,
    "MRotaryEmbedding": _mrope,
    "DeepseekScalingRotaryEmbedding": _yarn,
}
