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


def record_from(values: Sequence[Mapping[str, Any]]) -> RolloutRecord:
    """The record that `row_value` made values of. Raises `ValueError`, `TypeError`, `KeyError` or `IntegrityError`."""
    if not values:
        return RolloutRecord()
    head, *rest = values
    if (head["kind"], head["version"]) != ("header", ROLLOUT_VERSION):
        raise ValueError(f"a rollout begins with {head['kind']!a} of version {head['version']!a}")
    record = RolloutRecord(RolloutHeader(head["model"], head["suite"]), tuple(_event(value) for value in rest))
    record.check_integrity()
    return record


def _event(value: Mapping[str, Any]) -> RolloutEvent:
    if value["kind"] == "operation":
        return RolloutOperation(
            value["number"],
            value["after"],
            Initiator(value["by"]),
            value["name"],
            value["arguments"],
            value["saved_tokens"],
        )
    if value["kind"] != "completion":
        raise ValueError(f"a rollout has a row of the kind {value['kind']!a}")
    logprobs = value["logprobs"]
    sampled = Sampled(
        tuple(value["token_ids"]),
        None if logprobs is None else tuple(logprobs),
        value["finish_reason"],
        value["format_error"],
        tuple(CalledTool(call["name"], call["operation"]) for call in value["tool_calls"]),
    )
    return RolloutCompletion(
        value["number"],
        value["thread"],
        value["parent"],
        value["sample"],
        value["kept_tokens"],
        tuple(value["prompt_token_ids"]),
        sampled,
    )
