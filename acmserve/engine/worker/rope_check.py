"""Which rotation is in the cached keys of each attention layer, or why it may not be turned further.

`ropes_of_model` asks the loaded model, per layer, for three things. These are the module that holds the attention
layer, the rotary embedding which its `forward` really applies (`rope_source.py`), and that embedding's class. The
frequencies are computed anew from the module's parameters, by the float32 arithmetic of vLLM, then held in float64. For
moves across 131,072 positions, tables from the ideal frequencies would be twice as far from the engine's own keys. They
must reproduce the module's `cos_sin_cache`, so a class that changed its meaning is refused instead of silently
mis-rotated.

`describe_config` judges a Hugging Face configuration the same way as far as that goes without a model, for
`acmserve doctor`. Does not know KV caches, layouts or blocks.

Source of the families: vllm/model_executor/layers/rotary_embedding (0.32.0). YaRN: arXiv 2309.00071.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from acmserve.engine.worker.rope_source import rope_use
from acmserve.errors import MoveRefused
from acmserve.kernels.rope import Rope

NO_LATENT = "rope: multi-head latent attention is not supported"
REFUSED_CLASSES = {
    "DynamicNTKScalingRotaryEmbedding": "rope: dynamic NTK is not additive",
    "DynamicNTKAlphaRotaryEmbedding": "rope: dynamic NTK is not additive",
    "DualChunkRotaryEmbedding": "rope: dual chunk attention counts positions per chunk",
    "FourierRotaryEmbedding": "rope: Fourier position embedding is not a rotation by one frequency",
    "MRotaryEmbeddingInterleaved": "rope: this form of mrope is not supported",
    "BailingMRotaryEmbedding": "rope: this form of mrope is not supported",
    "Ernie4_5_VLRotaryEmbedding": "rope: this form of mrope is not supported",
    "DeepseekV4ScalingRotaryEmbedding": NO_LATENT,
}
REFUSED_TYPES = {
    "dynamic": "rope: dynamic NTK is not additive",
    "bailing_mrope": "rope: this form of mrope is not supported",
    "deepseek_yarn": NO_LATENT,
}
SUPPORTED_TYPES = frozenset({"default", "linear", "ntk", "llama3", "yarn", "proportional", "longrope", "su", "mrope"})
LEARNED_POSITIONS = frozenset({"wpe", "embed_positions", "position_embedding", "position_embeddings"})


def ropes_of_model(model: nn.Module, layer_names: Sequence[str]) -> dict[str, Rope | None]:
    """The rotation in the keys of each named attention layer. None for a layer whose keys carry no position.

    Args:
        model: a loaded vLLM model.
        layer_names: names of `Attention` modules as vLLM's KV caches are named (`model.layers.0.self_attn.attn`).

    Raises:
        MoveRefused: at least one layer's keys may not be turned; the reason names the fact.

    """
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in LEARNED_POSITIONS and getattr(module, "weight", None) is not None:
            raise MoveRefused(f"positions: learned position embeddings ({name})")
    holders = _holders(model)
    known: dict[int, Rope] = {}
    ropes: dict[str, Rope | None] = {}
    for name in layer_names:
        if name not in holders:
            raise MoveRefused(f"model: attention layer {name} is not among its modules")
        holder, attribute = holders[name]
        ropes[name] = _rope_of_layer(holder, attribute, known)
    return ropes


def rope_of_module(module: nn.Module) -> Rope:
    """The rotation that one of vLLM's rotary embedding modules applies.

    Raises MoveRefused for a class whose rotation is not additive or not known, and where the recomputed frequencies do
    not reproduce the module's own table.
    """
    name = type(module).__name__
    if name in REFUSED_CLASSES:
        raise MoveRefused(REFUSED_CLASSES[name])
    if name not in _FREQUENCIES:
        raise MoveRefused(f"rope: unknown class {name}")
    facts: Any = module
    if name == "Phi3LongRoPEScaledRotaryEmbedding":
        facts = _LongRope(facts)
    frequencies, position_scale = _FREQUENCIES[name](facts)
    _check_table(facts, frequencies, position_scale, magnitude=float(getattr(facts, "mscale", 1.0)))
    inv_freq = (frequencies.double() / position_scale).tolist()
    return Rope(tuple(inv_freq), int(facts.rotary_dim), bool(facts.is_neox_style))


def describe_config(config: Any) -> str:
    """Positions of a model in words, from its Hugging Face configuration alone.

    Raises MoveRefused where they do not allow moves. The last word has the loaded model (`ropes_of_model`): how its
    code applies the rotation is not in a configuration.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text, "is_encoder_decoder", False):
        raise MoveRefused("model: encoder-decoder attention is not supported")
    if getattr(text, "alibi", False) or getattr(text, "model_type", "") in {"bloom", "mpt", "baichuan_alibi"}:
        raise MoveRefused("positions: alibi")
    if getattr(text, "kv_lora_rank", None):
        raise MoveRefused(NO_LATENT)
    layer_types = set(getattr(text, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise MoveRefused(f"model: layers of kind {', '.join(sorted(layer_types - {'full_attention'}))}")
    parameters = _rope_parameters(text)
    if not parameters:
        raise MoveRefused("positions: the configuration names no rotary embedding")
    return "; ".join(sorted({_describe_parameters(text, entry) for entry in parameters}))


def _holders(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Layer name -> (the module that holds the attention layer, the attribute it holds it by)."""
    holders: dict[str, tuple[nn.Module, str]] = {}
    for holder in model.modules():
        for attribute, child in holder.named_children():
            layer_name = getattr(child, "layer_name", None)
            if isinstance(layer_name, str):
                holders.setdefault(layer_name, (holder, attribute))
    return holders


def _rope_of_layer(holder: nn.Module, attribute: str, known: dict[int, Rope]) -> Rope | None:
    attention: Any = getattr(holder, attribute)
    if getattr(getattr(attention, "impl", None), "alibi_slopes", None) is not None:
        raise MoveRefused("positions: alibi")
    if getattr(attention, "kv_lora_rank", None):
        raise MoveRefused(NO_LATENT)
    use = rope_use(type(holder), attribute)
    if use.condition is not None and not _holds(holder, use.condition):
        return None
    module: Any = getattr(holder, use.attribute, None)
    if not isinstance(module, nn.Module):
        raise MoveRefused(f"rope: {type(holder).__name__}.{use.attribute} is not a module")
    if id(module) not in known:
        known[id(module)] = rope_of_module(module)
    if module.head_size != attention.head_size:
        raise MoveRefused(f"rope: head size {module.head_size}, the attention's is {attention.head_size}")
    return known[id(module)]


def _holds(holder: nn.Module, attribute: str) -> bool:
    """Truth of `self.<attribute>` as `forward` tests it: a bool, or a module that may be None."""
    value = getattr(holder, attribute, None)
    if isinstance(value, bool) or value is None or isinstance(value, nn.Module):
        return bool(value) if isinstance(value, bool) else value is not None
    raise MoveRefused(f"positions: {type(holder).__name__} tests {attribute}, which is a {type(value).__name__}")


def _check_table(module: Any, frequencies: Tensor, position_scale: float, magnitude: float) -> None:
    """Raise MoveRefused unless the frequencies reproduce rows of `cos_sin_cache`, `[num_positions, rotary_dim]`."""
    table = getattr(module, "cos_sin_cache", None)
    if not isinstance(table, Tensor) or table.dim() != 2 or table.shape[1] != 2 * frequencies.numel():
        raise MoveRefused(f"rope: {type(module).__name__} has no table of {2 * frequencies.numel()} columns")
    last = table.shape[0] - 1
    rows = torch.tensor(sorted({0, last, *(min(2**i + i, last) for i in range(last.bit_length()))}))
    turn = (rows.float() / position_scale)[:, None] * frequencies[None, :]
    expected = torch.cat((turn.cos(), turn.sin()), dim=-1) * magnitude
    found = table[rows.to(table.device)].float().cpu()
    # One rounding of the table's type, and one ulp of a frequency (a GPU's pow differs by that much).
    allowed = abs(magnitude) * (torch.finfo(table.dtype).eps + turn.abs().repeat(1, 2) * 2.0**-22 + 1e-6)
    if not bool(((found - expected).abs() <= allowed).all()):
        raise MoveRefused(f"rope: {type(module).__name__}'s table is not what its parameters say")


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


def _rope_parameters(text: Any) -> list[dict[str, Any]]:
    """The rope entries of a configuration, one per layer type where it distinguishes them. [] where it has none."""
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [entry for entry in parameters.values() if isinstance(entry, dict)]
    if nested:
        return nested
    if parameters:
        return [dict(parameters)]
    theta = getattr(text, "rope_theta", None) or getattr(text, "rotary_emb_base", None)
    if theta is not None:
        return [{"rope_type": "default", "rope_theta": theta}]
    return [{"rope_type": "default"}] if getattr(text, "rotary_dim", None) else []


def _describe_parameters(text: Any, entry: dict[str, Any]) -> str:
    kind = str(entry.get("rope_type") or entry.get("type") or "default")
    if entry.get("use_fope"):
        raise MoveRefused(REFUSED_CLASSES["FourierRotaryEmbedding"])
    if kind in REFUSED_TYPES:
        raise MoveRefused(REFUSED_TYPES[kind])
    if kind not in SUPPORTED_TYPES:
        raise MoveRefused(f"rope: unknown type {kind}")
    heads = getattr(text, "num_attention_heads", 0)
    head_size = getattr(text, "head_dim", None) or (getattr(text, "hidden_size", 0) // heads if heads else 0)
    factor = entry.get("partial_rotary_factor") or getattr(text, "partial_rotary_factor", None) or 1.0
    rot_dim = getattr(text, "rotary_dim", None) or int(head_size * float(factor))
    scaling = "no scaling" if kind in ("default", "mrope") else f"{kind} scaling"
    if "mrope_section" in entry:
        scaling += ", three positions per token (text only)"
    return f"rotary embedding, {rot_dim} of {head_size} dimensions turn, {scaling}"
