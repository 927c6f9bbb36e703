"""Every private part of vLLM that the engine relies on, as a table, and the probe that compares it with this vLLM.

A method is compared by its leading parameters, an attribute by its presence. An attribute of an object counts as
present if its class has the name, annotates it, or assigns `self.NAME` in `__init__`.

Does not know versions (`version.py`) and changes nothing.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seam:
    """`place` is `module:Class.name` or `module:function`; `parameters` are None for an attribute."""

    place: str
    parameters: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """What a person reads: `Class.name`."""
        return self.place.partition(":")[2]


def _methods(owner: str, **parameters: str) -> tuple[Seam, ...]:
    return tuple(Seam(f"{owner}.{name}", tuple(found.split())) for name, found in parameters.items())


def _attributes(owner: str, names: str) -> tuple[Seam, ...]:
    return tuple(Seam(f"{owner}.{name}") for name in names.split())


_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_CACHE_UTILS = "vllm.v1.core.kv_cache_utils"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_QUEUE = f"{_CACHE_UTILS}:FreeKVCacheBlockQueue"
_REQUEST = "vllm.v1.request:Request"

SEAMS: tuple[Seam, ...] = (
    *_methods("vllm.config.scheduler:SchedulerConfig", get_scheduler_cls="self"),
    *_methods(
        _SCHEDULER,
        schedule="self throttle_prefills",
        _reserve_prefill_lookahead="self request num_computed_tokens num_new_tokens",
        _build_kv_connector_meta="self connector scheduler_output",
        _preempt_request="self request timestamp",
        update_from_output="self scheduler_output model_runner_output",
        _free_cow_retained_blocks="self blocks fence_seq",
        reset_prefix_cache="self reset_running_requests reset_connector",
        finish_requests="self request_ids finished_status",
        get_num_unfinished_requests="self",
    ),
    *_attributes(
        _SCHEDULER,
        "connector running waiting kv_holding_waiting num_waiting_for_streaming_input requests kv_cache_manager "
        "sched_step_seq use_v2_model_runner",
    ),
    *_methods(
        "vllm.v1.core.sched.request_queue:RequestQueue", add_request="self request", remove_requests="self requests"
    ),
    *_methods(_REQUEST, update_block_hashes="self", get_finished_reason="self", take_events="self"),
    *_attributes(
        _REQUEST,
        "_block_hasher block_hashes _all_token_ids num_computed_tokens num_in_flight_tokens status client_index "
        "trace_headers",
    ),
    *_methods(
        _MANAGER,
        get_block_ids="self request_id",
        get_blocks="self request_id",
        get_computed_blocks="self request",
        evict_blocks="self block_ids",
    ),
    *_attributes(_MANAGER, "block_pool watermark_blocks"),
    *_methods(
        _POOL,
        get_cached_block="self block_hash kv_cache_group_ids",
        _insert_block_hash="self block_hash_with_group_id block num_tokens",
        _maybe_evict_cached_block="self block",
        unpin_blocks="self blocks on_reuse",
        touch="self blocks",
        get_num_free_blocks="self",
    ),
    *_attributes(_POOL, "blocks enable_caching free_block_queue"),
    *_methods(_QUEUE, remove="self block", iter_blocks_after="self cursor"),
    *_attributes(_QUEUE, "fake_free_list_tail num_free_blocks"),
    *_attributes(f"{_CACHE_UTILS}:KVCacheBlock", "block_id ref_cnt block_hash is_null prev_free_block next_free_block"),
    Seam(f"{_CACHE_UTILS}:make_block_hash_with_group_id", ("block_hash", "group_id")),
    Seam(f"{_CACHE_UTILS}:generate_block_hash_extra_keys", ("request", "start_token_idx", "end_token_idx")),
    Seam(f"{_CACHE_UTILS}:hash_block_tokens", ("hash_function", "parent_block_hash", "curr_block_token_ids")),
    Seam("vllm.utils.hashing:get_hash_fn_by_name", ("hash_fn_name",)),
    *_attributes(
        f"{_OUTPUT}:SchedulerOutput",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens has_sync_kv_loads",
    ),
    *_attributes(
        f"{_OUTPUT}:CachedRequestData", "req_ids new_token_ids new_block_ids num_computed_tokens num_output_tokens"
    ),
    *_methods(f"{_OUTPUT}:NewRequestData", from_request="request block_ids prefill_token_ids"),
    *_attributes("vllm.v1.engine:EngineCoreOutput", "request_id kv_transfer_params"),
    *_methods("vllm.v1.worker.gpu_worker:Worker", get_kv_connector_handshake_metadata="self"),
    *_methods("vllm.v1.engine.input_processor:InputProcessor", process_inputs="self request_id prompt params"),
    *_attributes("vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory", "_registry"),
)


def broken_seams(seams: Iterable[Seam] = SEAMS) -> list[str]:
    """What of `seams` does not fit this vLLM, one line each: the name, and what was found in its place."""
    return [f"{seam.name} {problem}" for seam in seams if (problem := _problem(seam)) is not None]


def _problem(seam: Seam) -> str | None:
    module_name, _, path = seam.place.partition(":")
    owner_name, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError as error:
        return f"is gone ({error})"
    if owner_name:
        owner = getattr(owner, owner_name, None)
        if owner is None:
            return f"is gone with {owner_name}"
    if seam.parameters is None:
        return None if _has_attribute(owner, name) else "is gone"
    function = getattr(owner, name, None)
    if not callable(function):
        return "is gone"
    found = tuple(inspect.signature(function).parameters)
    if found[: len(seam.parameters)] != seam.parameters:
        return f"has the parameters {found}, expected {seam.parameters}"
    return None


def _has_attribute(owner: type, name: str) -> bool:
    if hasattr(owner, name) or any(name in vars(base).get("__annotations__", {}) for base in owner.__mro__):
        return True
    return any(
        re.search(rf"\bself\.{name}\b[^=\n]*=[^=]", inspect.getsource(vars(base)["__init__"]))
        for base in owner.__mro__[:-1]
        if "__init__" in vars(base) and not is_dataclass(base)
    )
