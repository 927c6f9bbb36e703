"""What the two halves of the connector send each other, in the wrappings that vLLM carries between its processes.

scheduler -> workers   StepMetadata          with every step
worker -> scheduler    Handshake             once, when the model is loaded
worker -> scheduler    TransitionsRecorded   with the answer to a step that recorded any
worker -> scheduler    ChunkLeft             with the answer to a step that was left
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.worker.copies import RecordedTransition, StepCopies, StepCopy
from acmserve.engine.worker.kv_mover import Abilities
from acmserve.errors import IntegrityError


class StepMetadata(KVConnectorMetadata):
    """The step's copies on their way to the workers. `is_laid_out` is set there, once its passes are in the batch.

    `flags` name each `ArrivalFlag` at which the step's background chunk may be left. It is empty where it may not.
    `below` is what the tier below the KV blocks does in the step. None without one.
    """

    def __init__(self, step: StepCopies, flags: tuple[str, ...] = ()) -> None:
        self.step = step
        self.flags = flags
        self.below: KVConnectorMetadata | None = None
        self.is_laid_out = False

    @property
    def copies(self) -> tuple[StepCopy, ...]:
        return self.step.copies

    def check_laid_out(self) -> None:
        """Raise `IntegrityError` where a runner that is not ours would compute the passes at other positions."""
        if self.step.passes and not self.is_laid_out:
            raise IntegrityError(f"passes: {len(self.step.passes)} of this step are not in the runner's batch")

    @property
    def passes(self) -> tuple[HolePass, ...]:
        return self.step.passes


class Handshake(KVConnectorHandshakeMetadata):
    """What one worker found its model and kernels able to do."""

    def __init__(self, abilities: Abilities) -> None:
        self.abilities = abilities


class ChunkLeft(KVConnectorWorkerMetadata):
    """The one worker left the step's background chunk in front of the attention `left_layer`."""

    def __init__(self, left_layer: str) -> None:
        self.left_layer = left_layer

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """There is one worker: several never leave (`exit_rule.py`)."""
        raise IntegrityError(f"precompute: a chunk was left by one of several workers, before {self.left_layer}")


class TransitionsRecorded(KVConnectorWorkerMetadata):
    """What one worker recorded in a step, by number: None where a layer lacks tokens.

    Of several workers: what all of them did.
    """

    def __init__(self, facts: Mapping[int, RecordedTransition | None]) -> None:
        self.facts = facts

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """The transitions that both recorded, at the larger norm and size. None for one that only one of them did."""
        assert isinstance(other, TransitionsRecorded)
        numbers = self.facts.keys() | other.facts.keys()
        return TransitionsRecorded({n: _both(self.facts.get(n), other.facts.get(n)) for n in sorted(numbers)})


def _both(one: RecordedTransition | None, other: RecordedTransition | None) -> RecordedTransition | None:
    if one is None or other is None:
        return None
    return RecordedTransition(max(one.norm, other.norm), max(one.num_bytes, other.num_bytes))
