"""Two engines side by side on one device: acmserve, and stock vLLM at its own defaults.

All stages of a type of KV share them, for a start takes minutes.

What is set is set for both, and stands in the report: memory, lengths, the loader of weights. On a CPU the harness adds
float32 and eager, so there stock is not at its defaults.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.gpu.device import CPU, Device
from acmserve.bench.gpu.room import EngineRoom, needed_window
from acmserve.bench.gpu.served_model import LOAD_FORMAT, LOADER, ServedModel
from acmserve.bench.gpu.stage import FP8
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.run_log import progress

MAX_NUM_SEQS = 64
"""Twice the most sessions. vLLM's own number is larger, and takes gigabytes for samplers and graphs of both engines."""
_UTILIZATION = 0.05
"""vLLM wants this share of a card to be free at its start, and another engine lies there. The KV's size is told."""
_ALLOCATOR, _MOVING_MEMORY = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


@dataclass(frozen=True, slots=True)
class EnginePair:
    """Both engines, ready. `settings` are those of vLLM that both were given."""

    ours: EngineProcess
    stock: EngineProcess
    model: ServedModel
    kv_type: str
    settings: Mapping[str, Any]
    device: Device

    @property
    def is_float32(self) -> bool:
        """Whether both compute in float32, so that answers of a batch may be compared."""
        return self.device.kind == CPU


def pair_settings(device: Device, kv_type: str, room: EngineRoom, longest: int) -> dict[str, Any]:
    """What both are started with. `longest` are the tokens of the longest prompt. Pure."""
    window = needed_window(longest)
    settings: dict[str, Any] = {
        "max_model_len": window,
        "hf_overrides": {"max_position_embeddings": window},
        "kv_cache_memory_bytes": room.pool_bytes,
        "kv_cache_dtype": kv_type,
        "max_num_seqs": MAX_NUM_SEQS,
        "load_format": LOAD_FORMAT,
        "imports": (LOADER,),
        "skip_tokenizer_init": True,
    }
    return settings if device.kind == CPU else settings | {"gpu_memory_utilization": _UTILIZATION}


@contextmanager
def start_pair(
    folder: Path, device: Device, model: ServedModel, kv_type: str, settings: Mapping[str, Any]
) -> Iterator[EnginePair]:
    """Start both together. Raises AcmError where one does not start."""
    with ExitStack() as stack:
        ours = stack.enter_context(EngineProcess(folder, with_acmserve=True, settings=settings))
        stock = stack.enter_context(EngineProcess(folder, with_acmserve=False, settings=settings))
        progress(f"... starting two engines with {kv_type} KV (two to four minutes on a card: it compiles for both)")
        for engine in (ours, stock):
            engine.wait_ready()
        yield EnginePair(ours, stock, model, kv_type, settings, device)


def why_no_engines(device: Device, kv_type: str) -> str:
    """What keeps engines of this type from starting here, "" where nothing is known to."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed: pip install '.[gpu]'"
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    if "acmserve" not in plugins.names:
        return "vLLM does not know the plugin: install acmserve beside it, pip install '.[gpu]'"
    from vllm.platforms import current_platform

    if current_platform.is_cpu() != (device.kind == CPU):
        here = "a CPU" if current_platform.is_cpu() else "another device"
        return f"the vLLM that is installed is built for {here}"
    if _MOVING_MEMORY in os.environ.get(_ALLOCATOR, ""):
        return f"vLLM starts no KV connector beside {_ALLOCATOR}={_MOVING_MEMORY}: unset it"
    if device.kind == CPU and kv_type == FP8:
        import torch

        if not torch.cpu._is_avx512_supported():
            return "vLLM's CPU build has attention over fp8 for AVX-512 alone"
    return ""
