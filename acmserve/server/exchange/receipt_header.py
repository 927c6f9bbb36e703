"""The receipt in one line, as a header of the answer. For clients and proxies that drop fields which they do not know.

    X-ACM-Receipt: session=agent-7; found_by=content; fidelity=reuse; prompt=640; kept=128; moved=480; computed=32
    X-Session-ID: agent-7

A proxy in front of several replicas learns the session from the second one, which has the name that requests have.

Decision: values are percent-encoded. A session id may be any text, a line break included, and a header is one line of
ASCII. The headers of a stream are sent before the receipt is known, so they say no more than how the session was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from acmserve.server.options.session_params import SESSION_HEADER

RECEIPT_HEADER = "X-ACM-Receipt"
_COUNTS = ("prompt", "kept", "moved", "computed")


def receipt_line(acm: Mapping[str, Any]) -> str:
    """The header's value for the `acm` of an answer. What a tool loop of several steps says is of its last step."""
    receipt: Mapping[str, Any] = acm.get("receipt") or {}
    values = {"session": acm.get("session_id"), "found_by": acm.get("found_by")}
    values |= {"steps": len(acm["steps"]) if "steps" in acm else None}
    values |= {"fidelity": receipt.get("fidelity"), "chosen": receipt.get("chosen")}
    values |= {name: receipt.get(f"{name}_tokens") for name in _COUNTS}
    values |= {"fallback": receipt.get("fallback_reason")}
    return "; ".join(f"{name}={quote(str(value), safe='')}" for name, value in values.items() if value is not None)


def session_line(session_id: str, fields: Mapping[str, Any]) -> str:
    """The header's value where the receipt is not known yet. `fields` are those that join it in `acm`."""
    return receipt_line({"session_id": session_id, "found_by": fields.get("found_by")})


def session_headers(session_id: str, line: str) -> dict[str, str]:
    """The headers of an answer: `line` as its receipt, and the session's id as it is, where a header can say it."""
    is_plain = session_id.isascii() and session_id.isprintable() and session_id == session_id.strip()
    return {RECEIPT_HEADER: line} | ({SESSION_HEADER: session_id} if is_plain else {})
