"""acmserve beside another KV connector, and over several stages of a pipeline: it is off, and nothing breaks."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from acmserve.engine.plugin.connector import NOT_ATTACHED, AcmConnector
from acmserve.engine.worker.kv_mover import Abilities
from acmserve.engine.worker.messages import Handshake
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Turn

MACHINE = Machine(async_scheduling=False, runner_v2=False, connector={})
FULL = tuple(range(10, 110))
FOLDED = (*range(10, 40), *range(60, 110))


class Address(KVConnectorHandshakeMetadata):
    """What a worker of the other connector says of itself."""


class OtherConnector(KVConnectorBase_V1, SupportsHMA):
    """A connector that shakes hands, as NIXL's does. It transfers nothing."""

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Address()

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        assert all(isinstance(worker, Address) for worker in metadata.values()), metadata
        self.num_workers = len(metadata)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


OURS = {"kv_connector": "AcmConnector", "kv_role": "kv_both"}
OTHER = {"kv_connector": "OtherConnector", "kv_role": "kv_both", "kv_connector_module_path": __name__}
orders = pytest.mark.parametrize("order", [[OURS, OTHER], [OTHER, OURS]], ids=["ours-first", "other-first"])


def _machine(order: list[dict[str, str]]) -> Machine:
    return Machine(
        async_scheduling=False, runner_v2=False, connector={"connectors": order}, connector_name="MultiConnector"
    )


@orders
def test_a_handshake_of_two_connectors_ends_where_it_belongs(factory: Factory, order: list[dict[str, str]]) -> None:
    """What the workers of both say goes to both scheduler sides, as vLLM's engine core sends it."""
    scheduler = factory.scheduler(_machine(order))
    config, kv_cache = scheduler.vllm_config, scheduler.kv_cache_config
    worker = MultiConnector(config, KVConnectorRole.WORKER, kv_cache)
    said = worker.get_handshake_metadata()
    assert said is not None
    connector: Any = scheduler.connector
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
    others = [inner for inner in connector.sub_connectors if isinstance(inner, OtherConnector)]
    assert [inner.num_workers for inner in others] == [1]
    scheduler.shutdown()


@orders
def test_requests_beside_another_connector_are_exact_and_say_why(
    factory: Factory, order: list[dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="acmserve"):
        scheduler = factory.scheduler(_machine(order))
    said = [record.getMessage() for record in caplog.records if record.name.startswith("acmserve")]
    assert said == ["acmserve is off: another KV connector wraps it. Every answer is exact."]
    connector: Any = scheduler.connector
    (ours,) = [inner for inner in connector.sub_connectors if isinstance(inner, AcmConnector)]
    turns = (Turn(f"r{i}", prompt, 1, session="s", fidelity="reuse") for i, prompt in enumerate((FULL, FOLDED)))
    for turn in turns:
        request = as_request(turn, block_hasher(MACHINE.block_size))
        scheduler.add_request(request)
        scheduler.schedule()
        _, answer = connector.request_finished_all_groups(request, ([],))
        receipt = answer["acm"]["receipt"]
        assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, NOT_ATTACHED)
    assert len(ours.store) == 0
    scheduler.shutdown()


def test_the_stages_of_a_pipeline_are_heard_and_the_weakest_decides(factory: Factory) -> None:
    connector: Any = factory.scheduler(MACHINE).connector
    assert isinstance(connector, AcmConnector)
    able, unable = Handshake(Abilities()), Handshake(Abilities(None, "rope: unknown"))
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): able, (1, 0): unable})
    assert connector.abilities == Abilities(None, "rope: unknown")
