"""What a person writes as `precompute`."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.session.precompute_options import MODES, PrecomputeOptions, parse_precompute
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.errors import InvalidRequest


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_or_an_object(mode: str) -> None:
    assert parse_precompute(mode) == parse_precompute({"mode": mode}) == PrecomputeOptions(mode, 0.2)
    whole = parse_precompute({"mode": mode, "max_pool_share": 1})
    assert parse_precompute(whole.as_dict()) == whole == PrecomputeOptions(mode, 1.0)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("always", "precompute.mode"),
        (7, "precompute.mode"),
        ({"mode": None}, "precompute.mode"),
        ({"share": 1}, "precompute.share"),
        ({"max_pool_share": 1.5}, "precompute.max_pool_share"),
        ({"max_pool_share": float("nan")}, "precompute.max_pool_share"),
        ({"max_pool_share": True}, "precompute.max_pool_share"),
        ({"max_pool_share": "0.2"}, "precompute.max_pool_share"),
    ],
)
def test_a_bad_value_is_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_precompute(value)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_session_keeps_its_options() -> None:
    state = SessionState(precompute=PrecomputeOptions("predict", 0.1))
    assert state_from(state_value(state), "here").precompute == state.precompute
    assert state_from(state_value(SessionState()), "here").precompute is None
