"""A typed client: receipts out of the official clients' answers, and handles of sessions. It loads no engine.

`SessionHandle` edits a session, and `ServerHandle` sees all of them. `acm_of`, `receipt_of` and `ReceiptStream` read
what answers and streams of the `openai` and `anthropic` clients carry. `adapters/` has LangGraph, OpenAI's Agents SDK
and LiteLLM.
"""

from __future__ import annotations

from acmserve.client.answers import (
    HeaderReceipt,
    StepCall,
    StepReceipt,
    acm_of,
    header_receipt,
    receipt_of,
    step_of,
)
from acmserve.client.async_server import AsyncServerHandle
from acmserve.client.async_session import AsyncBranchHandle, AsyncSessionHandle
from acmserve.client.calls import PlannedEdit
from acmserve.client.errors import (
    AcmClientError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ContextTooLongError,
    ForbiddenError,
    NotFoundError,
    PayloadTooLargeError,
    RefusedRequest,
    ServerUnreachable,
    ServiceUnavailableError,
    UnreadableAnswer,
    UnsupportedMediaTypeError,
    refusal_of,
)
from acmserve.client.options import AcmOptions
from acmserve.client.receipts import AcmAnswer, Fidelity, PromptReceipt
from acmserve.client.server import ServerHandle
from acmserve.client.session import BranchHandle, SessionHandle
from acmserve.client.streams import AsyncReceiptStream, ReceiptReader, ReceiptStream

__all__ = [
    "AcmAnswer",
    "AcmClientError",
    "AcmOptions",
    "AsyncBranchHandle",
    "AsyncReceiptStream",
    "AsyncServerHandle",
    "AsyncSessionHandle",
    "AuthenticationError",
    "BadRequestError",
    "BranchHandle",
    "ConflictError",
    "ContextTooLongError",
    "Fidelity",
    "ForbiddenError",
    "HeaderReceipt",
    "NotFoundError",
    "PayloadTooLargeError",
    "PlannedEdit",
    "PromptReceipt",
    "ReceiptReader",
    "ReceiptStream",
    "RefusedRequest",
    "ServerHandle",
    "ServerUnreachable",
    "ServiceUnavailableError",
    "SessionHandle",
    "StepCall",
    "StepReceipt",
    "UnreadableAnswer",
    "UnsupportedMediaTypeError",
    "acm_of",
    "header_receipt",
    "receipt_of",
    "refusal_of",
    "step_of",
]
