"""What an engine-level `acm` object may say about forgetting and work ahead.

The rest: tests/server/options/test_session_params.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.errors import InvalidRequest
from acmserve.plan.request import MAX_FOLDABLE, SessionParams, parse_acm_params


@pytest.mark.parametrize(
    ("acm", "expected"),
    [
        ({}, False),
        ({"forget": None}, False),
        ({"forget": False}, False),
        ({"forget": True}, True),
        ({"forget": True, "fidelity": "reuse"}, True),
    ],
)
def test_forget_is_read(acm: dict[str, Any], expected: bool) -> None:
    assert parse_acm_params({"session_id": "s", **acm}) == SessionParams("s", acm.get("fidelity"), expected)


@pytest.mark.parametrize("key", ["forget", "precompute", "unrecorded", "draft"])
@pytest.mark.parametrize("value", [1, 0, "true", "", [], {}, 1.0])
def test_what_is_no_boolean_is_refused_by_name(value: object, key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_acm_params({"session_id": "s", key: value})
    assert refused.value.field == f"kv_transfer_params.acm.{key}"
    assert ascii(value) in refused.value.message
    assert "true or false" in refused.value.message


def test_a_misspelt_forget_is_refused() -> None:
    """A redaction that is dropped in silence would be worse than an error."""
    with pytest.raises(InvalidRequest, match="'forget'") as refused:
        parse_acm_params({"session_id": "s", "forgot": True})
    assert refused.value.field == "kv_transfer_params.acm.forgot"


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("fidelity", [None, "exact", "reuse"])
def test_params_travel_unchanged(fidelity: str | None, forget: bool) -> None:
    params = SessionParams("s", fidelity, forget)
    assert parse_acm_params(params.as_acm()) == params
    assert ("forget" in params.as_acm()) is forget


def test_a_request_that_leaves_no_source_travels_unchanged() -> None:
    params = SessionParams("s", "reuse", unrecorded=True)
    assert parse_acm_params(params.as_acm()) == params
    assert "unrecorded" not in SessionParams("s").as_acm()


def test_a_draft_travels_unchanged_and_leaves_nothing_behind() -> None:
    params = SessionParams("s", "reuse", draft=True)
    assert parse_acm_params(params.as_acm()) == params
    assert "draft" not in SessionParams("s", speculate=True).as_acm()
    for other in ("forget", "precompute"):
        with pytest.raises(InvalidRequest, match=other):
            parse_acm_params({"session_id": "s", "draft": True, other: True})
    with pytest.raises(InvalidRequest, match="speculate"):
        parse_acm_params({"session_id": "s", "speculate": True})


@pytest.mark.parametrize("fidelity", [None, "exact"])
def test_a_background_request_travels_unchanged(fidelity: str | None) -> None:
    params = SessionParams("s", fidelity, precompute=True)
    assert parse_acm_params(params.as_acm()) == params
    assert "precompute" not in SessionParams("s", fidelity).as_acm()


@pytest.mark.parametrize(
    ("other", "field"),
    [({"fidelity": "reuse"}, "fidelity"), ({"forget": True}, "precompute")],
    ids=["moves", "forgets"],
)
def test_what_a_background_request_cannot_be(other: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_acm_params({"session_id": "s", "precompute": True, **other})
    assert refused.value.field == f"kv_transfer_params.acm.{field}"


def test_foldable_pieces_travel_unchanged() -> None:
    params = SessionParams("s", foldable=((10, 20), (0, 5), (4, 30)))
    assert parse_acm_params(params.as_acm()) == params
    assert "foldable" not in SessionParams("s").as_acm()
    assert parse_acm_params({"session_id": "s", "foldable": None}) == SessionParams("s")


@pytest.mark.parametrize(
    ("value", "where", "words"),
    [
        ("all", "", "must be a list"),
        ({"start": 1}, "", "must be a list"),
        ([1, 2], ".0", "two whole numbers"),
        ([[1, 2], [3]], ".1", "two whole numbers"),
        ([[1, True]], ".0", "two whole numbers"),
        ([[1, 2.0]], ".0", "two whole numbers"),
        ([[-1, 2]], ".0", "0 <= start < end"),
        ([[5, 5]], ".0", "0 <= start < end"),
        ([[5, 4]], ".0", "0 <= start < end"),
        ([[0, 2**31]], ".0", "0 <= start < end"),
        ([[n, n + 1] for n in range(MAX_FOLDABLE + 1)], "", f"at most {MAX_FOLDABLE}"),
    ],
)
def test_foldable_pieces_that_mean_nothing_are_refused_by_name(value: object, where: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        parse_acm_params({"session_id": "s", "foldable": value})
    assert refused.value.field == f"kv_transfer_params.acm.foldable{where}"
