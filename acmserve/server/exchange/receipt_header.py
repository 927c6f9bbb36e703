"""The receipt in one line, as a header of the answer. For clients and proxies that drop fields which they do not know.

    X-ACM-Receipt: session=agent-7; fidelity=reuse; prompt=640; kept=128; moved=480; computed=32

Decision: values are percent-encoded. A session id may be any text, a line break included, and a header is one line of
ASCII. The headers of a stream are sent before the receipt is known, so they name the session alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

RECEIPT_HEADER = "X-ACM-Receipt"
_COUNTS = ("prompt", "kept", "moved", "computed")


def receipt_line(acm: Mapping[str, Any]) -> str:
    """The header's value for the `acm` of an answer. What a tool loop of several steps says is of its last step."""
    receipt: Mapping[str, Any] = acm.get("receipt") or {}
    values = {"session": acm.get("session_id"), "steps": len(acm["steps"]) if "steps" in acm else None}
    values |= {"fidelity": receipt.get("fidelity"), "chosen": receipt.get("chosen")}
    values |= {name: receipt.get(f"{name}_tokens") for name in _COUNTS}
    values |= {"fallback": receipt.get("fallback_reason")}
    return "; ".join(f"{name}={quote(str(value), safe='')}" for name, value in values.items() if value is not None)


def session_line(session_id: str) -> str:
    """The header's value where the receipt is not known yet."""
    return receipt_line({"session_id": session_id})
