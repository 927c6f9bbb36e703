"""Numbers as the pages write them."""

from __future__ import annotations

import pytest

from acmserve.bench.harness.markdown_text import points


@pytest.mark.parametrize(
    ("value", "told"), [(0.011, "+1.1"), (-0.0251, "-2.5"), (-0.0003, "+0.0"), (0.0003, "+0.0"), (0.0, "+0.0")]
)
def test_points_have_a_sign_and_no_zero_below_zero(value: float, told: str) -> None:
    assert points(value) == told
    assert points(value, [-0.006, 0.03]) == f"{told} [-0.6, 3.0]"
