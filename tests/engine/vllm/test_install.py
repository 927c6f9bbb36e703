"""A vLLM that does not fit turns the plugin off, by name. One that fits keeps its own scheduler."""

from __future__ import annotations

import importlib.metadata

import pytest
from vllm.config import CacheConfig, KVTransferConfig, VllmConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from acmserve.engine.config import EngineConfig, engine_config
from acmserve.engine.plugin import entry_point as plugin
from acmserve.engine.vllm.scheduler import MoveSchedulerMixin, compose_scheduler
from acmserve.engine.vllm.version import check_engine
from acmserve.errors import EngineMismatch, InvalidRequest


def test_the_installed_engine_fits() -> None:
    check_engine()


def test_another_version_that_does_not_fit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99.0")
    monkeypatch.delattr(Scheduler, "_preempt_request")
    with pytest.raises(
        EngineMismatch, match=r"0\.99\.0 \(not tested; install 0\.31\.x, .*: Scheduler\._preempt_request is"
    ):
        check_engine()


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_the_mixin_keeps_the_scheduler_that_vllm_chose(base: type) -> None:
    composed = compose_scheduler(base)
    assert issubclass(composed, base)
    assert compose_scheduler(composed) is composed
    assert compose_scheduler(base) is composed


@pytest.mark.parametrize("is_async", [False, True])
def test_the_seam_serves_both_schedulers(is_async: bool) -> None:
    plugin.register()
    config = SchedulerConfig(max_model_len=64, is_encoder_decoder=False, async_scheduling=is_async)
    chosen = config.get_scheduler_cls()
    assert issubclass(chosen, MoveSchedulerMixin)
    assert issubclass(chosen, AsyncScheduler) is is_async


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"fidelity": "reuse"}, "fidelity"),
        ({"default_fidelity": "perfect"}, "default_fidelity"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"max_sessions": "many"}, "max_sessions"),
        ({"min_move_tokens": True}, "min_move_tokens"),
        ({"precompute_chunk_tokens": 0}, "precompute_chunk_tokens"),
        ({"precompute_max_pool_share": 1.5}, "precompute_max_pool_share"),
        ({"precompute_max_pool_share": float("nan")}, "precompute_max_pool_share"),
        ({"precompute_min_age_s": -1}, "precompute_min_age_s"),
        ({"precompute_chunk_s": "short"}, "precompute_chunk_s"),
        ({"precompute_quiet_s": "soon"}, "precompute_quiet_s"),
        ({"precompute_delay_share": 1.5}, "precompute_delay_share"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        engine_config(**settings)


def test_settings_are_read_back() -> None:
    settings = {
        "default_fidelity": "reuse",
        "keep_tail": False,
        "precompute_max_pool_share": 1,
        "precompute_min_age_s": 2.5,
    }
    extra = engine_config(**settings)["kv_transfer_config"]["kv_connector_extra_config"]
    assert EngineConfig.parse(extra) == EngineConfig(**settings)


def test_engine_config_names_the_connector() -> None:
    assert engine_config(default_fidelity="reuse")["kv_transfer_config"] == {
        "kv_connector": "AcmConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"default_fidelity": "reuse"},
    }


def _config(connector: str | None, offloading_gib: float | None) -> VllmConfig:
    transfer = None if connector is None else KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    return VllmConfig(cache_config=CacheConfig(kv_offloading_size=offloading_gib), kv_transfer_config=transfer)


def test_offloading_does_not_replace_our_connector() -> None:
    """vLLM would put its own connector in the place of ours. Ours has that one as a child."""
    plugin.register()
    transfer = _config("AcmConnector", 2).kv_transfer_config
    assert transfer is not None
    assert transfer.kv_connector == "TieredConnector"
    assert "cpu_bytes_to_use" not in transfer.kv_connector_extra_config


def test_a_tier_by_token_ids_is_refused_by_name() -> None:
    """Before an engine starts, in one line."""
    plugin.register()
    transfer = KVTransferConfig(kv_connector="AcmConnector", kv_role="kv_both")
    cache = CacheConfig(kv_offloading_size=2, kv_offloading_backend="lmcache")
    with pytest.raises(EngineMismatch, match=r"^--kv-offloading-backend lmcache stores KV under its token ids, .*flag"):
        VllmConfig(cache_config=cache, kv_transfer_config=transfer)


@pytest.mark.parametrize(
    ("connector", "offloading_gib", "chosen"),
    [("AcmConnector", None, "AcmConnector"), (None, 2, "OffloadingConnector")],
)
def test_other_starts_keep_their_connector(connector: str | None, offloading_gib: float | None, chosen: str) -> None:
    plugin.register()
    transfer = _config(connector, offloading_gib).kv_transfer_config
    assert transfer is not None
    assert transfer.kv_connector == chosen
