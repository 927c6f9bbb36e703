"""The worker's half: what this model and these kernels are able to do, and the copies of a step.

`Abilities` are found twice. The scheduler side reads the configuration (`of_engine`), each worker the loaded model and
the real KV cache tensors (`KVMover.inspect`). Both must agree before anything is moved. A copy at delta 0 needs a known
layout only. A move needs keys whose rotation can be turned.

It does not know requests, sessions or plans: only block ids, positions and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from acmserve.engine.groups.facts import read_groups
from acmserve.engine.worker.cache_kind import why_never
from acmserve.engine.worker.copies import KVCopy, RecordedTransition, StepCopy, TransitionRecord
from acmserve.engine.worker.engine_ropes import ropes_of_engine
from acmserve.engine.worker.pass_rule import why_not_in_rows
from acmserve.engine.worker.state_mover import StateMover, recurrent_layers
from acmserve.errors import MoveRefused
from acmserve.kernels import dispatch
from acmserve.kernels.layer_group import LayerGroup
from acmserve.kernels.layout import KVLayer, name_of_type
from acmserve.kernels.layouts.registry import find_layer
from acmserve.kernels.rope import Rope
from acmserve.kernels.runs import MoveRun
from acmserve.plan.rules.rotations import MAX_ROTATIONS, bound_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


METHODS_WITHOUT_KV = ("ngram", "suffix")
"""Methods of speculative decoding that have no KV cache."""
DRAFT_METHODS = (*METHODS_WITHOUT_KV, "eagle", "eagle3", "mtp", "draft_model")
"""Methods of speculative decoding beside which KV moves: the drafter's, too, where it has any."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Why KV may not be copied, or not be moved. None where it may. No copy means no move.

    `max_rotations` is how often a key may be turned before it is computed anew (`plan/rules/rotations.py`).
    `pass_refusal` is why each hole takes a step of its own (`pass_rule.py`).
    """

    copy_refusal: str | None = None
    move_refusal: str | None = None
    max_rotations: int = MAX_ROTATIONS
    pass_refusal: str | None = None

    def both(self, other: Abilities) -> Abilities:
        """What is possible when both sides must be able to do it."""
        copy_refusal = self.copy_refusal or other.copy_refusal
        move_refusal = copy_refusal or self.move_refusal or other.move_refusal
        pass_refusal = self.pass_refusal or other.pass_refusal
        return Abilities(copy_refusal, move_refusal, min(self.max_rotations, other.max_rotations), pass_refusal)

    @classmethod
    def of_engine(cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Abilities:
        """Judge the engine's configuration."""
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        parallel = vllm_config.parallel_config
        drafts = vllm_config.speculative_config
        method = drafts.method if drafts is not None else None
        never = why_never(specs)
        refusals = {
            never or "": never is not None,
            "engine: prefix caching is off": not vllm_config.cache_config.enable_prefix_caching,
            f"engine: speculative decoding by {method} is not supported": method not in (None, *DRAFT_METHODS),
            "engine: speculative decoding with parallel drafts is not supported": drafts is not None
            and drafts.parallel_drafting,
            f"engine: speculative decoding by {method} beside several KV cache groups is not supported": len(specs) > 1
            and method not in (None, *METHODS_WITHOUT_KV),
            "engine: pipeline parallelism is not supported": parallel.pipeline_parallel_size > 1,
            "engine: context parallelism is not supported": parallel.decode_context_parallel_size > 1
            or parallel.prefill_context_parallel_size > 1,
        }
        reason = next((text for text, holds in refusals.items() if holds), None)
        try:
            groups = read_groups(specs)
        except MoveRefused as refused:
            reason = reason or refused.reason
            return cls(reason, reason)
        if any(group.mixed is not None for group in groups):
            is_cpu = vllm_config.device_config.device_type == "cpu"
            refusal = None if is_cpu else "model: recurrent states are moved by vLLM's kernels for CPUs only"
            refusal = refusal if method is None else "model: recurrent states are moved without drafts only"
            return cls(reason, reason or refusal)
        return cls(reason, reason)


