"""What the server reads out of bodies and headers, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import InvalidRequest
from acmserve.plan.request import (
    FIDELITIES,
    MAX_SESSION_ID_CHARS,
    SessionParams,
    check_fidelity,
    parse_acm_params,
)
from acmserve.server.options.session_params import is_plain
from tests.support.server.asked_session import params_of
from tests.support.server.bad_requests import BAD_REQUESTS

session_ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_SESSION_ID_CHARS)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({}, {}, None),
        ({"messages": []}, {"X-Request-ID": "r"}, None),
        ({"session_id": None, "acm": None}, {}, None),
        ({"kv_transfer_params": {"do_remote_decode": True}}, {}, None),
        ({"n": 2, "use_beam_search": True}, {}, None),
        ([{"session_id": "s"}], {}, None),
        ({"session_id": "s"}, {}, SessionParams("s")),
        ({"session_id": "s", "n": 1}, {}, SessionParams("s")),
        ({"session_id": "s" * 256}, {}, SessionParams("s" * 256)),
        ({}, {"X-Session-ID": "h"}, SessionParams("h")),
        ({"session_id": "s"}, {"X-Session-ID": "h"}, SessionParams("s")),
        ({"vllm_xargs": {"session_id": "v"}}, {}, SessionParams("v")),
        ({"vllm_xargs": {"session_id": "v"}}, {"X-Session-ID": "h"}, SessionParams("h")),
        ({"session_id": "s", "acm": {}}, {}, SessionParams("s")),
        ({"session_id": "s", "acm": {"fidelity": None}}, {}, SessionParams("s")),
        ({"session_id": "s", "acm": {"fidelity": "exact"}}, {}, SessionParams("s", "exact")),
        ({"acm": {"fidelity": "reuse"}}, {"X-Session-ID": "h"}, SessionParams("h", "reuse")),
        ({"kv_transfer_params": {"acm": {"session_id": "k"}}}, {}, SessionParams("k")),
        (
            {"session_id": "k", "kv_transfer_params": {"acm": {"session_id": "k", "fidelity": "reuse"}}},
            {},
            SessionParams("k", "reuse"),
        ),
        ({"session_id": "s", "prompt": ["one"]}, {}, SessionParams("s")),
        ({"session_id": ""}, {"X-Session-ID": ""}, None),
        ({"session_id": "", "vllm_xargs": {"session_id": ""}}, {}, None),
        ({"session_id": ""}, {"X-Session-ID": "h"}, SessionParams("h")),
        ({"vllm_xargs": {"session_id": "v"}}, {"X-Session-ID": ""}, SessionParams("v")),
        ({"vllm_xargs": {"session_id": 5}}, {}, None),
        ({"session_id": "s"}, {"X-Session-ID": "x" * 257}, SessionParams("s")),
        ({"session_id": "s", "prompt": [1, 2, 3]}, {}, SessionParams("s")),
    ],
)
def test_reads_session(body: object, headers: dict[str, str], expected: SessionParams | None) -> None:
    assert params_of(body, lowered(headers)) == expected


@pytest.mark.parametrize("odd", ["x" * 257, "\ud800"])
def test_an_id_that_vllm_takes_is_never_refused(odd: str) -> None:
    """A session cannot have it, so a digest takes its place, the same in every field."""
    made = params_of({}, {"x-session-id": odd})
    assert made is not None
    assert made.session_id.startswith("id-")
    assert made == params_of({"vllm_xargs": {"session_id": odd}}, {}) == params_of({"prompt_cache_key": odd}, {})
    assert params_of({"vllm_xargs": {"session_id": "tab\there"}}, {}) == SessionParams("tab\there")


@pytest.mark.parametrize(("body", "headers", "field"), BAD_REQUESTS)
def test_names_the_bad_field(body: dict[str, Any], headers: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        params_of(body, lowered(headers))
    assert refused.value.field == field


@pytest.mark.parametrize("prompt", [["one", "two"], [[1, 2], [3]]])
def test_refuses_several_prompts_in_one_request(prompt: list[Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        params_of({"session_id": "s", "prompt": prompt}, {})
    assert refused.value.field == "prompt"


@pytest.mark.parametrize(
    ("fidelity", "words"),
    [
        ("best", ["'best'", "'exact'", "'reuse'", "'repair'", "'auto'"]),
        ("y" * 5000, ["yyy...", "'exact'"]),
        ("\ud800", ["\\ud800"]),
    ],
)
def test_message_names_value_and_remedy_and_stays_short(fidelity: str, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_fidelity(fidelity, "acm.fidelity")
    assert all(word in refused.value.message for word in words)
    assert len(refused.value.message) < 200


@given(session_ids, st.none() | st.sampled_from(FIDELITIES))
def test_valid_values_travel_to_the_engine_unchanged(session_id: str, fidelity: str | None) -> None:
    acm = {} if fidelity is None else {"fidelity": fidelity}
    params = params_of({"session_id": session_id, "acm": acm}, {})
    assert params == SessionParams(session_id, fidelity)
    assert parse_acm_params(json.loads(json.dumps(params.as_acm()))) == params


repairs = st.fixed_dictionaries(
    {},
    optional={
        "head_tokens": st.none() | st.integers(0, 2**31 - 1),
        "tail_tokens": st.integers(0, 4096),
        "echoes": st.booleans(),
        "ranges": st.lists(st.tuples(st.integers(0, 99), st.integers(100, 999)).map(list), max_size=3),
    },
)


@given(st.sampled_from(["repair", "auto"]), repairs)
def test_a_repair_travels_to_the_engine_unchanged(fidelity: str, repair: dict[str, Any]) -> None:
    """By either door, and by both when they agree."""
    acm = {"fidelity": fidelity, "repair": repair}
    direct = {"acm": {"session_id": "s", **acm}}
    params = params_of({"session_id": "s", "acm": acm}, {})
    assert params is not None
    assert params.repair is not None
    assert params.repair.head_tokens == (repair.get("head_tokens") if repair.get("head_tokens") is not None else 128)
    assert params.repair.ranges == tuple(map(tuple, repair.get("ranges", [])))
    assert parse_acm_params(json.loads(json.dumps(params.as_acm()))) == params
    assert params_of({"kv_transfer_params": direct}, {}) == params
    assert params_of({"acm": acm, "kv_transfer_params": direct}, {}) == params


def test_two_repairs_in_one_request_are_refused() -> None:
    direct = {"acm": {"session_id": "s", "fidelity": "repair", "repair": {"head_tokens": 4}}}
    with pytest.raises(InvalidRequest) as refused:
        params_of({"acm": {"fidelity": "repair", "repair": {}}, "kv_transfer_params": direct}, {})
    assert refused.value.field == "kv_transfer_params.acm.repair"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "session_id": json_values,
            "acm": json_values | st.dictionaries(st.sampled_from(["fidelity", "repair", "plan"]), json_values),
            "kv_transfer_params": json_values
            | st.dictionaries(st.sampled_from(["acm", "do_remote_decode"]), json_values),
            "vllm_xargs": json_values,
            "n": json_values,
            "prompt": json_values,
            "use_beam_search": json_values,
        },
    ),
    st.dictionaries(st.just("x-session-id"), st.text()),
)
def test_any_body_gives_params_or_a_named_field_that_can_be_sent(body: dict[str, Any], headers: dict[str, str]) -> None:
    try:
        params = params_of(body, headers)
    except InvalidRequest as refused:
        sent = json.dumps([refused.field, refused.message], ensure_ascii=False).encode()
        named = bool(refused.field) and bool(sent)
    else:
        named = params is None or params == parse_acm_params(params.as_acm())
    assert named


SEVERAL: list[dict[str, Any]] = [{"n": 2}, {"use_beam_search": True}, {"prompt": ["a", "b"]}]


@pytest.mark.parametrize("several", SEVERAL)
def test_the_header_of_vllms_clients_alone_asks_for_no_receipt(several: dict[str, Any]) -> None:
    headers = {"x-session-id": "agent"}
    assert params_of(several, headers) is None
    assert is_plain(several, headers)
    assert is_plain({**several, "session_id": ""}, headers)
    assert not is_plain({"n": 1}, headers)
    assert not is_plain(several, {})


@pytest.mark.parametrize("several", SEVERAL)
@pytest.mark.parametrize(
    "ours", [{"session_id": "s"}, {"acm": {}}, {"kv_transfer_params": {"acm": {"session_id": "agent"}}}]
)
def test_whoever_asks_us_for_a_session_is_told_what_is_wrong(several: dict[str, Any], ours: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        params_of(several | ours, {"x-session-id": "agent"})
