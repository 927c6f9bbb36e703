"""Builds vLLM's real scheduler for a machine that does not exist: a tiny model, a tiny pool, no device.

`VllmConfig` decides on this machine's hardware (no async scheduling on a CPU, no runner V2 without Triton). Both are
overruled after the config was built, for they are exactly what a simulation wants to choose. Nothing else is touched.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.engine.worker.kv_mover import Abilities

MAX_MODEL_LEN = 2048
_CHUNK_BYTES = 4096  # blocks are smaller: vLLM aligns each chunk of the tier to so many

SchedulerClass = type[Scheduler]
BlockHasher = Callable[[Request], list[BlockHash]]


@dataclass(frozen=True)
class Machine:
    """What a script runs on. `connector` holds `kv_connector_extra_config`, and None is a stock engine.

    With `num_drafts` each step of decoding verifies that many drafts, as `drafting/drafts.py` makes them: synchronous
    on runner V1, either way on V2. `draft_method` says what vLLM takes the drafter for: one by EAGLE has KV, see
    `drafting/worker.py`, and with async scheduling its drafts stay on the device.
    `windows` add a KV cache group each, with blocks of `window_block_size` tokens (0: as the others). `retention` is
    vLLM's `prefix_cache_retention_interval`: None keeps the windows of every block, 0 those at the ends of prompts.
    Behind them stand `num_recurrent` groups of states, one for each block of full attention where it is kept. The last
    `num_convolutions` of them are of short convolutions, which are copied and not composed.
    Without `has_full` there are those groups alone. With `chunked` each window is one of local chunks of its size.
    With `tier_chunks` so many blocks are kept in a tier below the pool. Without `has_passes` each hole of a request
    takes a step of its own.
    Events of the KV cache go nowhere until somebody puts a publisher into the scheduler.
    """

    async_scheduling: bool
    runner_v2: bool
    block_size: int = 4
    num_blocks: int = 100
    max_num_batched_tokens: int = 32
    max_num_seqs: int = 4
    policy: Literal["fcfs", "priority"] = "fcfs"
    reserve_full_input: bool = True
    long_prefill_threshold: int = 0
    watermark: float = 0.0
    connector: dict[str, Any] | None = field(default=None, hash=False)
    connector_name: str = "AcmConnector"
    kv_events: bool = False
    num_drafts: int = 0
    draft_method: str = "ngram"
    images: bool = False
    mrope: bool = False
    windows: tuple[int, ...] = ()
    window_block_size: int = 0
    has_full: bool = True
    chunked: bool = False
    num_recurrent: int = 0
    num_convolutions: int = 0
    retention: int | None = None
    tier_chunks: int = 0
    has_passes: bool = True

    @property
    def groups(self) -> tuple[tuple[int, int | None], ...]:
        """(block size, window) of every KV cache group: one of full attention, then those with a window."""
        windows = tuple((self.window_block_size or self.block_size, window) for window in self.windows)
        return ((self.block_size, None), *windows) if self.has_full else windows

    @property
    def hash_block_size(self) -> int:
        """Tokens that one block hash covers, as vLLM resolves them."""
        return math.gcd(*(size for size, _ in self.groups))

    @property
    def scheduler_block_size(self) -> int:
        """Tokens to which a prefix hit is aligned, as vLLM resolves them."""
        return math.lcm(*(size for size, _ in self.groups))


class _RunnerV2Config(VllmConfig):  # type: ignore[misc]
    """A `VllmConfig` whose worker is model runner V2, also where vLLM itself would refuse it."""

    @property
    def use_v2_model_runner(self) -> bool:
        return True


class _RunnerV1Config(VllmConfig):  # type: ignore[misc]
    """A `VllmConfig` whose worker is model runner V1, whatever the environment says."""

    @property
    def use_v2_model_runner(self) -> bool:
        return False


def write_model(folder: Path) -> Path:
    """A one-layer Llama `config.json`. Nothing ever loads weights for it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 1000,
        "max_position_embeddings": 2**20,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Factory:
    """Schedulers for machines. The factory keeps the one expensive part, vLLM's model config.

    `adapt` is applied to the scheduler class that vLLM chooses: the place where a negative control breaks something.
    """

    def __init__(
        self,
        model: Path,
        adapt: Callable[[SchedulerClass], SchedulerClass] = lambda cls: cls,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self._adapt = adapt
        self._max_model_len = max_model_len
        self._model_config = ModelConfig(
            model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len
        )
        init_none_hash(sha256)

    def adapted(self, adapt: Callable[[SchedulerClass], SchedulerClass]) -> Factory:
        """The same factory with another `adapt`."""
        other = copy.copy(self)
        other._adapt = adapt
        return other

    def scheduler(self, machine: Machine) -> Scheduler:
        """A fresh scheduler, with its block pool and, unless stock, its connector."""
        config = self._config(machine)
        shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 16, "dtype": torch.float32}
        specs: list[Any] = [
            FullAttentionSpec(block_size=size, **shape)
            if window is None
            else ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=window, **shape)
            if machine.chunked
            else SlidingWindowSpec(block_size=size, sliding_window=window, **shape)
            for size, window in machine.groups
        ]
        num_bytes, num_composed = specs[0].page_size_bytes, machine.num_recurrent - machine.num_convolutions
        specs += [_state_spec(machine.block_size, num_bytes)] * num_composed
        specs += [_convolution_spec(machine.block_size, num_bytes)] * machine.num_convolutions
        kv_cache = KVCacheConfig(
            num_blocks=machine.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"model.layers.{index}.self_attn.attn"], spec) for index, spec in enumerate(specs)
            ],
            prefix_cache_retention_interval=machine.retention,
        )
        chosen: Any = AsyncScheduler if machine.async_scheduling else Scheduler
        if machine.connector is not None:
            chosen = config.scheduler_config.get_scheduler_cls()
        scheduler = self._adapt(chosen)(
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=machine.scheduler_block_size,
            hash_block_size=machine.hash_block_size,
            log_stats=True,
        )
        if machine.images:
            _give_encoder(scheduler, machine)
        if machine.connector is not None and not machine.has_passes:
            connector = scheduler.connector
            connector.abilities = connector.abilities.both(Abilities(pass_refusal="machine: a step for each hole"))
        return scheduler

    def _config(self, machine: Machine) -> VllmConfig:
        transfer = machine.connector is not None and KVTransferConfig(
            kv_connector=machine.connector_name, kv_role="kv_both", kv_connector_extra_config=machine.connector
        )
        drafts = machine.num_drafts and SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=machine.num_drafts,
            prompt_lookup_min=1,
            prompt_lookup_max=2,
            target_model_config=self._model_config,
            target_parallel_config=ParallelConfig(),
        )
        if drafts:
            drafts.method = machine.draft_method
        config = VllmConfig(
            model_config=self._model_config,
            cache_config=CacheConfig(
                block_size=machine.block_size,
                enable_prefix_caching=True,
                kv_offloading_size=machine.tier_chunks * _CHUNK_BYTES / 2**30 if machine.tier_chunks else None,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=machine.max_num_seqs,
                max_num_batched_tokens=machine.max_num_batched_tokens,
                max_model_len=self._max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                policy=machine.policy,
                scheduler_reserve_full_isl=machine.reserve_full_input,
                long_prefill_token_threshold=machine.long_prefill_threshold,
                watermark=machine.watermark,
            ),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=transfer or None,
            speculative_config=drafts or None,
            kv_events_config=KVEventsConfig(enable_kv_cache_events=machine.kv_events, publisher="null"),
        )
        config.__class__ = _RunnerV2Config if machine.runner_v2 else _RunnerV1Config
        config.scheduler_config.async_scheduling = machine.async_scheduling
        config.cache_config.mamba_cache_mode = "align" if machine.num_recurrent else "none"
        config.cache_config.num_gpu_blocks = machine.num_blocks
        return config


