"""The rollout record as JSON lines, version 1: one object for the header, each completion and each operation.

    {"kind": "header", "version": 1, "session_id": ..., "model": ..., "suite": ...}
    {"kind": "completion", "number": 0, "thread": "main", "parent": null, "kept_tokens": 0, "prompt_token_ids": [..], ..
    {"kind": "operation", "number": 0, "after": 0, "by": "model", "name": "fold_fragment", "arguments": {...}, ...}

The same objects are the rows of the sessions' file. The id of the session joins them when they are read out, because a
session may move to another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.context.session.rollout.record import (
    CalledTool,
    Initiator,
    RolloutCompletion,
    RolloutEvent,
    RolloutHeader,
    RolloutOperation,
    RolloutRecord,
    Sampled,
)
from acmserve.validation import check_number

ROLLOUT_VERSION = 1

RolloutRow = RolloutHeader | RolloutEvent


def rollout_rows(record: RolloutRecord) -> tuple[RolloutRow, ...]:
    """The rows of a record, the header first."""
    return () if record.header is None else (record.header, *record.events)


def rollout_lines(record: RolloutRecord, session_id: str) -> Iterator[dict[str, Any]]:
    """The lines of a record that has a header."""
    for row in rollout_rows(record):
        value = row_value(row)
        if isinstance(row, RolloutHeader):
            kind, version, rest = value["kind"], value["version"], value
            value = {"kind": kind, "version": version, "session_id": session_id, **rest}
        yield value


def row_value(row: RolloutRow) -> dict[str, Any]:
    """A row as a JSON object."""
    if isinstance(row, RolloutHeader):
        return {"kind": "header", "version": ROLLOUT_VERSION, "model": row.model, "suite": row.suite}
    if isinstance(row, RolloutOperation):
        return {
            "kind": "operation",
            "number": row.number,
            "after": row.after,
            "by": row.by.value,
            "name": row.name,
            "arguments": dict(row.arguments),
            "saved_tokens": row.saved_tokens,
        }
    sampled = row.sampled
    return {
        "kind": "completion",
        "number": row.number,
        "thread": row.thread,
        "parent": row.parent,
        "sample": row.sample,
        "kept_tokens": row.num_kept,
        "prompt_token_ids": list(row.tail),
        "token_ids": list(sampled.token_ids),
        "logprobs": None if sampled.logprobs is None else list(sampled.logprobs),
        "finish_reason": sampled.finish_reason,
        "format_error": sampled.format_error,
        "tool_calls": [{"name": call.name, "operation": call.operation} for call in sampled.tool_calls],
    }


_NONE = type(None)
_HEADER = {"model": (str,), "suite": (str, _NONE)}
_CALL = {"name": (str,), "operation": (str, _NONE)}
_OPERATION = {
    "number": (int,),
    "after": (int,),
    "by": (str,),
    "name": (str,),
    "arguments": (dict,),
    "saved_tokens": (int, _NONE),
}
_COMPLETION = {
    "number": (int,),
    "thread": (str,),
    "parent": (int, _NONE),
    "sample": (int,),
    "kept_tokens": (int,),
    "prompt_token_ids": (list,),
    "token_ids": (list,),
    "logprobs": (list, _NONE),
    "finish_reason": (str,),
    "format_error": (str, _NONE),
    "tool_calls": (list,),
}


def record_from(values: Sequence[Mapping[str, Any]]) -> RolloutRecord:
    """The record that `row_value` made values of. Raises `ValueError`, `TypeError`, `KeyError` or `IntegrityError`."""
    if not values:
        return RolloutRecord()
    head, *rest = values
    if (head["kind"], head["version"]) != ("header", ROLLOUT_VERSION):
        raise ValueError(f"a rollout begins with {head['kind']!a} of version {head['version']!a}")
    header = RolloutHeader(**_typed(head, _HEADER))
    record = RolloutRecord(header, tuple(_event(value) for value in rest))
    record.check_integrity()
    return record


def _event(value: Mapping[str, Any]) -> RolloutEvent:
    if value["kind"] == "operation":
        fields = _typed(value, _OPERATION)
        return RolloutOperation(**fields | {"by": Initiator(fields["by"])})
    if value["kind"] != "completion":
        raise ValueError(f"a rollout has a row of the kind {value['kind']!a}")
    fields = _typed(value, _COMPLETION)
    logprobs = fields["logprobs"]
    sampled = Sampled(
        _numbers(fields["token_ids"], int),
        None if logprobs is None else _numbers(logprobs, float, int),
        fields["finish_reason"],
        fields["format_error"],
        tuple(CalledTool(**_typed(call, _CALL)) for call in fields["tool_calls"]),
    )
    return RolloutCompletion(
        fields["number"],
        fields["thread"],
        fields["parent"],
        fields["sample"],
        fields["kept_tokens"],
        _numbers(fields["prompt_token_ids"], int),
        sampled,
    )


def _typed(value: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """These fields of an object, each of one of its very types (True is no number)."""
    for name, kinds in fields.items():
        if type(value[name]) not in kinds:
            raise TypeError(f"{name} of a rollout is {type(value[name]).__name__}")
        check_number(value[name], f"{name} of a rollout")
    return {name: value[name] for name in fields}


def _numbers(values: Sequence[Any], *kinds: type) -> tuple[Any, ...]:
    if any(type(value) not in kinds for value in values):
        raise TypeError(f"a rollout has a {next(type(v) for v in values if type(v) not in kinds).__name__} for a token")
    for value in (min(values), max(values)) if values and kinds == (int,) else ():
        check_number(value, "a token of a rollout")
    return tuple(values)
