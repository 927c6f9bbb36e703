"""The session in the arguments that travel to the engine core: put in, read, and kept apart from what a client sends.

    SamplingParams.extra_args    kv_transfer_params.acm    the session: a client's own is read and checked
                                 acm_...                   ours alone: a client's request with one is refused
                                 anything else             passes as it is

A client fills them with `vllm_xargs` and `kv_transfer_params`. Raised is what vLLM's server answers with 400.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from acmserve.errors import InvalidRequest
from acmserve.plan.request import SessionParams, check_extra_args, parse_acm_params
from acmserve.server.identity.client_id import taken_id
from acmserve.server.vllm.handlers import VLLMValidationError


class SamplingArgs(Protocol):
    """The part of vLLM's SamplingParams that is read and written here."""

    extra_args: dict[str, Any] | None


def send_session(sampling_params: SamplingArgs, params: SessionParams) -> None:
    """Put the session into the arguments that travel to the engine core. Nothing that they share is changed."""
    extra_args = dict(sampling_params.extra_args or {})
    transfer = extra_args.get("kv_transfer_params") or {}
    if not isinstance(transfer, dict):  # a client's `vllm_xargs` may say anything under that name
        raise VLLMValidationError("kv_transfer_params must be an object", parameter="kv_transfer_params")
    extra_args["kv_transfer_params"] = transfer | {"acm": params.as_acm()}
    sampling_params.extra_args = extra_args


def check_sent(sampling_params: SamplingArgs) -> None:
    """Refuse a request in which a client has set an argument of ours, whatever route it came through."""
    try:
        check_extra_args(sampling_params.extra_args or {}, "vllm_xargs")
    except InvalidRequest as error:
        raise VLLMValidationError(f"{error.message} {error.remedy}", parameter=error.field) from error


def read_session(sampling_params: SamplingArgs, session_id: str | None) -> SessionParams | None:
    """The session of a request that came through a route without receipts (batch, token-in-token-out). Checked.

    `session_id` is that of vLLM's header, which is never refused. What the server alone sets is not taken from a
    client.
    """
    header_id = None if session_id is None else taken_id(session_id)
    params = None if header_id is None else SessionParams(header_id)
    try:
        transfer = (sampling_params.extra_args or {}).get("kv_transfer_params")
        if transfer is None:
            return params
        if not isinstance(transfer, dict):
            raise InvalidRequest("kv_transfer_params", "must be an object")
        if "acm" not in transfer:
            return params
        return replace(parse_acm_params(transfer["acm"]), account="", level=None, draft=False)
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter=error.field) from error
