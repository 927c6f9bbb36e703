"""The wraps around vLLM that make it ours, put in place once a process.

    seam                                        what happens there
    KVConnectorFactory.register_connector       vLLM knows our connector by name
    SchedulerConfig.get_scheduler_cls           the mixin is composed with whatever scheduler vLLM chose
    Worker.get_kv_connector_handshake_metadata  the connector looks at the loaded model before the worker reports
    Worker.acm_move_refusal                     added: the front end asks why no KV is moved
    GPUModelRunner._prepare_inputs              the holes of a request stand where they belong (`passes/runner_v1.py`)
    GPUModelRunner._build_attention_metadata    each of them is a row of attention
    GPUModelRunner.prepare_inputs               the same in model runner V2 (`passes/runner_v2.py`), where its seams fit
    DefaultModelState.prepare_attn
    InputProcessor.process_inputs               a malformed session is refused in the front end, another gets its rank
    EngineCore.add_lora                         the connector learns that an adapter is loaded, perhaps in place
    GPUModelRunner._model_forward               a background chunk may be left between two layers (`forward_exit.py`)
    EngineCore.preprocess_add_request           a request is stamped when it is ready, also while a step runs
    VllmConfig._post_init_kv_transfer_config    KV is offloaded below our connector, not in its place

Decision: the mixin is composed, not named with `--scheduler-cls`, because that flag silently turns async scheduling
off.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from acmserve.engine.config import MOVE_REFUSAL_CALL
from acmserve.engine.vllm.hooks import READY_AT, ConnectorHooks
from acmserve.engine.vllm.model import forward_exit
from acmserve.engine.vllm.passes import runner_v1, runner_v2
from acmserve.engine.vllm.scheduler import compose_scheduler
from acmserve.errors import EngineMismatch

_NOT_ASKED = object()
PlaceRequest = Callable[[Any, str | None, int, bool], int | None]
"""The rank, among so many, of `SamplingParams` and vLLM's own session id, None where any will do.

The last argument is set for a piece of streaming input.

Raises where one of them is malformed.
"""


def install(modules: Mapping[str, str], place_request: PlaceRequest) -> None:
    """Put the seams in place for our connector classes and their modules. Safe to call more than once.

    The first one is ours, the second one takes its place where vLLM is told to offload KV.
    """
    from vllm.config import VllmConfig
    from vllm.config.scheduler import SchedulerConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    if next(iter(modules)) in KVConnectorFactory._registry:
        return
    for name, module in modules.items():
        KVConnectorFactory.register_connector(name, module, name)
    _wrap(VllmConfig, "_post_init_kv_transfer_config", functools.partial(_keep_connector, tuple(modules)))
    _wrap(SchedulerConfig, "get_scheduler_cls", _choose_scheduler)
    _wrap(Worker, "get_kv_connector_handshake_metadata", _inspect_model)
    setattr(Worker, MOVE_REFUSAL_CALL, _move_refusal)
    _wrap(GPUModelRunner, "_prepare_inputs", runner_v1.prepare_inputs)
    _wrap(GPUModelRunner, "_build_attention_metadata", runner_v1.build_attention_metadata)
    _wrap(GPUModelRunner, "_model_forward", forward_exit.run_model)
    if runner_v2.why_no_passes() is None:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner as GPUModelRunnerV2
        from vllm.v1.worker.gpu.model_states.default import DefaultModelState

        _wrap(GPUModelRunnerV2, "prepare_inputs", runner_v2.prepare_inputs)
        _wrap(DefaultModelState, "prepare_attn", runner_v2.prepare_attn)
    _wrap(EngineCore, "add_lora", _note_adapter)
    _wrap(EngineCore, "preprocess_add_request", _stamp_request)
    _wrap(InputProcessor, "process_inputs", functools.partial(_place_session, tuple(modules), place_request))


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, wrapper)


def _keep_connector(connectors: Sequence[str], original: Callable[..., None], config: Any) -> None:
    """vLLM gives the place of the connector to the one that it offloads with. Ours owns that one as a child."""
    transfer, cache = config.kv_transfer_config, config.cache_config
    if transfer is None or transfer.kv_connector not in connectors or cache.kv_offloading_size is None:
        original(config)
        return
    if cache.kv_offloading_backend != "native":
        raise EngineMismatch(
            f"--kv-offloading-backend {cache.kv_offloading_backend} stores KV under its token ids, so an exact request "
            "would get KV that was moved; leave the flag out, for vLLM's own tier"
        )
    transfer.kv_connector = connectors[-1]


def _choose_scheduler(original: Callable[..., type], config: Any) -> type:
    return compose_scheduler(original(config))


def _inspect_model(original: Callable[..., Any], worker: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        if isinstance(connector, ConnectorHooks):
            connector.inspect(worker.get_model(), worker.get_draft_model())
    return original(worker)


def _move_refusal(_worker: Any) -> str | None:
    """Why this worker's KV is not moved, None where it is."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    connector = get_kv_transfer_group() if has_kv_transfer_group() else None
    if not isinstance(connector, ConnectorHooks):
        return "another KV connector wraps acmserve's"
    refusal: str | None = connector.abilities.move_refusal
    return refusal


def _note_adapter(original: Callable[..., bool], core: Any, lora_request: Any) -> bool:
    """Before the workers read the files. Between two steps, as all calls to the core."""
    connector = getattr(core.scheduler, "connector", None)
    if isinstance(connector, ConnectorHooks):
        connector.on_adapter_load(lora_request)
    return original(core, lora_request)


def _stamp_request(original: Callable[..., tuple[Any, int]], core: Any, request: Any) -> tuple[Any, int]:
    """In the thread that reads what arrives: the core's own may be in a step. A long prompt is hashed here, too."""
    connector = getattr(core.scheduler, "connector", None)
    if isinstance(connector, ConnectorHooks):
        connector.on_queued(request)
    made, wave = original(core, request)
    setattr(made, READY_AT, time.monotonic())
    return made, wave


def _place_session(
    connectors: Sequence[str],
    place_request: PlaceRequest,
    original: Callable[..., Any],
    processor: Any,
    request_id: str,
    prompt: Any,
    params: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    transfer = processor.vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector in connectors:
        num_ranks = _num_ranks(processor.vllm_config.parallel_config)
        rank = place_request(params, kwargs.get("session_id"), num_ranks, kwargs.get("resumable", False))
        if rank is not None and kwargs.get("data_parallel_rank", _NOT_ASKED) is None:
            kwargs["data_parallel_rank"] = rank
    return original(processor, request_id, prompt, params, *args, **kwargs)


def _num_ranks(parallel: Any) -> int:
    """The ranks that a front end chooses from, as `process_inputs` counts them."""
    return int(parallel.data_parallel_size_local if parallel.local_engines_only else parallel.data_parallel_size)
