"""A program: vLLM's model runner V2 on a CPU, its Triton kernels in Triton's interpreter, with moves on top.

V2 is the runner of GPUs. vLLM takes it where Triton has a driver for the device, so this process gets one for the CPU
that compiles nothing. It prints a line of JSON for each edit, and says which runner answered. Behind them comes the
negative control: keys are moved as they were. A second engine has two layers, and answers edits with many holes. It
does so in one pass, in a step for each hole, and in passes that are laid out wrong.

    python -m tests.support.engine.runner_v2 FOLDER
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    # Looking for garbage takes a fifth of an import, and this program is short.
    gc.disable()
    # Before anything imports Triton or vLLM.
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}

import torch
import triton
from triton.backends.compiler import GPUTarget

MAX_BATCHED_TOKENS = 512


class CpuDriver:
    """What Triton asks of a driver before its interpreter takes over."""

    utils: Any = None

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_device_interface(self) -> ModuleType:
        return torch.cpu

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def install_driver() -> None:
    """Register the driver, and make it the active one."""
    triton.backends.backends["cpu"] = triton.backends.Backend(compiler=None, driver=CpuDriver)
    triton.runtime.driver.set_active(CpuDriver())


def turn_nothing() -> None:
    """From now on keys are moved as they were."""
    from acmserve.engine.worker.copies import KVCopy

    KVCopy.delta = property(lambda self: 0)  # type: ignore[method-assign]


def main(folder: Path) -> None:
    """Ask each edited context with moves and without, and one of them once more, with keys that do not turn."""
    from tests.support.engine.edits import cut, insert, swap, text
    from tests.support.engine.engine import TINY_SETTINGS, start_engine
    from tests.support.engine.tiny_model import TinyModel

    history, marker, new = text(900, "history"), text(20, "marker"), text(14, "new")
    edits = {
        "fold": cut(history, 200, 520, marker),
        "two holes": cut(cut(history, 600, 700, marker), 200, 350, marker),
        "insertion": insert(history, 333, text(70, "inserted")),
        "swap": swap(history, 150, 400, 700),
    }
    settings = TINY_SETTINGS | {"max_model_len": 1536, "block_size": 32, "max_num_seqs": 4}
    settings |= {"max_num_batched_tokens": MAX_BATCHED_TOKENS}
    model = TinyModel("neox", False, 1.0).write(folder / "one-layer")
    with start_engine(model, plugin={}, own_process=False, **settings) as engine:
        runner = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        for name, edit in (*(("turned", edit) for edit in edits), ("unturned", "fold")):
            if name == "unturned":
                turn_nothing()
            context, session = [*edits[edit], *new], f"{name}-{edit}"
            engine.ask(history, session, "reuse", salt=name)
            moved = engine.ask(context, session, "reuse", salt=name)
            exact = engine.ask(context, f"exact-{name}-{edit}", "exact", salt=name)
            assert moved.receipt is not None
            found = {"engine": name, "edit": edit, "moved": moved.receipt["moved_tokens"]}
            found |= {"distance": moved.distance(exact), "runner": [cls.__module__ for cls in type(runner).__mro__]}
            print("ROW", json.dumps(found), flush=True)


def ask_with_holes(folder: Path) -> None:
    """Ask contexts with many holes: together, apart, and laid out wrong in each of two ways."""
    from acmserve.engine.vllm.passes import rows, runner_v2
    from tests.support.engine.edits import text
    from tests.support.engine.engine import TINY_SETTINGS, start_engine
    from tests.support.engine.holes import HISTORY, one_step_a_hole, steps_of, with_holes
    from tests.support.engine.tiny_model import TWO_LAYERS

    settings = TINY_SETTINGS | {"block_size": 32, "max_num_seqs": 4, "max_num_batched_tokens": 1024}
    with start_engine(TWO_LAYERS.write(folder), plugin={"min_move_tokens": 8}, own_process=False, **settings) as engine:
        for num_holes in (2, 16):
            context = with_holes(num_holes)
            apart, many = one_step_a_hole(engine, context, f"apart-{num_holes}")
            together, one = steps_of(engine, context, f"together-{num_holes}")
            found = {"engine": "holes", "holes": num_holes, "steps": [len(one), len(many)]}
            found |= {"tokens": [sum(one), sum(many)], "same": together.receipt == apart.receipt}
            print("ROW", json.dumps(found | {"distance": together.distance(apart)}), flush=True)
        stranger = text(70, "stranger")
        alone = engine.ask(stranger, max_tokens=4, salt="alone")
        engine.ask(HISTORY, "beside", "reuse", salt="beside")
        answers = engine.ask_all([(stranger, None, None), (context, "beside", "reuse")], max_tokens=4, salt="beside")
        found = {"engine": "beside", "same": answers[0].token_ids == alone.token_ids}
        print("ROW", json.dumps(found | {"distance": answers[1].distance(apart)}), flush=True)
        for room, part in ((rows, "split_rows"), (runner_v2, "_place_tokens")):
            right = getattr(room, part)
            setattr(room, part, lambda given, *others: given)
            wrong, _ = steps_of(engine, context, part)
            setattr(room, part, right)
            print("ROW", json.dumps({"engine": "wrong", "part": part, "distance": wrong.distance(apart)}), flush=True)


if __name__ == "__main__":
    install_driver()
    ask_with_holes(Path(sys.argv[1]))
    main(Path(sys.argv[1]))
