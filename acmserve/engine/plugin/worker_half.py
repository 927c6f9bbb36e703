"""The worker's half of the connector: copies in front of a step's forward pass, and the exit from that pass.

vLLM makes one connector in the scheduler and one in each worker, of the same class. What is here is called in workers.

    bind_connector_metadata       a step begins: its exit is armed, where its background chunk may be left
    start_load_kv                 the copies of the step
    wait_for_layer_load           in front of each attention: the exit
    build_connector_worker_meta   a step ends: what was recorded, or where it was left
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from acmserve.engine.config import EngineConfig
from acmserve.engine.plugin.metrics import AcmStats
from acmserve.engine.vllm.model.forward_exit import ForwardExit
from acmserve.engine.worker.kv_mover import Abilities, KVMover
from acmserve.engine.worker.messages import ChunkLeft, Handshake, StepMetadata, TransitionsRecorded
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, find_flag

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.kv_cache_interface import KVCacheConfig

_EXIT = "wait_for_layer_load"


class WorkerHalf(KVConnectorBase_V1):
    """See the module. `abilities` are what the configuration allows, and from `inspect` on what the model does, too."""

    _stats_class: ClassVar[type[AcmStats]] = AcmStats

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        assert vllm_config.kv_transfer_config is not None
        self.config = EngineConfig.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._vllm_config = vllm_config
        self.abilities = Abilities.of_engine(vllm_config, kv_cache_config)
        self._stats = self._stats_class()
        self._mover: KVMover | None = None
        self._is_inspected = False
        self._exit = ForwardExit()
        self._flags: dict[str, ArrivalFlag] = {}

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Worker: the KV caches exist."""
        self._mover = KVMover(self._vllm_config, self._kv_cache_config, kv_caches, self.config.num_threads)

    def inspect(self, model: torch.nn.Module, drafter: torch.nn.Module | None) -> None:
        """Worker: the model is loaded. Learn its rotations (before the handshake), where anything can be copied."""
        assert self._mover is not None
        if self.abilities.copy_refusal is None:
            self.abilities = self.abilities.both(self._mover.inspect(model, drafter))
        self._is_inspected = True

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Worker: what this model and these kernels are able to do.

        None where nobody has shown us the model, which is so inside a MultiConnector. There only one connector may
        speak, and another one's scheduler side would read it.
        """
        return Handshake(self.abilities) if self._is_inspected else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Worker: a step begins. The flags at which it may be left are opened once."""
        super().bind_connector_metadata(connector_metadata)
        names = connector_metadata.flags if isinstance(connector_metadata, StepMetadata) else ()
        for name in names:
            if name not in self._flags and (found := find_flag(name)) is not None:
                self._flags[name] = found
        flags = [self._flags[name] for name in names if name in self._flags]
        if flags:
            self._exit.arm(lambda: any(flag.is_raised for flag in flags))
            self.__dict__[_EXIT] = self._exit.check

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Worker: carry the step's copies out."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        assert self._mover is not None
        metadata.check_laid_out()
        if metadata.copies:
            with self._stats.timed_move():
                self._mover.carry_out(metadata.copies)
        self._mover.begin_recording(metadata.step.records, metadata.step.dropped)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Worker: what the step has recorded. Who could not says so: vLLM passes over a worker without words."""
        self.__dict__.pop(_EXIT, None)
        left_layer = self._exit.disarm()
        if left_layer is not None:
            return ChunkLeft(left_layer)
        recorded = self._mover.take_recorded() if self._mover is not None else None
        return None if recorded is None else TransitionsRecorded(recorded)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: copies are done, or ordered on the stream, before the forward pass.

        While the exit is armed, its `check` stands here. Else nobody pays for it in each layer of each step.
        """

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Nothing is saved: KV stays where it is."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def end_worker(self) -> None:
        """Worker: it ends."""
        for flag in self._flags.values():
            flag.close()
        self._flags.clear()
