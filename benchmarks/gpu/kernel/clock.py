"""Medians of what runs in turns, by two clocks: the wall, and the device itself behind work that keeps it busy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

BUSY_CYCLES = 5_000_000
"""Some milliseconds of any card: many times what the host takes for a move."""
Times = tuple[float, ...]


def take_turns(
    functions: Sequence[Callable[[], object]], repetitions: int, measure: Callable[[Callable[[], object]], float]
) -> Times:
    """Median seconds of each function, run in turns after two rounds of warm-up."""
    times: list[list[float]] = [[] for _ in functions]
    for repetition in range(-2, repetitions):
        for function, taken in zip(functions, times, strict=True):
            found = measure(function)
            if repetition >= 0:
                taken.append(found)
    return tuple(statistics.median(taken) for taken in times)


def seconds_of(function: Callable[[], object], wait: Callable[[], None]) -> float:
    """From the call to the device's last write. `wait` returns when the device has nothing to do."""
    wait()
    begin = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - begin


def device_seconds_of(function: Callable[[], object]) -> float:
    """What a CUDA device is busy for. Behind a kernel that lasts until the host has said everything."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
