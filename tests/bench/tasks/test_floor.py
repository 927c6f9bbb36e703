"""What `exact` does not answer counts in no mean: sizes of tasks, and kinds of question. By records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.tasks.floor import (
    FLOOR,
    PARAPHRASED,
    above_floor,
    answerable,
    at_floor,
    kinds_at_floor,
    without_kinds,
)

ROLES = ["asked", "later", PARAPHRASED]


def record(right: list[float], setting: str = "s", roles: list[str] | None = None) -> dict[str, Any]:
    numbers = [float(number) for number in range(len(right))]
    rows = {name: {"right": right, "kl": numbers, "moved_tokens": 7} for name in ("exact", "auto")}
    found = {"task": "a", "setting": setting, "variants": rows}
    return found if roles is None else found | {"roles": roles}


def test_records_without_kinds_of_question_have_sizes_alone() -> None:
    """As those of `bench tasks`."""
    records = [record([1.0, 0.0]), record([0.0] * 9 + [1.0], "large")]
    assert at_floor(records) == {"a large": 0.1}
    assert above_floor(records) == answerable(records) == records[:1]
    assert kinds_at_floor(records) == {}


@pytest.mark.parametrize(("share", "is_out"), [(FLOOR, False), (FLOOR - 0.01, True)])
def test_a_kind_of_question_below_the_floor_leaves_the_others(share: float, is_out: bool) -> None:
    records = [record([1.0, 0.5, share], roles=ROLES) for _ in range(2)]
    assert kinds_at_floor(records) == ({PARAPHRASED: round(share, 3)} if is_out else {})
    (found, _) = answerable(records)
    assert found["roles"] == ROLES[: 3 - is_out]
    assert found["variants"]["auto"] == {
        "right": [1.0, 0.5, share][: 3 - is_out],
        "kl": [0.0, 1.0, 2.0][: 3 - is_out],
        "moved_tokens": 7,
    }
    assert records[0]["roles"] == ROLES, "the record itself was changed"


def test_a_record_of_such_questions_alone_is_left_out() -> None:
    records = [record([1.0, 1.0, 0.0], roles=ROLES), record([0.0], roles=[PARAPHRASED])]
    assert without_kinds(records, {PARAPHRASED})[1:] == []
    assert len(without_kinds(records, {})) == 2
