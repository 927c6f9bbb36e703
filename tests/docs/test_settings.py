"""The page of settings has every setting of the code, with its default. The pages have every counter and policy."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from acmserve.context.tools.suites import PRESETS, SUITES
from acmserve.engine.config import EngineConfig
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.session_params import CHAT_KEYS
from tests.support.docs.pages import read_page


@pytest.mark.parametrize(("heading", "config"), [("## The engine", EngineConfig), ("## The server", ContextConfig)])
def test_settings_stand_with_their_defaults(heading: str, config: type[Any]) -> None:
    part = read_page("docs/guides/tuning.md").partition(heading)[2].partition("\n## ")[0]
    rows = {name: default.strip(" `") for name, default in re.findall(r"^\| `(\w+)` \|([^|]*)\|", part, re.MULTILINE)}
    assert rows == {field.name: str(field.default) for field in fields(config)}


def test_every_counter_is_told() -> None:
    from acmserve.engine.plugin.metrics import PRECOMPUTE_KEYS, TOKEN_KEYS
    from acmserve.server.precompute.harm.estimates import HARM_TOKENS
    from acmserve.server.precompute.harm.levels import CHANGES
    from acmserve.server.sessions.turn_counters import COUNTERS
    from acmserve.server.siblings.siblings import REQUESTS

    keys = (*TOKEN_KEYS, *PRECOMPUTE_KEYS, "requests", "choices", "fallbacks", "storage_failures")
    counters = (*COUNTERS, HARM_TOKENS, CHANGES, REQUESTS)
    names = {f"acmserve:{key}_total" for key in keys} | {f"{one.describe()[0].name}_total" for one in counters}
    assert set(re.findall(r"acmserve:\w+_total", read_page("docs/api/metrics.md"))) == names


def test_every_histogram_and_gauge_is_told() -> None:
    from acmserve.server.exchange.turn_times import FIRST_TOKEN, TURNS
    from acmserve.server.precompute.harm.estimates import HARM
    from acmserve.server.precompute.harm.levels import LEVEL
    from acmserve.server.sessions import storage

    told = set(re.findall(r"^\| `(acmserve:\w+)`", read_page("docs/api/metrics.md"), re.MULTILINE))
    metrics = (FIRST_TOKEN, storage.LOCK_WAIT, storage.SESSIONS, storage.SESSION_BYTES, HARM, LEVEL)
    names = {metric.describe()[0].name for metric in metrics}
    assert {name for name in told if not name.endswith("_total")} == names | {"acmserve:move_seconds"}
    assert all(f"`{turn}`" in read_page("docs/api/metrics.md") for turn in TURNS)


def test_every_key_of_acm_is_told() -> None:
    page = read_page("docs/api/chat.md").partition("## Fields of `acm`")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == {"fidelity", "repair", "speculate", *CHAT_KEYS}


def test_every_suite_and_preset_is_told() -> None:
    page = read_page("docs/guides/tool-loop.md")
    assert {name for name in (*SUITES, *PRESETS) if f"`{name}`" not in page} == set()
