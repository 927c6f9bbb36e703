"""Finds `acm` in what the `openai` and `anthropic` clients give back: answers, events of streams, and headers.

    ChatCompletion, Response, Message      .acm
    ChatCompletionChunk                    .acm                    the one that ends the answer, and that of the usage
    response.completed                     .response.acm
    message_delta, message_start           .acm, .message.acm

Decision: nothing is imported from the clients. They keep fields that they do not know, in `model_extra`, and mappings
have them as keys. So any version of either client will do, and so will the JSON itself.

What is not there is None. A receipt that is there and cannot be read raises `UnreadableAnswer`. The message that
Anthropic's client puts together of a stream has what `message_start` knew. `message_delta` has it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from acmserve.client.decoding import decode
from acmserve.client.errors import UnreadableAnswer
from acmserve.client.receipts import AcmAnswer, CommitState, ContextCall, PromptReceipt

RECEIPT_HEADER = "X-ACM-Receipt"
_INSIDE = {
    "response.completed": "response",
    "response.incomplete": "response",
    "response.failed": "response",
    "message_start": "message",
    "chunk": "chunk",
}
"""Types of events whose object inside has `acm`. Chunks stand in events of the `openai` client's helper."""
_COUNTS = {"prompt", "kept", "moved", "computed"}
_NAMES = {"session", "found_by", "steps", "fidelity", "chosen", "fallback"} | _COUNTS


@dataclass(frozen=True, slots=True)
class HeaderReceipt:
    """The header `X-ACM-Receipt`: the receipt in one line. That of a stream has the session, and how it was found."""

    session_id: str
    fidelity: str | None = None
    prompt_tokens: int | None = None
    kept_tokens: int | None = None
    moved_tokens: int | None = None
    computed_tokens: int | None = None
    chosen: str | None = None
    fallback_reason: str | None = None
    num_steps: int | None = None
    found_by: str | None = None


@dataclass(frozen=True, slots=True)
class StepReceipt:
    """What a stream tells between the steps of a tool loop: the receipt of a step, and which edits wait."""

    step: int
    receipt: PromptReceipt | None
    commit: CommitState | None = None


@dataclass(frozen=True, slots=True)
class StepCall:
    """What a stream tells between the steps of a tool loop: a call that was carried out."""

    step: int
    call: ContextCall


def acm_of(answer: object) -> AcmAnswer | None:
    """`acm` of an answer, or of an event that ends one. None where there is none."""
    found = _acm(answer)
    if found is None or "event" in found:
        return None
    return decode(AcmAnswer, found, "acm")


def receipt_of(answer: object) -> PromptReceipt | None:
    """The receipt alone. That of a tool loop is of its last step."""
    found = acm_of(answer)
    return None if found is None else found.receipt


def step_of(event: object) -> StepReceipt | StepCall | None:
    """What an event of a stream tells of a step of the tool loop. None for any other event, and for answers."""
    found = _acm(event)
    if found is None or "event" not in found:
        return None
    if found["event"] == "receipt":
        return decode(StepReceipt, found, "acm")
    if found["event"] == "tool":
        return StepCall(decode(_Numbered, found, "acm").step, decode(ContextCall, found, "acm"))
    return None


def header_receipt(headers: Mapping[str, str]) -> HeaderReceipt | None:
    """The receipt in the headers of an answer. None where they have none, or say that there is none."""
    line = next((value for name, value in headers.items() if name.lower() == RECEIPT_HEADER.lower()), None)
    if line is None or "=" not in line:
        return None
    pairs = dict(part.strip().partition("=")[::2] for part in line.split(";"))
    values = {name: unquote(value) for name, value in pairs.items() if name in _NAMES}
    if "session" not in values:
        raise UnreadableAnswer(RECEIPT_HEADER, "names no session")
    counts = {f"{name}_tokens": _number(name, values[name]) for name in _COUNTS & set(values)}
    return HeaderReceipt(
        session_id=values["session"],
        fidelity=values.get("fidelity"),
        chosen=values.get("chosen"),
        fallback_reason=values.get("fallback"),
        num_steps=_number("steps", values["steps"]) if "steps" in values else None,
        found_by=values.get("found_by"),
        **counts,
    )


@dataclass(frozen=True, slots=True)
class _Numbered:
    step: int


def _acm(answer: object) -> Mapping[str, Any] | None:
    """The object itself, of an answer or inside an event."""
    found = _field(answer, "acm")
    kind = _field(answer, "type")
    if found is None and isinstance(kind, str) and kind in _INSIDE:
        found = _field(_field(answer, _INSIDE[kind]), "acm")
    if found is not None and not isinstance(found, Mapping):
        raise UnreadableAnswer("acm", f"must be an object, not {type(found).__name__}")
    return found


def _field(value: object, name: str) -> Any:
    """A field of a mapping or of a pydantic object, whether its class knows the field or not."""
    if isinstance(value, Mapping):
        return value.get(name)
    extra = getattr(value, "model_extra", None)
    if isinstance(extra, Mapping) and name in extra:
        return extra[name]
    return None if isinstance(value, (str, bytes)) else getattr(value, name, None)


def _number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise UnreadableAnswer(f"{RECEIPT_HEADER}.{name}", f"must be a number, not {value[:30]!r}")
    return int(value)
