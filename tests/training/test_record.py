"""Reading a record: what a wrong line is told, and that each field of a right one arrives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acmserve.errors import AcmError, IntegrityError, MalformedRecord
from acmserve.training.record import read_rollout
from acmserve.training.rollout import SampledCall

HEADER = {"kind": "header", "version": 1, "session_id": "a", "model": "m", "suite": "sculptor"}
FIRST = {
    "kind": "completion",
    "number": 0,
    "thread": "main",
    "parent": None,
    "sample": 0,
    "kept_tokens": 0,
    "prompt_token_ids": [5, 6, 7],
    "token_ids": [8, 9],
    "logprobs": [-0.5, -1],
    "finish_reason": "tool_calls",
    "format_error": None,
    "tool_calls": [{"name": "fold_fragment", "operation": "fold"}],
}
SECOND = FIRST | {"number": 1, "parent": 0, "kept_tokens": 4, "prompt_token_ids": [1], "logprobs": None}
OPERATION = {
    "kind": "operation",
    "number": 0,
    "after": 0,
    "by": "model",
    "name": "fold",
    "arguments": {"fragment_id": "f1a2b3"},
    "saved_tokens": 40,
}


def lines(*records: dict[str, Any]) -> list[str]:
    return [json.dumps(record) for record in records]


def test_each_field_arrives() -> None:
    rollout = read_rollout([*lines(HEADER, FIRST), "\n", *lines(OPERATION | {"new": 1}, SECOND)])
    assert (rollout.session_id, rollout.model, rollout.suite) == ("a", "m", "sculptor")
    first, second = rollout.completions.values()
    assert first.calls == (SampledCall("fold_fragment", "fold"),)
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.5, -1.0]
    assert second.logprobs is None
    assert rollout.prompt_ids(1).tolist() == [5, 6, 7, 8, 1]
    assert rollout.sequence_ids(1).tolist() == [5, 6, 7, 8, 1, 8, 9]
    assert not rollout.extends(second)
    (operation,) = rollout.operations
    assert (operation.after, operation.by, operation.saved_tokens) == (0, "model", 40)
    assert (rollout.num_calls, rollout.longest_sequence, rollout.has_format_error) == (2, 7, False)


@pytest.mark.parametrize(
    ("line", "field", "value", "said"),
    [
        (1, "version", 2, "is 2; this acmserve reads version 1"),
        (1, "kind", "completion", "it is the first line"),
        (1, "session_id", 5, "must be a string, not 5"),
        (2, "kind", "header", "a record has one header"),
        (2, "kind", "sample", "must be header, completion or operation, not 'sample'"),
        (2, "number", True, "must be an integer of at least 0, not True"),
        (2, "kept_tokens", 1, "is 1, but the completion has no parent"),
        (2, "prompt_token_ids", [1, -2], "must be a token id, not -2"),
        (2, "token_ids", "8", "must be an array, not '8'"),
        (2, "logprobs", [-1.0], "has 1 values for 2 sampled tokens"),
        (2, "logprobs", [-1.0, float("nan")], "must be a finite number, not nan"),
        (2, "tool_calls", [{"name": 3, "operation": None}], "must be a string, not 3"),
        (3, "number", 0, "is 0 behind 0; the numbers of completions rise"),
        (3, "parent", 1, "names completion 1, which no earlier line has"),
        (3, "kept_tokens", 6, "the completion has a parent of 5 tokens"),
        (4, "after", 7, "names completion 7"),
        (4, "by", "me", "must be one of model, caller, policy, summary, not 'me'"),
        (4, "arguments", None, "must be an object, not None"),
        (4, "saved_tokens", 1.5, "must be an integer or null"),
    ],
)
def test_a_wrong_value_is_named_with_line_and_field(line: int, field: str, value: object, said: str) -> None:
    records = [dict(one) for one in (HEADER, FIRST, SECOND, OPERATION)]
    records[line - 1][field] = value
    with pytest.raises(MalformedRecord, match=rf"^line {line}, field ") as found:
        read_rollout(lines(*records))
    assert said in str(found.value)
    assert (found.value.line, found.value.field.partition("[")[0]) == (line, field)


@pytest.mark.parametrize("record", [HEADER, FIRST, OPERATION], ids=lambda record: record["kind"])
def test_a_missing_field_is_named(record: dict[str, Any]) -> None:
    for field in record:
        records = (
            [HEADER, FIRST] if record is HEADER else [HEADER, record] if record is FIRST else [HEADER, FIRST, record]
        )
        cut = [{k: v for k, v in one.items() if k != field} if one is record else one for one in records]
        with pytest.raises(MalformedRecord, match=f"field {field}: is missing"):
            read_rollout(lines(*cut))


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"kind": "completion", "numb', "is no JSON"), ("[1]", "must be an object"), ("[" * 100_000, "is no JSON")],
)
def test_a_line_that_was_cut_off_is_named(text: str, said: str) -> None:
    with pytest.raises(MalformedRecord, match=rf"^line 2: {said}"):
        read_rollout([*lines(HEADER), text])


def test_an_empty_record_is_refused() -> None:
    with pytest.raises(AcmError, match="the record is empty"):
        read_rollout([])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kept_tokens": 6}, "keeps 6 of 5 tokens"),
        ({"parent": 3}, "parent 3"),
        ({"parent": 1}, "later parent 1"),
        ({"number": 4}, "has number 4"),
        ({"logprobs": np.zeros(3, dtype=np.float32)}, "3 logprobs of 2 tokens"),
    ],
)
def test_a_broken_rollout_is_found(changed: dict[str, Any], said: str) -> None:
    rollout = read_rollout(lines(HEADER, FIRST, SECOND))
    rollout.check_integrity()
    broken = rollout.completions | {1: replace(rollout.completions[1], **changed)}
    with pytest.raises(IntegrityError, match=said):
        replace(rollout, completions=broken).check_integrity()
