"""What the two halves of the connector send each other, in the wrappings that vLLM carries between its processes.

scheduler -> workers   StepMetadata          with every step
worker -> scheduler    Handshake             once, when the model is loaded
worker -> scheduler    TransitionsRecorded   with the answer to a step that recorded any
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from acmserve.engine.worker.copies import RecordedTransition, StepCopies, StepCopy
from acmserve.engine.worker.kv_mover import Abilities


class StepMetadata(KVConnectorMetadata):
    """The step's copies on their way to the workers."""

    def __init__(self, step: StepCopies) -> None:
        self.step = step

    @property
    def copies(self) -> tuple[StepCopy, ...]:
        return self.step.copies


class Handshake(KVConnectorHandshakeMetadata):
    """What one worker found its model and kernels able to do."""

    def __init__(self, abilities: Abilities) -> None:
        self.abilities = abilities


class TransitionsRecorded(KVConnectorWorkerMetadata):
    """What one worker recorded in a step, by number. Of several workers: what all of them did."""

    def __init__(self, facts: Mapping[int, RecordedTransition]) -> None:
        self.facts = facts

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """The transitions that both recorded, at the larger norm and size."""
        assert isinstance(other, TransitionsRecorded)
        pairs = {n: (fact, other.facts[n]) for n, fact in self.facts.items() if n in other.facts}
        return TransitionsRecorded(
            {
                number: RecordedTransition(max(a.norm, b.norm), max(a.num_bytes, b.num_bytes))
                for number, (a, b) in pairs.items()
            }
        )
