"""What the CPU build of vLLM lacks and a family needs, put in its place in this process. Each is named in the table.

Knows vLLM's CPU platform. Changes no part of acmserve.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

LATENT_PREFIXES = "prefix caching of latent attention"
EMPTY_TORCHVISION = "torchvision"
NO_CHECKPOINTS = "chunks of Mamba-2"
FP8_OPS = "attention over fp8"
SIGMOID_EXPERTS = "experts chosen by sigmoid"
HEADS_APART = "rotations of heads that stand apart"

DESCRIPTIONS = {
    LATENT_PREFIXES: "vLLM's CPU backend of latent attention with prefix caching switched on again",
    SIGMOID_EXPERTS: "the CPU router's grouped choice of experts, with one group, for its missing sigmoid",
    NO_CHECKPOINTS: "no states from within a chunk, which vLLM's CPU scan of Mamba-2 does not export",
    HEADS_APART: "vLLM's rotation in torch, since its kernel for CPUs takes heads that stand apart for tokens",
    FP8_OPS: "attention over fp8 in torch, where the machine has no AVX-512 for vLLM's own",
    EMPTY_TORCHVISION: "an empty torchvision, which the class imports for images",
}


REFERENCE_BACKEND = {"attention_backend": "CPU_MLA"}
"""Engine arguments beside `LATENT_PREFIXES`. Where a machine has AMX vLLM takes AMX_MLA, and no float32 weights."""


def put_in_place(stand_ins: tuple[str, ...]) -> None:
    """Make vLLM of this process use them. Must come before the engine starts."""
    put = {
        LATENT_PREFIXES: _keep_latent_prefixes,
        SIGMOID_EXPERTS: _choose_by_sigmoid,
        NO_CHECKPOINTS: _end_chunks_at_blocks,
        FP8_OPS: _attend_over_fp8,
        HEADS_APART: _turn_in_torch,
        EMPTY_TORCHVISION: _empty_torchvision,
    }
    for name in stand_ins:
        put[name]()


class _ForGood:
    """Replaces, and takes nothing back."""

    def setattr(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)


def _attend_over_fp8() -> None:
    from acmserve.bench.models.fp8_ops import with_fp8_ops

    with_fp8_ops(_ForGood())


def _keep_latent_prefixes() -> None:
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config

    def check_and_update_config(cls: type[CpuPlatform], vllm_config: Any) -> None:
        stock(vllm_config)
        vllm_config.cache_config.enable_prefix_caching = True
        vllm_config.scheduler_config.enable_chunked_prefill = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _choose_by_sigmoid() -> None:
    from vllm.model_executor.layers.fused_moe.router import cpu_router

    router: Any = cpu_router.CPURouter
    stock = router._compute_routing

    def compute_routing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scoring_func == "sigmoid" and self.custom_routing_function is None and not self.use_grouped_topk:
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1
        return stock(self, *args, **kwargs)

    router._compute_routing = compute_routing


def _turn_in_torch() -> None:
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native


def _end_chunks_at_blocks() -> None:
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    del MambaMixer2.get_kv_cache_spec  # that of all recurrent layers asks for no checkpoints


class _Anything(ModuleType):
    """A module in which every name is there, and none can be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _empty_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        return
    for name in ("", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional", ".io"):
        module = _Anything(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
        sys.modules[module.__name__] = module