class KVMover:
    """The KV cache tensors of one worker and the kernel that moves in them."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        kv_caches: dict[str, torch.Tensor],
        num_threads: int,
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._kv_caches = kv_caches
        self._num_threads = num_threads or torch.get_num_threads()
        self._groups: dict[int, LayerGroup] = {}
        self._mover: dispatch.GroupMover | None = None
        self._states: StateMover | None = None

    def inspect(self, model: torch.nn.Module, drafter: torch.nn.Module | None = None) -> Abilities:
        """Learn layouts and rotations from the loaded model and its drafter's. Builds the kernel's tables.

        Nothing that a model or a backend may bring raises here: what does not fit is refused by name, and the engine
        serves without it.
        """
        recurrent = recurrent_layers(self._kv_cache_config)
        names = [name for name in self._kv_caches if name not in recurrent]
        move_refusal = None
        ropes: dict[str, Rope | None] = dict.fromkeys(names)
        try:
            ropes = ropes_of_engine(model, drafter, names, self._vllm_config)
        except MoveRefused as refused:
            move_refusal = refused.reason
        try:
            modules = self._vllm_config.compilation_config.static_forward_context
            layers = [find_layer(name, modules[name], self._kv_caches[name]) for name in names]
            try:
                layers = [replace(layer, rope=ropes[name]) for name, layer in zip(names, layers, strict=True)]
            except ValueError as unfit:
                move_refusal = f"model: {unfit}"
            self._groups = self._build_groups(dict(zip(names, layers, strict=True)))
            self._mover = dispatch.GroupMover(self._groups, self._num_threads)
            self._mover.warm_up()
            if move_refusal is None:
                self._states = StateMover.of_engine(self._kv_cache_config, modules)
        except MoveRefused as refused:
            return Abilities(refused.reason, refused.reason)
        except ValueError as unfit:
            reason = f"kv cache: {unfit}"
            return Abilities(reason, reason)
        bound = bound_of(name_of_type(layer.kv.dtype) for layer in layers)
        return Abilities(None, move_refusal, bound, why_not_in_rows(model, (modules[name] for name in names)))

    def _build_groups(self, layers: Mapping[str, KVLayer]) -> dict[int, LayerGroup]:
        """The layers of every group that has KV of tokens. Raises `MoveRefused` for a layer that is in none."""
        groups = self._kv_cache_config.kv_cache_groups
        names = [list(layers)] if len(groups) == 1 else [[n for n in g.layer_names if n in layers] for g in groups]
        if strays := layers.keys() - {name for found in names for name in found}:
            raise MoveRefused(f"kv cache: layer {min(strays)} is in none of {len(groups)} groups")
        built = {}
        for index, (group, found) in enumerate(zip(groups, names, strict=True)):
            if found or not layers:
                block_size = group.kv_cache_spec.block_size
                members = [layers[name] for name in found]
                self._check_blocks(members, block_size)
                built[index] = LayerGroup(members, block_size)
        return built

    def _check_blocks(self, layers: Sequence[KVLayer], block_size: int) -> None:
        """`block_size` is what the scheduler counts in. The tensors may cut its blocks into smaller ones.

            scheduler's block ids     |        b         |       b + 1      |      128 tokens
            the tensor's rows         |   2b   |  2b + 1 | 2b + 2 | 2b + 3  |       64 tokens
            slots                      128 b ............................ 128 b + 255

        A token has one slot number in both, so slots are made of the scheduler's ids and its block size, never of the
        tensor's. Raises `MoveRefused` for a tensor that is no such cut.
        """
        num_slots = self._kv_cache_config.num_blocks * block_size
        for layer in layers:
            num_rows, row_size = layer.kv.shape[0], layer.layout.block_size
            if block_size % row_size or num_rows * row_size != num_slots:
                raise MoveRefused(
                    f"kv cache: {num_rows} blocks of {row_size} tokens, where the scheduler has "
                    f"{self._kv_cache_config.num_blocks} of {block_size}"
                )

    def carry_out(self, copies: Sequence[StepCopy]) -> None:
        """Run all copies of one step: all requests, all layers, all groups, in one call of the kernels."""
        runs: dict[int, list[MoveRun]] = {}
        for copy in copies:
            if isinstance(copy, KVCopy):
                runs.setdefault(copy.group, []).append(run_of(copy, self._groups[copy.group].block_size))
        if runs:
            assert self._mover is not None
            self._mover.move(runs)
        if self._states is not None:
            self._states.carry_out([copy for copy in copies if not isinstance(copy, KVCopy)])

    def begin_recording(self, records: Sequence[TransitionRecord], dropped: Sequence[int]) -> None:
        """The transitions that this step records, and those that no step needs any more. Once its copies are done."""
        if self._states is not None:
            self._states.begin_recording(records, dropped)

    def take_recorded(self) -> Mapping[int, RecordedTransition | None] | None:
        """What the step has recorded of transitions, by number. None where nothing was to be recorded."""
        return None if self._states is None else self._states.take_recorded()


def run_of(copy: KVCopy, block_size: int) -> MoveRun:
    """The copy as the kernels take it."""
    src_offset, dst_offset = copy.src_start % block_size, copy.dst_start % block_size
    return MoveRun(copy.src_block_ids, src_offset, copy.dst_block_ids, dst_offset, copy.num_tokens, copy.delta)
