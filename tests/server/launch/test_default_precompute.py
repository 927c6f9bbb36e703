"""What is precomputed where nobody says it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from acmserve.context.session.precompute_options import parse_precompute
from acmserve.engine.config import CONNECTOR_NAME, EngineConfig
from acmserve.errors import InvalidRequest
from acmserve.server.app.flags import build_parser
from acmserve.server.app.launch.default_precompute import (
    MEASURED,
    PrecomputePlace,
    plan_default_precompute,
    settle_default_precompute,
)
from acmserve.server.app.serve import merge_kv_transfer_config, parse_vllm_flags
from acmserve.server.options.config import ContextConfig


def started(*flags: str, on_cpu: bool = True, extra: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The connector's settings of a start with these flags, as `acmserve serve` reads them, and what is said."""
    ours, rest = build_parser().parse_known_args(["/models/m", *flags])
    args, said = parse_vllm_flags(rest), list[str]()
    given = None
    if extra is not None:
        given = KVTransferConfig(kv_connector=CONNECTOR_NAME, kv_role="kv_both", kv_connector_extra_config=extra)
    args.kv_transfer_config = merge_kv_transfer_config(given, ours)
    settle_default_precompute(args, on_cpu, said.append)
    found: dict[str, Any] = args.kv_transfer_config.kv_connector_extra_config
    EngineConfig.parse(found)
    return found, said


def settled(*flags: str, on_cpu: bool = True, extra: dict[str, Any] | None = None) -> tuple[str, list[str]]:
    """The mode of such a start, and what is said."""
    found, said = started(*flags, on_cpu=on_cpu, extra=extra)
    options = ContextConfig.parse(found).precompute_options
    return "off" if options is None else options.mode, said


def test_the_default_is_what_was_measured_and_says_how_to_end_it() -> None:
    mode, said = settled()
    assert mode == MEASURED
    assert parse_precompute(mode).predicts
    assert not parse_precompute(mode).heals
    (line,) = said
    assert line.startswith("between two turns the next context is precomputed: on a CPU ")
    assert line.endswith("; --precompute off turns it off")


@pytest.mark.parametrize(
    ("flags", "on_cpu", "where"),
    [
        ((), False, "on a GPU"),
        (("--data-parallel-size", "2"), True, "with 2 engines"),
        (("--api-server-count", "2"), True, "with 2 API servers"),
        (("--kv-offloading-size", "1"), True, "with a tier of host memory"),
        (("--fidelity", "reuse"), True, "under --fidelity reuse"),
        (("--fidelity", "auto"), True, "under --fidelity auto"),
    ],
)
def test_elsewhere_nothing_is_precomputed_and_the_reason_is_said(
    flags: tuple[str, ...], on_cpu: bool, where: str
) -> None:
    mode, said = settled(*flags, on_cpu=on_cpu)
    assert mode == "off"
    assert said == [
        f"nothing is precomputed: what it costs {where} was not measured; --precompute {MEASURED} turns it on"
    ]


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("mode", ["off", "heal", "predict", "exact"])
def test_what_is_said_wins_everywhere_and_nothing_is_said_back(mode: str, on_cpu: bool) -> None:
    assert settled("--precompute", mode, on_cpu=on_cpu) == (mode, [])
    assert settled("--precompute", mode, "--api-server-count", "2", on_cpu=on_cpu) == (mode, [])
    assert settled(on_cpu=on_cpu, extra={"context": {"precompute": mode}}) == (mode, [])


def test_a_share_of_0_is_said_and_other_settings_stay() -> None:
    assert settled(extra={"precompute_max_pool_share": 0.0}) == ("off", [])
    kept = {"max_sources_per_session": 3, "precompute_max_pool_share": 0.1, "context": {"session_hours": 2.0}}
    found, _ = started(extra=kept)
    assert found == kept | {"context": {"session_hours": 2.0, "precompute": MEASURED}}


def test_an_engine_without_an_api_server_is_told_nothing() -> None:
    ours, _ = build_parser().parse_known_args(["m"])
    args = Namespace(headless=True, kv_transfer_config=merge_kv_transfer_config(None, ours))
    settle_default_precompute(args, on_cpu=True, say=pytest.fail)
    assert args.kv_transfer_config.kv_connector_extra_config == {}


def test_a_setting_that_cannot_be_is_refused_before_the_start() -> None:
    with pytest.raises(InvalidRequest, match="max_source_mb"):
        settled(extra={"max_source_mb": 1})


def test_the_decision_is_that_of_its_place_alone() -> None:
    assert plan_default_precompute(PrecomputePlace(on_cpu=True)).mode == MEASURED
    assert plan_default_precompute(PrecomputePlace(on_cpu=True)) == plan_default_precompute(PrecomputePlace(True))
