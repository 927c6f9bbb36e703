"""A model's class, built small on this machine with random weights: what can be known of a model without its weights.

    configuration  ->  few layers, few heads of the same size, narrow MLPs, few experts  ->  vLLM's own model class

What decides about its KV stays as it is: head size, rotary parameters, kinds of layers, windows, numbers of positions.
The KV cache groups of the built model are the engine's own.

Does not know rotations, nor what a model is judged by.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from acmserve.engine.vllm.seams import KV_CACHE_GROUPS
from acmserve.seams import load

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

NUM_LAYERS = 8
"""Most interleavings of kinds of layers come round in eight. A configuration that lists its kinds has each of them."""
LARGEST = {
    "vocab_size": 4096,
    "vocab_size_per_layer_input": 4096,
    "intermediate_size": 256,
    "ffn_hidden_size": 256,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 8,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_kv_shared_layers": 0,
    "num_layers_per_stack": 1,
}
"""Fields of a configuration that say nothing of its KV, and the most that the small model has of each."""
_HIDDEN = 1024


@dataclass(frozen=True, slots=True)
class SmallBuild:
    """The built model and the configuration of the engine that would serve it.

    `drafter` is the model of its drafter: an EAGLE head, an MTP module. None without speculative decoding by one.
    """

    model: nn.Module
    vllm_config: VllmConfig
    drafter: nn.Module | None = None

    @property
    def layers(self) -> dict[str, Any]:
        """vLLM's layers that keep KV or a state, by name."""
        context = self.vllm_config.compilation_config.static_forward_context
        return {name: layer for name, layer in context.items() if hasattr(layer, "get_kv_cache_spec")}

    def kv_cache_config(self, *, hybrid: bool = True) -> KVCacheConfig:
        """The KV cache groups, with the hybrid KV cache manager or without it. The pool has one block.

        Raises what vLLM raises where it can make no groups.
        """
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends import utils as backends
        from vllm.v1.kv_cache_interface import KVCacheConfig

        # As vLLM's executors do it behind the load: with recurrent states, blocks of all groups are of one size.
        current_platform.update_block_size_for_backend(self.vllm_config)
        specs = {
            name: spec
            for name, layer in self.layers.items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
            if (spec := layer.get_kv_cache_spec(self.vllm_config)) is not None
        }
        used = {layer.get_attn_backend() for layer in self.layers.values() if hasattr(layer, "get_attn_backend")}
        supported = [layout.name for layout in backends.get_supported_kv_cache_layouts(used)]
        backends.resolve_kv_cache_layout(self.vllm_config, [supported], specs.values())
        scheduler = self.vllm_config.scheduler_config
        before = scheduler.disable_hybrid_kv_cache_manager
        scheduler.disable_hybrid_kv_cache_manager = before or not hybrid
        try:
            return KVCacheConfig(1, [], load(KV_CACHE_GROUPS)(self.vllm_config, specs))
        finally:
            scheduler.disable_hybrid_kv_cache_manager = before


@contextmanager
def small_build(folder: str, **settings: Any) -> Iterator[SmallBuild]:
    """Build the model of a Hugging Face folder small. `settings` are vLLM's engine arguments.

    Raises whatever vLLM raises where it cannot build this model.
    """
    from vllm.engine.arg_utils import EngineArgs

    defaults: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "language_model_only": True,
    }
    if torch.cpu._is_amx_tile_supported():
        # There vLLM chooses AMX_MLA for latent attention, which takes no float32 weights. The cache is the same.
        defaults["attention_backend"] = "CPU_MLA"
    failed: Exception | None = None
    for narrow in (True, False):
        arguments = EngineArgs(model=folder, hf_overrides=_Shrink(narrow), **(defaults | settings))
        try:
            vllm_config = arguments.create_engine_config()
            with _one_rank(vllm_config):
                model, drafter = _build(vllm_config), _build_drafter(vllm_config)
                break
        except Exception as error:  # noqa: BLE001 -- raised again where the second form fails, too
            failed = failed or error
    else:
        assert failed is not None
        raise failed
    with _one_rank(vllm_config):
        yield SmallBuild(model, vllm_config, drafter)


