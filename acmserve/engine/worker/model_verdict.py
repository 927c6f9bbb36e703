"""Whether a model's KV may be moved, found without its weights: for `acmserve doctor` and for the audit.

The model's class is built small and judged by the two halves that judge the real one when the engine has started. These
are the engine's configuration (`Abilities.of_engine`) and the measured keys (`ropes_of_engine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from acmserve.engine.groups.facts import GroupFacts, read_groups
from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.engine.vllm.model.small_build import SmallBuild, small_build
from acmserve.engine.vllm.sparse_groups import describe_sparse
from acmserve.engine.worker.engine_ropes import ropes_of_engine
from acmserve.engine.worker.kv_mover import Abilities
from acmserve.errors import MoveRefused
from acmserve.kernels.layout import name_of_type
from acmserve.kernels.rope import Rope
from acmserve.kernels.stored_type import stored_type
from acmserve.plan.rules.rotations import MAX_ROTATIONS, bound_of


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """`refusal` says why KV is not moved under vLLM's own settings, None where it is.

    `refusal_without_hybrid` says the same for `--disable-hybrid-kv-cache-manager`. `ropes` are the rotations by layer
    of the small model, None where keys could not be measured. `groups` are its KV cache groups under vLLM's own
    settings, empty where one of them is of a kind that is not moved. A key is turned at most `max_rotations` times.
    `sparse` names the layers of which vLLM keeps little, None where it keeps every prefix. `media` is the rule for
    images, None without.
    """

    refusal: str | None
    refusal_without_hybrid: str | None
    ropes: Mapping[str, Rope | None] | None
    groups: tuple[GroupFacts, ...] = ()
    max_rotations: int = MAX_ROTATIONS
    sparse: str | None = None
    media: MediaRule | None = None

    def describe_keys(self) -> str:
        """The measured rotations in words."""
        kinds = Counter("no position" if rope is None else _describe(rope) for rope in (self.ropes or {}).values())
        return ", ".join(sorted(kinds)) or "not measured"

    def describe_windows(self) -> str | None:
        """What the groups with a window cost, in words. None for a model without."""
        windows = [group for group in self.groups if group.reach is not None and group.mixed is None]
        if not windows:
            return None
        sizes = ", ".join(
            f"{group.reach} tokens, {1 + -(-(group.reach or 0) // group.block_size)} blocks of {group.block_size}"
            for group in windows
        )
        return f"{len(windows)} of {len(self.groups)} KV cache groups have a window ({sizes} at most for each move)"


def judge_model(folder: str, **settings: Any) -> ModelVerdict:
    """Build the model of a Hugging Face folder small, and judge it. `settings` are vLLM's engine arguments.

    Raises what vLLM raises where it cannot build this model.
    """
    with small_build(folder, **settings) as build:
        model_config = build.vllm_config.model_config
        media = MediaRule.of_model(model_config) if model_config.multimodal_config is not None else None
        default, unified = (_judge_engine(build, hybrid=hybrid) for hybrid in (True, False))
        try:
            max_rotations = bound_of(map(name_of_type, stored_types(build)))
            ropes = measure_keys(build)
        except MoveRefused as refused:
            refusals = (default.refusal or refused.reason, unified.refusal or refused.reason)
            return ModelVerdict(*refusals, None, sparse=default.sparse, media=media)
        return ModelVerdict(
            default.refusal, unified.refusal, ropes, default.groups, max_rotations, default.sparse, media
        )


def stored_types(build: SmallBuild) -> list[torch.dtype]:
    """In which types the attention layers of a built model keep their KV. Raises `MoveRefused`."""
    layers = [layer for layer in build.layers.values() if hasattr(layer, "kv_cache_dtype")]
    specs = [(layer, layer.get_kv_cache_spec(build.vllm_config)) for layer in layers]
    return [stored_type(layer.kv_cache_dtype, spec.dtype) for layer, spec in specs if spec is not None]


def measure_keys(build: SmallBuild) -> dict[str, Rope | None]:
    """The rotation in the keys of each attention layer of a built model and its drafter. Raises `MoveRefused`."""
    layers = build.layers.items()
    names = [name for name, layer in layers if hasattr(layer, "num_heads") and hasattr(layer, "head_size")]
    if not names:
        raise MoveRefused("model: no layer of attention")
    return ropes_of_engine(build.model, build.drafter, names, build.vllm_config)


@dataclass(frozen=True, slots=True)
class _EngineVerdict:
    """`refusal` says why a configuration allows no moves. `groups` and `sparse`: see `ModelVerdict`."""

    refusal: str | None
    groups: tuple[GroupFacts, ...] = ()
    sparse: str | None = None


def _judge_engine(build: SmallBuild, *, hybrid: bool) -> _EngineVerdict:
    try:
        kv_cache_config = build.kv_cache_config(hybrid=hybrid)
    except (ValueError, NotImplementedError, AssertionError, TypeError) as error:
        # A TypeError is vLLM's own: it promotes the windows of DeepSeek V4 to specs that do not take their fields.
        return _EngineVerdict(f"model: vLLM makes no KV cache groups ({error})")
    try:
        groups = read_groups([group.kv_cache_spec for group in kv_cache_config.kv_cache_groups])
    except MoveRefused:
        groups = ()
    refusal = Abilities.of_engine(build.vllm_config, kv_cache_config).move_refusal
    return _EngineVerdict(refusal, groups, describe_sparse(kv_cache_config))


def _describe(rope: Rope) -> str:
    pairs = "NeoX" if rope.is_neox else "GPT-J"
    return f"{rope.rot_dim} dimensions turn in {pairs} pairs"
