"""The deep oracle, for any model: all layers but one answer nothing, so moved KV is exact there.

    layer      0        1        2        3
    attends    .        .        x        .        what each layer gets depends on its token alone

Only the one layer's attention, or state, shows in the logits. So `reuse` must equal `exact` in a model of any depth and
mix. Where the copies of a step are left out, it must not. Nor where keys are not turned and states are not composed.

A short convolution shows to the tokens right behind it alone. So it is asked at the first token behind the move.

The layers' MLPs answer nothing either. They would blow up what rounding does, and rounding would choose other experts.

Knows vLLM's modules by what they are: a layer with a KV cache stands in a module with a projection of its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import nn

from acmserve.bench.families.family import CONVOLUTION, RECURRENT

PROJECTIONS = ("o_proj", "out_proj", "wo", "wo_b", "dense", "c_proj")
MLPS = ("mlp", "feed_forward")
KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "MLAAttentionSpec": "latent",
    "ChunkedLocalAttentionSpec": "chunk",
    "MambaSpec": RECURRENT,
    "SHORT_CONV": CONVOLUTION,
}


def kind_of(spec: Any) -> str:
    """What a layer keeps, by vLLM's spec of it."""
    name = type(spec).__name__
    return KINDS.get(getattr(getattr(spec, "mamba_type", None), "name", name), KINDS.get(name, name))


def output_projections(model: nn.Module, layers: Mapping[str, Any]) -> dict[str, nn.Module]:
    """The projection behind each of these layers of the model, by the layer's name. A layer without one is left out."""
    modules = dict(model.named_modules())
    paths = {id(module): path for path, module in modules.items()}
    found = {}
    for name, layer in layers.items():
        path = paths.get(id(layer), name if name in modules else "")
        while path:
            owner = modules[path]
            projection = next((getattr(owner, part) for part in PROJECTIONS if hasattr(owner, part)), None)
            if isinstance(projection, nn.Module):
                found[name] = projection
                break
            path = path.rpartition(".")[0]
    return found


def mlps_of(model: nn.Module) -> list[nn.Module]:
    """The MLPs and experts of the model's layers."""
    return [module for path, module in model.named_modules() if path.rpartition(".")[2] in MLPS]


@contextmanager
def attending(projections: Mapping[str, nn.Module], layer: str, mlps: Sequence[nn.Module]) -> Iterator[None]:
    """Let this layer alone answer."""
    silent = [*(projection for name, projection in projections.items() if name != layer), *mlps]
    handles = [module.register_forward_hook(_silence) for module in silent]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """A move brings along what the source has: its keys are not turned, and its states not composed."""
    from acmserve.engine.worker import kv_mover, state_mover

    run_of = kv_mover.run_of
    unturned = mock.patch.object(kv_mover, "run_of", lambda copy, size: replace(run_of(copy, size), delta=0))
    with unturned, mock.patch.object(state_mover, "compose", lambda there, before, after, transitions: after):
        yield


def _silence(module: nn.Module, args: tuple[Any, ...], answer: Any) -> Any:
    if isinstance(answer, torch.Tensor):
        return torch.zeros_like(answer)
    return tuple(torch.zeros_like(part) if isinstance(part, torch.Tensor) else part for part in answer)
