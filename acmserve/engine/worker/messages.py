"""What the two halves of the connector send each other, in the wrappings that vLLM carries between its processes.

scheduler -> workers   StepMetadata   with every step
worker -> scheduler    Handshake      once, when the model is loaded
"""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

from acmserve.engine.worker.copies import KVCopy, StepCopies
from acmserve.engine.worker.kv_mover import Abilities


class StepMetadata(KVConnectorMetadata):
    """The step's copies on their way to the workers."""

    def __init__(self, step: StepCopies) -> None:
        self.step = step

    @property
    def copies(self) -> tuple[KVCopy, ...]:
        return self.step.copies


class Handshake(KVConnectorHandshakeMetadata):
    """What one worker found its model and kernels able to do."""

    def __init__(self, abilities: Abilities) -> None:
        self.abilities = abilities
