"""The count of operations: linear work grows as its input does, a square is found, and only the product is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support import operations
from tests.support.operations import count_operations, growth

SOURCE = """
def linear(num):
    for _ in range(num):
        pass

def square(num):
    for _ in range(num):
        linear(num)
"""


def work(name: str, file: str) -> Callable[[int], Callable[[], object]]:
    scope: dict[str, Any] = {}
    exec(compile(SOURCE, file, "exec"), scope)
    return lambda num: lambda: scope[name](num)


def test_a_square_is_told_from_linear_work() -> None:
    product = f"{operations._ROOT}/control.py"
    assert 3 < growth(work("linear", product), 50) < 5.5
    assert growth(work("square", product), 50) > 10
    assert count_operations(work("linear", "/elsewhere.py")(50)) == 0
