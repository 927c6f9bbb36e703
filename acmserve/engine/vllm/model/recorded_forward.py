"""A forward pass of the loaded model at chosen positions, with the keys and values that it would cache.

    tokens 0 .. n-1 at positions p .. p+n-1
        model  ->  layer 0's attention(q, k, v)  ->  ...  ->  layer L's attention(q, k, v)
                                       k, v recorded                          k, v recorded

vLLM runs a model without attention metadata when it measures memory. Nothing is read from the KV cache then, and
nothing is written to it. What layers with a cache or a state answer is set to zeros, for some backends leave it
undefined. So the keys of a layer depend on the tokens and on the positions alone. `skip_compiled` makes it an eager
run, in which the hooks are called.

Decision: layers that an adapter may change are run as the base model has them. Adapters change the products in front of
the rotation, and vLLM's wrappers around such layers know no batch here.

Does not know rotations, nor what the keys are compared with.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class RecordedKV(NamedTuple):
    """Keys and values of one layer, float32 on the CPU, each `[num_tokens, num_kv_heads, size]`."""

    key: Tensor
    value: Tensor


class RecordedForward:
    """Runs one model. Call it with positions."""

    def __init__(self, model: nn.Module, vllm_config: VllmConfig, layer_names: Iterable[str]) -> None:
        modules = vllm_config.compilation_config.static_forward_context
        self._model, self._vllm_config = model, vllm_config
        self._attentions: dict[str, Any] = {name: modules[name] for name in layer_names}
        self._silenced = [module for module in modules.values() if hasattr(module, "get_kv_cache_spec")]

    @property
    def num_positions(self) -> int:
        """Positions that a request may reach."""
        return int(self._vllm_config.model_config.max_model_len)

    def shared_with(self, name: str) -> str:
        """The layer whose KV cache this one uses, itself for most."""
        return getattr(self._attentions[name], "kv_sharing_target_layer_name", None) or name

    def __call__(self, positions: Tensor) -> Mapping[str, RecordedKV]:
        """The KV of each layer that makes some, for fixed tokens at these positions, int64 `[num_tokens]`.

        Raises what the model raises.
        """
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context
        from vllm.lora.layers import BaseLayerWithLoRA

        found: dict[str, RecordedKV] = {}
        handles = [
            attention.register_forward_pre_hook(_recorder(found, name, attention), with_kwargs=True)
            for name, attention in self._attentions.items()
        ]
        handles += [module.register_forward_hook(_silence, with_kwargs=True) for module in self._silenced]
        wrappers = [module for module in self._model.modules() if isinstance(module, BaseLayerWithLoRA)]
        num_tokens = positions.numel()
        parallel = self._vllm_config.parallel_config
        all_ranks = torch.full((parallel.data_parallel_size,), num_tokens, dtype=torch.int32)
        for wrapper in wrappers:
            wrapper.forward = wrapper.base_layer.forward
        try:
            with (
                torch.inference_mode(),
                _no_accelerator(next(self._model.parameters()).device),
                set_current_vllm_config(self._vllm_config),
                set_forward_context(
                    None, self._vllm_config, num_tokens, num_tokens_across_dp=all_ranks, skip_compiled=True
                ),
            ):
                self._run(positions)
        finally:
            for handle in handles:
                handle.remove()
            for wrapper in wrappers:
                del wrapper.forward
        return found

    def _run(self, positions: Tensor) -> None:
        model_config = self._vllm_config.model_config
        device = next(self._model.parameters()).device
        tokens = (torch.arange(positions.numel()) * 31 + 7) % model_config.get_vocab_size()
        where = positions.to(device)
        if model_config.uses_mrope:
            where = where.expand(model_config.mrope_num_dims, -1)
        self._model(input_ids=tokens.to(device), positions=where, intermediate_tensors=None, inputs_embeds=None)


@contextmanager
def _no_accelerator(device: torch.device) -> Iterator[None]:
    """On a CPU no cache of an accelerator is emptied. vLLM's Mamba-2 does it in its first run, and torch raises there.

    vLLM's own runner for CPUs does the same for its process. A model that is measured here may have no runner.
    """
    before = torch.accelerator.empty_cache
    if device.type == "cpu":
        torch.accelerator.empty_cache = lambda: None
    try:
        yield
    finally:
        torch.accelerator.empty_cache = before


def _silence(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
    """A hook that sets what a layer answers to zeros. State-space layers write theirs into the argument `output`."""
    written = inspect.signature(module.forward).bind(*args, **kwargs).arguments.get("output")
    if isinstance(written, Tensor):
        written.zero_()
    return torch.zeros_like(answer) if isinstance(answer, Tensor) else answer


def _recorder(found: dict[str, RecordedKV], name: str, attention: Any) -> Any:
    """A hook that notes what an attention layer is called with. A latent layer's key is the part that may turn."""

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if hasattr(attention, "kv_lora_rank"):
            values = dict(zip(("q", "kv_c_normed", "k_pe"), args, strict=False)) | kwargs
            key, value, num_heads = values["k_pe"], values["kv_c_normed"], 1
        else:
            values = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            key, value, num_heads = values["key"], values["value"], attention.num_kv_heads
        if key is not None and value is not None:
            found[name] = RecordedKV(_copy(key, num_heads), _copy(value, num_heads))

    return record


def _copy(states: Tensor, num_heads: int) -> Tensor:
    return states.reshape(states.shape[0], num_heads, -1).to("cpu", torch.float32, copy=True)
