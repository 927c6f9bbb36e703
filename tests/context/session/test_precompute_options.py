"""What a person writes as `ahead`."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.session.precompute_options import MODES, AheadOptions, parse_ahead
from acmserve.context.session.state import SessionState
from acmserve.context.storage.state_codec import state_from, state_value
from acmserve.errors import InvalidRequest


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_or_an_object(mode: str) -> None:
    assert parse_ahead(mode) == parse_ahead({"mode": mode}) == AheadOptions(mode, 0.2)
    whole = parse_ahead({"mode": mode, "max_pool_share": 1})
    assert parse_ahead(whole.as_dict()) == whole == AheadOptions(mode, 1.0)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("always", "ahead.mode"),
        (7, "ahead.mode"),
        ({"mode": None}, "ahead.mode"),
        ({"share": 1}, "ahead.share"),
        ({"max_pool_share": 1.5}, "ahead.max_pool_share"),
        ({"max_pool_share": float("nan")}, "ahead.max_pool_share"),
        ({"max_pool_share": True}, "ahead.max_pool_share"),
        ({"max_pool_share": "0.2"}, "ahead.max_pool_share"),
    ],
)
def test_a_bad_value_is_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_ahead(value)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_session_keeps_its_options() -> None:
    state = SessionState(ahead=AheadOptions("predict", 0.1))
    assert state_from(state_value(state), "here").ahead == state.ahead
    assert state_from(state_value(SessionState()), "here").ahead is None
