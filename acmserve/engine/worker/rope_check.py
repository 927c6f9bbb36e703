"""Which rotation is in the cached keys of each attention layer, measured on the loaded model.

The model runs on the same tokens at several positions (`engine/vllm/model/recorded_forward.py`), and each layer's keys
are compared. Attention answers zeros meanwhile, so nothing but the positions can make a difference.

    base run      keys K(p), values V(p)
    equal run     the base run once more, after the others: what the model differs from itself is its noise
    shifted runs  K(p + d) must be R(d) K(p) for one rotation R of the model, or K(p) in a layer without positions.
                  V(p + d) must be V(p).

Each layer is measured at each shift, the largest one ending at the last position that the engine allows. So a change of
frequencies at some length shows, and so do a temperature, positions in the values, and learned positions anywhere
below. No source is read and no class has to be known. The rotations to choose from are those of the model's own rotary
modules (`rope_module.py`). Frequencies that are read off keys would be less precise than the engine's.

Decision: the whole model runs, instead of one attention module a kind of layer. That costs seven steps of eight tokens.
It takes no guess at how modules are called or which layers are alike, and sees what lies outside of the modules.

Does not know KV caches, layouts or blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from acmserve.engine.vllm.model.recorded_forward import RecordedKV
from acmserve.engine.worker.rope_module import is_rotary, num_rows_of, rope_of_module
from acmserve.errors import MoveRefused
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope

logger = logging.getLogger(__name__)

NUM_TOKENS = 8
SHIFTS = (1, 61, 1021)
"""Positions by which the tokens are shifted. Half of what the engine allows, and all of it, are added."""
LEAST_ALLOWED = 3e-3
"""Relative difference that counts for nothing in any type: three roundings of float16.

A core may sum in another order at any step. In float32 half an ulp in each product is 1e-4 at SmolLM2's last layer, in
dimensions that are small beside the others. Sums that round ten times as coarsely are 1e-3. Unturned keys are off by 1.
"""
MAX_NOISE = 0.03
"""Relative difference of two equal runs up to which a model can be measured."""
MIN_TURN = 10.0
"""A rotation shows when unturned keys are off by this many times what is allowed."""


class Forward(Protocol):
    """`RecordedForward`, or what a test puts in its place."""

    @property
    def num_positions(self) -> int:
        """Positions that a request may reach."""

    def shared_with(self, name: str) -> str:
        """The layer whose KV cache this one uses, itself for most."""

    def __call__(self, positions: Tensor) -> Mapping[str, RecordedKV]:
        """The KV of each layer that makes some."""


def ropes_of_model(model: nn.Module, layer_names: Sequence[str], forward: Forward) -> dict[str, Rope | None]:
    """The rotation in the keys of each named attention layer. None for a layer whose keys carry no position.

    Args:
        model: a loaded vLLM model.
        layer_names: names of attention layers as vLLM's KV caches are named (`model.layers.0.self_attn.attn`).
        forward: runs the model.

    Raises:
        MoveRefused: at least one layer's keys may not be turned. The reason names the layer, and what was measured.

    """
    base = torch.arange(NUM_TOKENS)
    try:
        with _note_calls(model) as called:
            first = forward(base)
        candidates, unreadable = _rotations(called)
        _check_tables(called, forward.num_positions)
        shifted = {shift: forward(base + shift) for shift in _shifts(forward.num_positions)}
        second = forward(base)
    except MoveRefused:
        raise
    except Exception as error:
        logger.warning("acmserve: the model could not be run to measure its keys", exc_info=True)
        raise MoveRefused(f"positions: the model cannot be measured ({type(error).__name__}: {error})") from error
    eps = _eps_of(model)
    ropes: dict[str, Rope | None] = {}
    for name in layer_names:
        owner = forward.shared_with(name)
        if owner not in first:
            raise MoveRefused(f"positions: layer {name} was not called")
        runs = {shift: kv[owner] for shift, kv in shifted.items()}
        layer = _Layer(name, first[owner], runs, eps)
        layer.check_noise(second[owner])
        layer.check_values()
        ropes[name] = layer.rope(candidates, unreadable)
    return ropes


@contextmanager
def _note_calls(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The rotary modules that are called meanwhile. A multimodal model has others, which text never meets."""
    called: dict[int, nn.Module] = {}

    def note(module: nn.Module, args: object) -> None:
        called[id(module)] = module

    handles = [module.register_forward_pre_hook(note) for module in model.modules() if is_rotary(module)]
    found: list[nn.Module] = []
    try:
        yield found
    finally:
        found.extend(called.values())
        for handle in handles:
            handle.remove()


def _rotations(modules: Sequence[nn.Module]) -> tuple[list[Rope], list[str]]:
    """The rotations of rotary modules, and why those of others are not known."""
    found: dict[Rope, None] = {}
    unreadable: dict[str, None] = {}
    for module in modules:
        try:
            found[rope_of_module(module)] = None
        except MoveRefused as refused:
            unreadable[refused.reason] = None
    return list(found), list(unreadable)


