"""Reads a rollout record: JSON lines, version 1. A header, then completions and operations as they happened.

    {"kind": "header", "version": 1, "session_id": "a", "model": "m", "suite": null}
    {"kind": "completion", "number": 0, "thread": "main", "parent": null, "kept_tokens": 0, ...}
    {"kind": "operation", "number": 0, "after": 0, "by": "model", "name": "fold", ...}

Each field is checked before it is used. A wrong one raises `MalformedRecord`, which names its line and its field.

Decision: unknown fields are passed over, so that a newer server may add some. Another version or kind is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from acmserve.errors import MalformedRecord
from acmserve.training.rollout import ContextOperation, Rollout, SampledCall, SampledCompletion
from acmserve.validation import echo

VERSION = 1
ACTORS = ("model", "caller", "policy", "summary")
MAX_TOKEN_ID = 2**31 - 1


def read_rollout(lines: Iterable[str]) -> Rollout:
    """The rollout that the lines record. Raises `MalformedRecord`."""
    header: _Fields | None = None
    completions: dict[int, SampledCompletion] = {}
    operations: list[ContextOperation] = []
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        fields = _Fields(line, _parse(line, text))
        kind = fields.text("kind")
        if (kind == "header") != (header is None):
            raise MalformedRecord(line, "kind", f"is {echo(kind)}; a record has one header, and it is the first line")
        if kind == "header":
            header = fields
            _check_header(fields)
        elif kind == "completion":
            completion = _read_completion(fields, completions)
            completions[completion.number] = completion
        elif kind == "operation":
            operations.append(_read_operation(fields, completions))
        else:
            raise MalformedRecord(line, "kind", f"must be header, completion or operation, not {echo(kind)}")
    if header is None:
        raise MalformedRecord(1, "kind", "is missing: the record is empty, and its first line must be a header")
    return Rollout(
        session_id=header.text("session_id"),
        model=header.text("model"),
        suite=header.get("suite"),
        completions=completions,
        operations=tuple(operations),
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one line. Each reader returns a value of its type, or raises `MalformedRecord`."""

    line: int
    values: Mapping[str, Any]
    prefix: str = ""

    def wrong(self, field: str, problem: str) -> MalformedRecord:
        return MalformedRecord(self.line, self.prefix + field, problem)

    def get(self, field: str) -> Any:
        if field not in self.values:
            raise self.wrong(field, "is missing")
        return self.values[field]

    def text(self, field: str) -> str:
        value = self.get(field)
        if not isinstance(value, str):
            raise self.wrong(field, f"must be a string, not {echo(value)}")
        return value

    def text_or_none(self, field: str) -> str | None:
        return None if self.get(field) is None else self.text(field)

    def integer(self, field: str, low: int, high: int | None = None) -> int:
        value = self.get(field)
        if type(value) is not int or value < low or (high is not None and value > high):
            bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise self.wrong(field, f"must be an integer {bounds}, not {echo(value)}")
        return value

    def array(self, field: str) -> list[Any]:
        value = self.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, f"must be an array, not {echo(value)}")
        return value

    def token_ids(self, field: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        values = self.array(field)
        for place, value in enumerate(values):
            if type(value) is not int or not 0 <= value <= MAX_TOKEN_ID:
                raise self.wrong(f"{field}[{place}]", f"must be a token id, not {echo(value)}")
        return np.array(values, dtype=np.int32)


def _parse(line: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = str(error) or "nested too deeply"
        raise MalformedRecord(line, "", f"is no JSON ({problem}); was the record cut off?") from error
    if not isinstance(value, dict):
        raise MalformedRecord(line, "", f"must be an object, not {echo(value)}")
    return value


def _check_header(fields: _Fields) -> None:
    if (version := fields.get("version")) != VERSION or isinstance(version, bool):
        raise fields.wrong("version", f"is {echo(version)}; this acmserve reads version {VERSION}")
    for name in ("session_id", "model"):
        fields.text(name)


def _read_completion(fields: _Fields, known: dict[int, SampledCompletion]) -> SampledCompletion:
    number = fields.integer("number", 0)
    if known and number <= (last := next(reversed(known))):
        raise fields.wrong("number", f"is {number} behind {last}; the numbers of completions rise")
    parent = None if fields.get("parent") is None else fields.integer("parent", 0)
    if parent is not None and parent not in known:
        raise fields.wrong("parent", f"names completion {parent}, which no earlier line has")
    kept = fields.integer("kept_tokens", 0)
    if kept > (bound := 0 if parent is None else known[parent].num_tokens):
        has = "has no parent" if parent is None else f"has a parent of {bound} tokens"
        raise fields.wrong("kept_tokens", f"is {kept}, but the completion {has}")
    token_ids = fields.token_ids("token_ids")
    return SampledCompletion(
        number=number,
        thread=fields.text("thread"),
        parent=parent,
        sample=fields.integer("sample", 0),
        kept_tokens=kept,
        tail=fields.token_ids("prompt_token_ids"),
        token_ids=token_ids,
        logprobs=_read_logprobs(fields, len(token_ids)),
        finish_reason=fields.text("finish_reason"),
        format_error=fields.text_or_none("format_error"),
        calls=_read_calls(fields),
    )


def _read_logprobs(fields: _Fields, num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
    if fields.get("logprobs") is None:
        return None
    values = fields.array("logprobs")
    if len(values) != num_tokens:
        raise fields.wrong("logprobs", f"has {len(values)} values for {num_tokens} sampled tokens")
    for place, value in enumerate(values):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise fields.wrong(f"logprobs[{place}]", f"must be a finite number, not {echo(value)}")
    return np.array(values, dtype=np.float32)


def _read_calls(fields: _Fields) -> tuple[SampledCall, ...]:
    calls = []
    for place, value in enumerate(fields.array("tool_calls")):
        if not isinstance(value, dict):
            raise fields.wrong(f"tool_calls[{place}]", f"must be an object, not {echo(value)}")
        call = _Fields(fields.line, value, f"tool_calls[{place}].")
        calls.append(SampledCall(call.text("name"), call.text_or_none("operation")))
    return tuple(calls)


def _read_operation(fields: _Fields, known: Mapping[int, SampledCompletion]) -> ContextOperation:
    after = fields.integer("after", -1)
    if after >= 0 and after not in known:
        raise fields.wrong("after", f"names completion {after}, which no earlier line has")
    by = fields.text("by")
    if by not in ACTORS:
        raise fields.wrong("by", f"must be one of {', '.join(ACTORS)}, not {echo(by)}")
    arguments = fields.get("arguments")
    if not isinstance(arguments, dict):
        raise fields.wrong("arguments", f"must be an object, not {echo(arguments)}")
    saved = fields.get("saved_tokens")
    if saved is not None and type(saved) is not int:
        raise fields.wrong("saved_tokens", f"must be an integer or null, not {echo(saved)}")
    return ContextOperation(
        number=fields.integer("number", 0),
        after=after,
        by=by,
        name=fields.text("name"),
        arguments=arguments,
        saved_tokens=saved,
    )