def _build_drafter(vllm_config: VllmConfig) -> nn.Module | None:
    """vLLM makes a drafter's configuration small as it does the model's. Its draft models have loaders of their own."""
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.use_eagle():
        return None
    return _build(vllm_config, speculative.draft_model_config)


def _build(vllm_config: VllmConfig, model_config: ModelConfig | None = None) -> nn.Module:
    """As vLLM's loaders do it, with random weights."""
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    device = vllm_config.device_config.device
    with set_default_torch_dtype(vllm_config.model_config.dtype), device:
        model = initialize_model(vllm_config, model_config=model_config)
    fill_random(model)
    process_weights_after_loading(model, model_config or vllm_config.model_config, device)
    return model.eval()


def fill_random(model: nn.Module) -> None:
    """Random weights, the same at each call: norms near one, matrices that keep the size of what they get."""
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for parameter in model.parameters():
            device = parameter.device
            generator = generators.setdefault(device, torch.Generator(device).manual_seed(1))
            if not parameter.is_floating_point():
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.normal_(1, 0.1, generator=generator)


@contextmanager
def _one_rank(vllm_config: VllmConfig) -> Iterator[None]:
    """vLLM's groups of processes, of this process alone. Those of an engine that lives here are used as they are."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform

    with set_current_vllm_config(vllm_config):
        if parallel_state.model_parallel_is_initialized():
            yield
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                backend = current_platform.dist_backend
                parallel_state.init_distributed_environment(1, 0, f"file://{folder}/ranks", 0, backend)
                parallel_state.initialize_model_parallel(1, 1)
                yield
            finally:
                parallel_state.destroy_model_parallel()
                parallel_state.destroy_distributed_environment()


class _Shrink:
    """Makes a configuration small. vLLM calls it with each configuration that it reads."""

    def __init__(self, narrow: bool) -> None:
        self._narrow = narrow

    def __call__(self, config: Any) -> Any:
        text = config.get_text_config()
        if not hasattr(text, "num_hidden_layers"):
            return config  # vLLM's stand-in, to learn whether the override changes the model's type
        num_layers = self._num_layers(text)
        for owner in {id(part): part for part in (config, text)}.values():
            if getattr(owner, "quantization_config", None) is not None:
                del owner.quantization_config
        for name, largest in LARGEST.items():
            if isinstance(getattr(text, name, None), int):
                setattr(text, name, min(getattr(text, name), largest))
        if isinstance(getattr(text, "pad_token_id", None), int) and text.pad_token_id >= text.vocab_size:
            text.pad_token_id = 0
        if self._narrow:
            _narrow_heads(text)
        for name, entries in list(vars(text).items()):
            if isinstance(entries, list | tuple) and len(entries) == text.num_hidden_layers:
                setattr(text, name, list(entries)[:num_layers])  # an entry for each layer
        with suppress(AttributeError, NotImplementedError):  # some configurations count their layers themselves
            text.num_hidden_layers = num_layers
        return config

    def _num_layers(self, text: Any) -> int:
        kinds = list(getattr(text, "layer_types", None) or [])
        first_of_each = max((kinds.index(kind) + 1 for kind in set(kinds)), default=NUM_LAYERS)
        return int(min(text.num_hidden_layers, max(first_of_each, NUM_LAYERS if not kinds else 2)))


def _narrow_heads(text: Any) -> None:
    """Fewer heads of the same size: hidden size, query heads and key heads shrink together."""
    hidden, heads = getattr(text, "hidden_size", 0), getattr(text, "num_attention_heads", 0)
    if not isinstance(heads, int) or not heads or hidden <= _HIDDEN or hidden % heads:
        return
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    factor = 1
    while (2 * factor) <= hidden // _HIDDEN and math.gcd(heads, 2 * factor) == 2 * factor and heads > 2 * factor:
        factor *= 2
    fewer = heads // factor
    if factor == 1 and kv_heads == heads:
        fewer = max(1, _HIDDEN * heads // hidden)  # 71 heads have no half
    if isinstance(kv_heads, int):
        text.num_key_value_heads = fewer if kv_heads == heads else max(1, kv_heads // factor)
    text.hidden_size, text.num_attention_heads = hidden // heads * fewer, fewer
