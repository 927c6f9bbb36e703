"""LiteLLM: a callback that keeps the receipts of all answers.

    receipts = AcmCallback()
    litellm.callbacks = [receipts]
    litellm.completion("openai/my-model", ..., extra_body=session.extra_body(fidelity="reuse"))
    receipts.of("agent-7")

Decision: receipts are read from the headers, which LiteLLM hands on under names of its own. That of a streamed answer
names the session alone. LiteLLM calls back from a thread, after the answer has been given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from acmserve.client.answers import RECEIPT_HEADER, HeaderReceipt, header_receipt

PREFIX = "llm_provider-"
MAX_KEPT = 1024


class AcmCallback(CustomLogger):
    """Receipts, the newest at the end. `on_receipt` hears of each."""

    def __init__(self, on_receipt: Callable[[HeaderReceipt], None] | None = None) -> None:
        super().__init__()
        self.receipts: deque[HeaderReceipt] = deque(maxlen=MAX_KEPT)
        self._on_receipt = on_receipt

    def of(self, session_id: str) -> list[HeaderReceipt]:
        """Those of one session."""
        return [receipt for receipt in tuple(self.receipts) if receipt.session_id == session_id]

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """An answer was given."""
        self._note(response_obj)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """An answer was given to `litellm.acompletion`."""
        self._note(response_obj)

    def _note(self, response: Any) -> None:
        receipt = litellm_receipt(response)
        if receipt is not None:
            self.receipts.append(receipt)
            if self._on_receipt is not None:
                self._on_receipt(receipt)


def litellm_receipt(response: Any) -> HeaderReceipt | None:
    """The receipt of a LiteLLM answer. None where it has none."""
    hidden: Mapping[str, Any] = getattr(response, "_hidden_params", None) or {}
    headers: Mapping[str, Any] = hidden.get("additional_headers") or {}
    name = next((name for name in headers if name.lower().removeprefix(PREFIX) == RECEIPT_HEADER.lower()), None)
    return None if name is None else header_receipt({RECEIPT_HEADER: str(headers[name])})