def _check_tables(modules: Sequence[nn.Module], num_positions: int) -> None:
    """No run may look up a position behind the end of a table: there is anybody's memory, or none."""
    for module in modules:
        num_rows, name = num_rows_of(module), type(module).__name__
        if not num_rows:
            raise MoveRefused(f"rope: {name} has no table that can be read")
        if num_rows < num_positions:
            raise MoveRefused(f"rope: {name} knows {num_rows} positions, and the engine allows {num_positions}")


def _shifts(num_positions: int) -> list[int]:
    last = num_positions - NUM_TOKENS
    shifts = sorted({shift for shift in (*SHIFTS, last // 2 + 1, last) if 0 < shift <= last})
    if not shifts:
        raise MoveRefused(f"positions: {num_positions} are too few to be measured")
    return shifts


def _eps_of(model: nn.Module) -> float:
    """The rounding of the coarsest type that the model computes in: what is stored in 8 bits is computed in 16."""
    types = {parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point}
    eps = max((torch.finfo(dtype).eps for dtype in types if dtype.itemsize > 1), default=0.0)
    return max(eps, torch.finfo(torch.bfloat16).eps if any(dtype.itemsize == 1 for dtype in types) else 0.0)


class _Layer:
    """What was recorded of one layer. Errors are relative, root mean square over tokens and heads, per dimension."""

    def __init__(self, name: str, base: RecordedKV, runs: Mapping[int, RecordedKV], eps: float) -> None:
        self._name, self._base, self._runs = name, base, runs
        # Two roundings of the key and one of each factor. In float32 the order of sums counts for more.
        self._allowed = max(3 * eps, LEAST_ALLOWED)

    def check_noise(self, again: RecordedKV) -> None:
        """Two equal runs say how far the model can be measured."""
        if not bool(self._base.key.isfinite().all()) or not bool(self._base.key.any()):
            raise MoveRefused(f"positions: keys of {self._name} are all zero, or not finite")
        noise = max(_error(a, b) for a, b in zip(self._base, again, strict=True))
        if not noise <= MAX_NOISE:
            raise MoveRefused(f"positions: keys of {self._name} differ by {noise:.2%} between two equal runs")
        self._allowed += 3 * noise

    def check_values(self) -> None:
        error = max(_error(self._base.value, run.value) for run in self._runs.values())
        if not error <= self._allowed:
            raise MoveRefused(f"positions: values of {self._name} change by {error:.2%} with the position")

    def rope(self, candidates: Sequence[Rope], unreadable: Sequence[str]) -> Rope | None:
        """The one rotation that fits at every shift. None where the keys do not change at all."""
        unturned = self._excess(None)
        if unturned <= 1:
            return None
        key_size = self._base.key.shape[-1]
        fitting = [(self._excess(rope), rope) for rope in candidates if rope.rot_dim <= key_size]
        excess, rope = min(fitting, key=lambda pair: pair[0], default=(unturned, None))
        if rope is None or not (excess <= 1 and unturned >= MIN_TURN):
            reasons = "".join(f"; {reason}" for reason in unreadable)
            off = f"off by {excess * self._allowed:.2%}" if rope is not None else "and the model has no rotation"
            raise MoveRefused(f"positions: keys of {self._name} do not turn with the position, {off}{reasons}")
        return rope

    def _excess(self, rope: Rope | None) -> float:
        """The largest error at any shift, as a multiple of what is allowed there. Not finite stays not finite."""
        worst = 0.0
        for shift, run in self._runs.items():
            turned = self._base.key if rope is None else reference.rotate(self._base.key, rope, shift)
            allowed = self._allowed + self._angle_error(rope, shift)
            error = _errors(turned, run.key, rope) / allowed
            worst = max(worst, float(error.max())) if bool(error.isfinite().all()) else float("inf")
        return worst

    def _angle_error(self, rope: Rope | None, shift: int) -> Tensor:
        """vLLM rounds `position * inv_freq` to float32, radians per dimension `[key_size]`."""
        angle = torch.zeros(self._base.key.shape[-1], dtype=torch.float64)
        if rope is not None:
            turned = torch.tensor(rope.inv_freq, dtype=torch.float64).abs() * (shift + NUM_TOKENS) * 2.0**-22
            angle[: rope.rot_dim] = turned.repeat(2) if rope.is_neox else turned.repeat_interleave(2)
        return angle


def _errors(expected: Tensor, found: Tensor, rope: Rope | None) -> Tensor:
    """Difference per dimension, `[key_size]`, relative to the size of the pair that the dimension turns in."""
    axes = (0, 1)
    difference = (found.double() - expected.double()).square().mean(dim=axes)
    size = (found.double().square().mean(dim=axes) + expected.double().square().mean(dim=axes)) / 2
    if rope is not None:
        turning = size[: rope.rot_dim]
        pairs = turning.unflatten(0, (2, -1) if rope.is_neox else (-1, 2))
        mean = pairs.mean(dim=0 if rope.is_neox else 1)
        size[: rope.rot_dim] = mean.repeat(2) if rope.is_neox else mean.repeat_interleave(2)
    # A dimension that is next to nothing beside the others rounds as they do.
    return (difference / size.clamp(min=1e-6 * float(size.mean()) + 1e-60)).sqrt()


def _error(expected: Tensor, found: Tensor) -> float:
    return float(_errors(expected, found, None).max())
