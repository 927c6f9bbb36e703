"""The worker's states of recurrent layers: transitions recorded while tokens are computed, and states composed.

    step that computes     the layer's kernel sees keys, gates and strengths: the transition over the tokens is kept
    step that moves        S_b + P (S_a' - S_a) goes where the step's state begins. The convolution's inputs are those
                           at b, which are the suffix's own, and all that a short convolution has
    step that restores     the state behind a prefix of the request's own goes there, bit by bit
    step that answers      the state in front of it is kept in a block of its own, before the step overwrites it

A block of the pool belongs to one group, and the layers of a group have tensors of their own. So the address of a
layer's states and a block in it name the layer, though the layers of several groups share a tensor.

Knows blocks, layers and numbers of transitions. Does not know requests, tokens or what the numbers stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from acmserve.engine.groups.facts import read_groups
from acmserve.engine.vllm.model.delta_rule import watch_delta_rule
from acmserve.engine.vllm.model.state_space import watch_state_space
from acmserve.engine.vllm.model.token_inputs import TokenInputs, Watcher
from acmserve.engine.worker.copies import RecordedTransition, StateCopy, StateMove, TransitionRecord
from acmserve.engine.worker.layer_transition import LayerTransition
from acmserve.errors import IntegrityError, MoveRefused
from acmserve.kernels.recurrent import compose

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

WATCHED: Mapping[str, Callable[[Watcher], None]] = {"GDN_ATTN": watch_delta_rule, "MAMBA2": watch_state_space}
"""How the transitions of a kind are seen, by vLLM's name: every kind whose states are composed."""


@dataclass(frozen=True, slots=True)
class StateLayer:
    """One layer of a group. `states` are `[num_blocks, heads, rows, columns]`, `inputs` the convolution's.

    A delta net has keys in the rows, and a matrix for its transition. Mamba-2 has a number for it.

    A short convolution has no others.
    """

    name: str
    group: int
    inputs: Tensor
    states: Tensor | None = None


class StateMover:
    """The recurrent layers of one worker, and the transitions that it holds."""

    def __init__(self, layers: Sequence[StateLayer]) -> None:
        self._layers = layers
        self._composed = {(one.states.data_ptr(), one.group): one for one in layers if one.states is not None}
        self._wanted: dict[int, tuple[int, int]] = {}
        self._transitions: dict[int, dict[str, LayerTransition]] = {}
        self._recording: list[TransitionRecord] = []

    @classmethod
    def of_engine(cls, kv_cache_config: KVCacheConfig, modules: dict[str, Any]) -> StateMover | None:
        """Those of a loaded model, watched from here on. None where it has no recurrent layer, or none on a CPU.

        Elsewhere the engine's configuration refuses moves, and what is copied beside the states needs nothing of them.
        """
        names = recurrent_layers(kv_cache_config)
        if not names or any(state.device.type != "cpu" for name in names for state in modules[name].kv_cache):
            return None
        specs: list[Any] = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        read_groups(specs)
        kinds = {name: specs[group].mamba_type.name for name, group in names.items()}
        mover = cls([_layer_of(name, group, kinds[name], modules[name]) for name, group in names.items()])
        for kind in sorted(WATCHED.keys() & kinds.values()):
            WATCHED[kind](mover.on_tokens)
        return mover

    def carry_out(self, copies: Sequence[StateMove | StateCopy]) -> None:
        """Keep and compose the states of one step. None of them writes what another one reads."""
        for copy in (copy for copy in copies if isinstance(copy, StateCopy)):
            for layer in (layer for layer in self._layers if layer.group == copy.group):
                for tensor in (layer.inputs, layer.states):
                    if tensor is not None:
                        tensor[copy.dst_block_id] = tensor[copy.src_block_id]
        for move in (copy for copy in copies if isinstance(copy, StateMove)):
            for layer in (layer for layer in self._layers if layer.group == move.group):
                if (states := layer.states) is not None and move.before is None:
                    states[move.dst_block_id] = states[move.after]
                elif states is not None:
                    parts = [self._transitions[number][layer.name].product() for number in move.transitions]
                    states[move.dst_block_id] = compose(
                        states[move.there], states[move.before], states[move.after], parts
                    ).to(states.dtype)
                layer.inputs[move.dst_block_id] = layer.inputs[move.after]

    def begin_recording(self, records: Iterable[TransitionRecord], dropped: Iterable[int]) -> None:
        """What this step records, and what is needed no more. Call behind `carry_out`."""
        for number in dropped:
            self._transitions.pop(number, None)
        self._recording = list(records)
        places = ((record, *place) for record in self._recording for place in record.block_ids)
        self._wanted = {block_id: (record.number, group) for record, group, block_id in places}

    def on_tokens(self, states: Tensor, block_ids: Tensor, inputs_of: Callable[[int], TokenInputs]) -> None:
        """One layer is about to run some tokens of each sequence. `block_ids` are where their states go."""
        if not self._wanted:
            return
        for index, block_id in enumerate(block_ids.tolist()):
            number, group = self._wanted.get(block_id, (0, 0))
            layer = self._composed.get((states.data_ptr(), group))
            if number and layer is not None:
                self._transitions.setdefault(number, {}).setdefault(layer.name, LayerTransition()).add(inputs_of(index))

    def take_recorded(self) -> dict[int, RecordedTransition | None] | None:
        """What is recorded by now under the numbers of the step. None for one that lacks a layer, or tokens of one.

        That one is forgotten. None at all where nothing was to be recorded.
        """
        if not self._recording:
            return None
        facts = {record.number: self._recorded(record) for record in self._recording}
        for number in (number for number, fact in facts.items() if fact is None):
            self._transitions.pop(number, None)
        self._wanted, self._recording = {}, []
        return facts

    def _recorded(self, record: TransitionRecord) -> RecordedTransition | None:
        found = list(self._transitions.get(record.number, {}).values())
        if len(found) < len(self._composed) or any(one.num_tokens != record.num_tokens for one in found):
            return None
        if record.is_whole:
            for one in found:
                one.settle()
        return RecordedTransition(max(one.norm for one in found), sum(one.num_bytes for one in found))

    def check_integrity(self) -> None:
        """Raise `IntegrityError` for a transition without one of its layers, or tokens in one, between steps."""
        for number, found in self._transitions.items():
            if len(found) != len(self._composed):
                raise IntegrityError(f"states: transition {number} has {len(found)} of {len(self._composed)} layers")
            if len(lengths := {one.num_tokens for one in found.values()}) > 1:
                raise IntegrityError(f"states: the layers of transition {number} have seen {sorted(lengths)} tokens")


def recurrent_layers(kv_cache_config: KVCacheConfig) -> dict[str, int]:
    """Every layer with a recurrent state, and its group."""
    groups = enumerate(kv_cache_config.kv_cache_groups)
    return {name: i for i, g in groups if type(g.kv_cache_spec).__name__ == "MambaSpec" for name in g.layer_names}


def _layer_of(name: str, group: int, kind: str, module: Any) -> StateLayer:
    """vLLM's CPU kernels keep a delta net's state with the keys in rows, whatever the shape of the tensor says."""
    if kind not in WATCHED:
        (inputs,) = module.kv_cache
        return StateLayer(name, group, inputs)
    inputs, states = module.kv_cache
    if states.dim() != 4:
        raise MoveRefused(f"model: states of {name} of shape {tuple(states.shape)}")
    if kind == "GDN_ATTN":
        states = states.view(*states.shape[:2], states.shape[3], states.shape[2])
    return StateLayer(name, group, inputs, states)
