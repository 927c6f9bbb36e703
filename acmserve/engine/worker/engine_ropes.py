"""The rotations in all keys that an engine caches: those of the model's layers, and of the drafter's.

    kv caches   model.layers.0 ... model.layers.n-1 | model.layers.n        an EAGLE head, an MTP module, a draft model
                measured on the model               | measured on the drafter

The drafter's KV stands in the same blocks as the model's and is moved with it. What is wrong there makes drafts worse,
and never an answer: the model verifies every draft. So where a drafter cannot be measured, moves are refused, too.

Does not know KV caches, layouts or blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from acmserve.engine.vllm.model.drafter_forward import DrafterForward
from acmserve.engine.vllm.model.recorded_forward import RecordedForward
from acmserve.engine.worker.rope_check import ropes_of_model
from acmserve.errors import MoveRefused

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

    from acmserve.kernels.rope import Rope


def ropes_of_engine(
    model: nn.Module, drafter: nn.Module | None, layer_names: Sequence[str], vllm_config: VllmConfig
) -> dict[str, Rope | None]:
    """The rotation in the keys of each named attention layer. None for a layer whose keys carry no position.

    Raises `MoveRefused` where the keys of at least one layer may not be turned. The reason says whose layer it is.
    """
    modules = vllm_config.compilation_config.static_forward_context
    of_drafter = {id(module) for module in drafter.modules()} if drafter is not None else set()
    drafted = [name for name in layer_names if id(modules[name]) in of_drafter]
    names = [name for name in layer_names if name not in drafted]
    ropes = ropes_of_model(model, names, RecordedForward(model, vllm_config, names))
    borrowed = {
        name: ropes[target]
        for name in drafted
        if (target := getattr(modules[name], "kv_sharing_target_layer_name", None)) in ropes
    }
    own = [name for name in drafted if name not in borrowed]
    if own:
        assert drafter is not None
        try:
            ropes |= ropes_of_model(drafter, own, DrafterForward(drafter, vllm_config, own))
        except MoveRefused as refused:
            raise MoveRefused(f"drafter: {refused.reason}") from refused
    return {name: (ropes | borrowed)[name] for name in layer_names}
