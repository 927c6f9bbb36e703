"""Requests that must be refused, each with the field that the refusal names. Bodies are additions to a valid body."""

from __future__ import annotations

from typing import Any

LONG = "x" * 257
IN_SESSION = {"session_id": "s"}

BAD_REQUESTS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"session_id": 7}, {}, "session_id"),
    ({"session_id": ["s"]}, {}, "session_id"),
    ({"session_id": {"id": "s"}}, {}, "session_id"),
    ({"session_id": True}, {}, "session_id"),
    ({"session_id": LONG}, {}, "session_id"),
    ({"session_id": "\ud800"}, {}, "session_id"),
    ({"session_id": LONG}, {"X-Session-ID": "s"}, "session_id"),
    ({"kv_transfer_params": {"acm": {"session_id": ""}}}, {}, "kv_transfer_params.acm.session_id"),
    ({"session_id": "", "acm": {}}, {"X-Session-ID": ""}, "session_id"),
    (IN_SESSION | {"acm": {"fidelity": "best"}}, {}, "acm.fidelity"),
    (IN_SESSION | {"acm": {"fidelity": "Exact"}}, {}, "acm.fidelity"),
    (IN_SESSION | {"acm": {"fidelity": ""}}, {}, "acm.fidelity"),
    (IN_SESSION | {"acm": {"fidelity": 1}}, {}, "acm.fidelity"),
    (IN_SESSION | {"acm": {"fidelity": ["exact"]}}, {}, "acm.fidelity"),
    (IN_SESSION | {"acm": {"fidelity": "reuse", "repair": {}}}, {}, "acm.repair"),
    (IN_SESSION | {"acm": {"fidelity": "exact", "repair": {"echoes": True}}}, {}, "acm.repair"),
    (IN_SESSION | {"acm": {"repair": {}}}, {}, "acm.repair"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": 128}}, {}, "acm.repair"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"head": 1}}}, {}, "acm.repair.head"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"head_tokens": 1.5}}}, {}, "acm.repair.head_tokens"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"tail_tokens": -1}}}, {}, "acm.repair.tail_tokens"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"tail_tokens": 2**63}}}, {}, "acm.repair.tail_tokens"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"head_tokens": True}}}, {}, "acm.repair.head_tokens"),
    (IN_SESSION | {"acm": {"fidelity": "repair", "repair": {"echoes": 1}}}, {}, "acm.repair.echoes"),
    (IN_SESSION | {"acm": {"fidelity": "auto", "repair": {"ranges": 4}}}, {}, "acm.repair.ranges"),
    (IN_SESSION | {"acm": {"fidelity": "auto", "repair": {"ranges": [[0, 4], [4]]}}}, {}, "acm.repair.ranges.1"),
    (IN_SESSION | {"acm": {"fidelity": "auto", "repair": {"ranges": [[4, 4]]}}}, {}, "acm.repair.ranges.0"),
    (IN_SESSION | {"acm": "reuse"}, {}, "acm"),
    (IN_SESSION | {"acm": ["reuse"]}, {}, "acm"),
    (IN_SESSION | {"acm": 0}, {}, "acm"),
    (IN_SESSION | {"acm": {"fidelty": "reuse"}}, {}, "acm.fidelty"),
    (IN_SESSION | {"acm": {"fidelity": "reuse", "session_id": "s"}}, {}, "acm.session_id"),
    ({"acm": {}}, {}, "session_id"),
    ({"acm": {"fidelity": "reuse"}}, {}, "session_id"),
    (IN_SESSION | {"n": 2}, {}, "n"),
    (IN_SESSION | {"use_beam_search": True}, {}, "use_beam_search"),
    ({"kv_transfer_params": {"acm": 4}}, {}, "kv_transfer_params.acm"),
    ({"kv_transfer_params": {"acm": {}}}, {}, "kv_transfer_params.acm.session_id"),
    ({"kv_transfer_params": {"acm": {"session_id": 5}}}, {}, "kv_transfer_params.acm.session_id"),
    ({"kv_transfer_params": {"acm": {"session_id": LONG}}}, {}, "kv_transfer_params.acm.session_id"),
    (
        {"kv_transfer_params": {"acm": {"session_id": "s", "fidelity": "best"}}},
        {},
        "kv_transfer_params.acm.fidelity",
    ),
    ({"kv_transfer_params": {"acm": {"session_id": "s", "plan": []}}}, {}, "kv_transfer_params.acm.plan"),
    (
        IN_SESSION | {"kv_transfer_params": {"acm": {"session_id": "t"}}},
        {},
        "kv_transfer_params.acm.session_id",
    ),
]
