"""The wraps around vLLM that make it ours, put in place once a process.

    seam                                        what happens there
    KVConnectorFactory.register_connector       vLLM knows our connector by name
    SchedulerConfig.get_scheduler_cls           the mixin is composed with whatever scheduler vLLM chose
    Worker.get_kv_connector_handshake_metadata  the connector looks at the loaded model before the worker reports
    InputProcessor.process_inputs               a malformed session is refused in the front end

Decision: the mixin is composed, not named with `--scheduler-cls`, because that flag silently turns async scheduling
off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from acmserve.engine.vllm.hooks import ConnectorHooks
from acmserve.engine.vllm.scheduler import compose_scheduler

CheckRequest = Callable[[Any, str | None], object]
"""Raises for malformed `SamplingParams`, or a malformed session id of vLLM's own field."""


def install(name: str, module: str, check_request: CheckRequest) -> None:
    """Put the seams in place for connector class `name` of `module`. Safe to call more than once."""
    from vllm.config.scheduler import SchedulerConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.gpu_worker import Worker

    if name in KVConnectorFactory._registry:
        return
    KVConnectorFactory.register_connector(name, module, name)
    _wrap(SchedulerConfig, "get_scheduler_cls", _choose_scheduler)
    _wrap(Worker, "get_kv_connector_handshake_metadata", _inspect_model)
    _wrap(InputProcessor, "process_inputs", functools.partial(_check_session, name, check_request))


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, wrapper)


def _choose_scheduler(original: Callable[..., type], config: Any) -> type:
    return compose_scheduler(original(config))


def _inspect_model(original: Callable[..., Any], worker: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        if isinstance(connector, ConnectorHooks):
            connector.inspect(worker.get_model())
    return original(worker)


def _check_session(
    connector: str,
    check_request: CheckRequest,
    original: Callable[..., Any],
    processor: Any,
    request_id: str,
    prompt: Any,
    params: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    transfer = processor.vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector == connector:
        check_request(params, kwargs.get("session_id"))
    return original(processor, request_id, prompt, params, *args, **kwargs)
