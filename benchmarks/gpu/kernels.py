"""The kernels for a machine that has a checkout, torch and triton, but no installed acmserve.

`acmserve.kernels` is the folder `kernels/ops` under another name, which only an installation knows. Without one it is
imported from the checkout here. Does not need vLLM, transformers or the C++ extension.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("acmserve.kernels") is None:
    _folder = Path(__file__).resolve().parents[2] / "kernels" / "ops"
    _spec = importlib.util.spec_from_file_location(
        "acmserve.kernels", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["acmserve.kernels"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["acmserve.kernels"])

import torch
from torch import Tensor

from acmserve.kernels.layout import Isa, KVLayer, KVLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.slots import SlotRun, check_slots, slot_range

__all__ = [
    "Isa",
    "KVLayer",
    "KVLayout",
    "Rope",
    "SlotRun",
    "Tensor",
    "angles",
    "check_slots",
    "reference",
    "slot_range",
    "torch",
]