def _state_spec(block_size: int, num_bytes: int) -> MambaSpec:
    """States of gated delta nets in so many bytes, with a convolution that mixes one token in."""
    return MambaSpec(
        block_size=block_size,
        shapes=((1, num_bytes // 8), (num_bytes // 8,)),
        dtypes=(torch.float32, torch.float32),
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
        mamba_cache_mode="align",
    )


def _convolution_spec(block_size: int, num_bytes: int) -> MambaSpec:
    """The inputs of a short convolution in so many bytes. It mixes one token in."""
    return MambaSpec(
        block_size=block_size,
        shapes=((1, num_bytes // 4),),
        dtypes=(torch.float32,),
        mamba_type=MambaAttentionBackendEnum.SHORT_CONV,
        mamba_cache_mode="align",
    )


def _give_encoder(scheduler: Any, machine: Machine) -> None:
    """Room for images, which the model of no weights has none of, and what our connector would know of such a model."""
    size = machine.max_num_batched_tokens
    scheduler.max_num_encoder_input_tokens = size
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=size)
    scheduler.model_uses_mrope = machine.mrope
    if machine.connector is not None:
        scheduler.connector.arrivals._media = MediaRule(media_shift_positions=machine.mrope)


def block_hasher(block_size: int) -> BlockHasher:
    """The hasher that vLLM's engine core gives to every request."""
    hasher: BlockHasher = get_request_block_hasher(block_size, sha256)
    return hasher
