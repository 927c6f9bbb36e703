"""Pauses have the published distribution, the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from acmserve.bench.agent import pause
from acmserve.bench.agent.pause import (
    ANY_TOOL,
    FILE_EDIT,
    FILE_READ,
    PERSON,
    SHELL,
    TOOL_SECONDS,
    WaitDistribution,
    describe_waits,
    draw_waits,
)
from acmserve.bench.agent.recording import waits_of
from acmserve.bench.agent.scripted_agent import Exchanged, hermes

TABLES = {"any tool": ANY_TOOL, "shell": SHELL, "edit": FILE_EDIT, "read": FILE_READ, "person": PERSON}
NUM_DRAWS = 20_000
NEAR = 0.012
"""Shares of so many draws: more than four standard deviations."""


def far_off(drawn: list[float], table: WaitDistribution) -> list[float]:
    """The quantiles that the draws do not have. An end of the table holds all draws that are out of it."""

    def is_met(share: float, seconds: float) -> bool:
        less, at_most = (sum(map(test, drawn)) / len(drawn) for test in (seconds.__gt__, seconds.__ge__))
        return less - NEAR <= share <= at_most + NEAR

    return [share for share, seconds in table.quantiles if not is_met(share, seconds)]


@pytest.mark.parametrize("name", TABLES)
def test_what_is_drawn_has_the_quantiles_of_the_table(name: str) -> None:
    table = TABLES[name]
    drawn = draw_waits([table] * NUM_DRAWS, seed=3)
    assert far_off(drawn, table) == []
    slower = replace(table, quantiles=tuple((share, 2 * seconds) for share, seconds in table.quantiles))
    assert far_off(drawn, slower), "a table of other times would not be noticed"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_rises_and_a_quantile_is_found_from_both_sides(name: str) -> None:
    shares, took = zip(*TABLES[name].quantiles, strict=True)
    assert list(shares) == sorted(set(shares))
    assert list(took) == sorted(set(took))
    for share, seconds in TABLES[name].quantiles[1:]:
        assert TABLES[name].seconds_at(share) == pytest.approx(seconds)
        assert TABLES[name].share_below(seconds) == pytest.approx(share)


def test_a_seed_draws_the_same_whoever_else_draws() -> None:
    waits = [ANY_TOOL, PERSON, SHELL] * 20
    first = draw_waits(waits, seed=7)
    state = random.getstate()
    random.seed(1)
    assert draw_waits(waits, seed=7) == first
    assert draw_waits(waits, seed=8) != first
    random.setstate(state)
    draw_waits(waits, seed=7)
    assert random.getstate() == state, "drawing pauses moves the state of others"


def test_in_a_range_the_source_has_its_own_shares_and_a_wait_without_any_takes_the_nearer_end() -> None:
    drawn = draw_waits([ANY_TOOL] * NUM_DRAWS, 5, TOOL_SECONDS)
    assert all(0.5 <= seconds <= 5 for seconds in drawn)
    low, one, high = map(ANY_TOOL.share_below, (0.5, 1.0, 5.0))
    assert sum(seconds < 1 for seconds in drawn) / NUM_DRAWS == pytest.approx((one - low) / (high - low), abs=NEAR)
    assert draw_waits([PERSON, SHELL], 5, (0.001, 0.01)) == [0.01, 0.01]
    assert draw_waits([FILE_READ], 5, (60.0, 90.0)) == [60.0]


def test_what_is_out_of_the_range_is_told() -> None:
    told = describe_waits(TOOL_SECONDS)
    assert "2606.30560" in told["source"]
    assert told["faster_share"] == pytest.approx(ANY_TOOL.share_below(0.5), abs=1e-3)
    assert told["slower_share"] == pytest.approx(1 - ANY_TOOL.share_below(5.0), abs=1e-3)
    assert 0.5 < told["faster_share"] < 0.609, "between the median and the share below a second"


def test_a_request_waits_for_what_the_answer_before_it_called_last_or_for_the_user() -> None:
    marked = hermes("delimiter", mode="start") + "\n"
    calls = [hermes("read", path="a"), marked + hermes("bash", command="ls"), hermes("edit", path="a") + "\n" + marked]
    requests = [Exchanged((call,), "result", None) for call in [*calls, hermes("look_up", word="a")]]
    requests = [replace(requests[0], asked="Go."), *requests[1:], Exchanged(("Done.",), None)]
    requests.append(Exchanged(("Yes.",), None, asked="Sure?"))
    assert waits_of(requests) == [PERSON, FILE_READ, SHELL, FILE_EDIT, ANY_TOOL, PERSON]
    assert waits_of([]) == []
    assert pause.SOURCE.startswith("TraceLab")
