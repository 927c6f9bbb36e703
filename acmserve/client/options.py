"""What a request asks for beside the vendor's fields: `acm` as a typed dictionary, and the extra body that carries it.

Clients pass it on: `client.chat.completions.create(..., extra_body=session.extra_body(fidelity="reuse"))`. A test holds
the keys against the server's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from acmserve.client.receipts import Fidelity


class AcmOptions(TypedDict, total=False):
    """Fields of `acm` in a request. The server's OpenAPI document describes each."""

    fidelity: Fidelity
    repair: Mapping[str, Any]
    speculate: bool
    tools: str | Sequence[str]
    max_tool_calls: int
    first_call_required: bool
    preset: str
    branch: Mapping[str, Any]
    commit: Literal["now", "cheapest"]
    budget: int | str | Mapping[str, Any]
    map: Mapping[str, Any]
    precompute: str | Mapping[str, Any]
    observations: str | Sequence[str]
    query_finished: bool | Literal["final"]
    rollout: bool


def extra_body(session_id: str, cache_salt: str | None, acm: AcmOptions) -> dict[str, Any]:
    """The fields of a request of that session. `acm` is left out where nothing is asked for."""
    fields: dict[str, Any] = {"session_id": session_id}
    if cache_salt is not None:
        fields["cache_salt"] = cache_salt
    return fields | ({"acm": dict(acm)} if acm else {})
