"""Holes in one forward pass beside a step for each, on a small model in a process of its own. One stage of the suite.

    together    the holes of an edit are rows of one forward pass
    apart       each hole takes a step of its own, because no pass is planned
    as a chunk  the control: tokens of a pass, and the attention of a chunk. It has to answer otherwise

    context    [ front ][ piece ][ piece ] ... [ piece ]                      read first
    edit       [ front ][h][ piece ][h][ piece ] ... [h][ piece ][N]          every hole h is as long as a piece

Half of the prompt is computed in holes, so what they see shows. In 16 bits a batch of another shape gives other last
digits. So `together` may be a quarter as far from `apart` as the control is. Where passes are refused, the stage says
why, and nothing is red. Backends that nobody has checked yet are allowed here: this is their check.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.edit.times import REUSE
from acmserve.bench.gpu.device import CPU, CUDA, KINDS, Device, child_environ
from acmserve.bench.gpu.served_model import LOAD_FORMAT, LOADER, SMALL, TINY, Tokens
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.options import as_gate, as_json
from acmserve.engine.worker import pass_rule
from acmserve.errors import AcmError

NUMBERS = (2, 16, 64)
FRONT_TOKENS, PIECE_TOKENS, MESSAGE_TOKENS = 64, 48, 30
WINDOW = 8192
MOST_SHARE = 0.25
_NUM_CANDIDATES = 100


def measure_holes(device: Device) -> dict[str, Any]:
    """Run the program below. Raises AcmError where it tells nothing."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        file = Path(folder) / "holes.json"
        command = [sys.executable, "-m", "acmserve.bench.gpu.holes", "--json", str(file), "--device", device.kind]
        done = subprocess.run(command, check=False, env=child_environ())
        if not file.is_file():
            raise AcmError(f"the check of holes ended with {done.returncode}, and told nothing")
        return holes_report(json.loads(file.read_text(encoding="utf-8")))


def holes_report(told: dict[str, Any]) -> dict[str, Any]:
    """`told` with its gate. Pure."""
    failures = []
    for row in told["rows"]:
        if row["steps_together"] != 1:
            failures.append(f"{row['num_holes']} holes took {row['steps_together']} forward passes")
        if row["difference"] > MOST_SHARE * row["control_difference"]:
            far = f"{row['difference']:.2g} nats from a step for each, the control {row['control_difference']:.2g}"
            failures.append(f"{row['num_holes']} holes in one pass answer {far}")
    return told | {"gate": as_gate(failures)}


def main(argv: Sequence[str]) -> int:
    """Write what the engine answers, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m acmserve.bench.gpu.holes", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--device", choices=KINDS, default=CUDA)
    options = parser.parse_args(argv)
    model = TINY if options.device == CPU else SMALL
    settings: dict[str, Any] = {"hf_overrides": {"max_position_embeddings": WINDOW}, "skip_tokenizer_init": True}
    settings |= {"load_format": LOAD_FORMAT, "kv_cache_memory_bytes": 2**30, "max_num_seqs": 8}
    if options.device == CUDA:
        settings["gpu_memory_utilization"] = 0.05
    pass_rule.CHECKED |= pass_rule.TO_CHECK
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        path = model.write(Path(folder))
        engine = LocalEngine(path, with_acmserve=True, max_model_len=WINDOW, imports=(LOADER,), **settings)
        try:
            refusal = _connector(engine).abilities.pass_refusal
            text = model.draw_tokens(2 * WINDOW, "holes")
            rows = [] if refusal else [_ask(engine, text, number) for number in NUMBERS]
        finally:
            engine.close()
    options.json.write_text(as_json({"model": model.name, "refusal": refusal, "rows": rows}), encoding="utf-8")
    return 0


def plan_edit(text: Tokens, num_holes: int) -> tuple[Tokens, Tokens]:
    """The context, and the edited prompt. Pure."""
    front, behind = text[:FRONT_TOKENS], text[FRONT_TOKENS:]
    parts = [behind[start * PIECE_TOKENS :][:PIECE_TOKENS] for start in range(2 * num_holes)]
    context, prompt = front, front
    for hole, piece in zip(parts[:num_holes], parts[num_holes:], strict=True):
        context += piece
        prompt += hole + piece
    return context, prompt + text[-MESSAGE_TOKENS:]


def _ask(engine: LocalEngine, text: Tokens, num_holes: int) -> dict[str, Any]:
    edit, candidates = plan_edit(text, num_holes), text[:_NUM_CANDIDATES]
    together, one = _steps(engine, edit, f"together {num_holes}", candidates)
    with _no_passes(engine):
        apart, many = _steps(engine, edit, f"apart {num_holes}", candidates)
    with _rows_as_one_chunk():
        wrong, _ = _steps(engine, edit, f"as a chunk {num_holes}", candidates)
    assert together.receipt is not None
    return {
        "num_holes": num_holes,
        "steps_together": one,
        "steps_apart": many,
        "moved_tokens": together.receipt["moved_tokens"],
        "computed_tokens": together.receipt["computed_tokens"],
        "difference": _difference(together, apart),
        "control_difference": _difference(wrong, apart),
    }


def _steps(engine: LocalEngine, edit: tuple[Tokens, Tokens], key: str, candidates: Tokens) -> tuple[EngineReply, int]:
    """The answer to an edit, and how many steps computed something for it."""
    context, prompt = edit
    engine.ask(Ask(context, key, key, REUSE))
    with _counted_steps(engine) as sizes:
        reply = engine.ask(Ask(prompt, key, key, REUSE, candidates=candidates))
    return reply, len(sizes)


def _difference(one: EngineReply, other: EngineReply) -> float:
    return max(abs(one.first_logprobs[token] - logprob) for token, logprob in other.first_logprobs.items())


def _scheduler(engine: LocalEngine) -> Any:
    return engine.llm.llm_engine.engine_core.engine_core.scheduler


def _connector(engine: LocalEngine) -> Any:
    return _scheduler(engine).connector


@contextmanager
def _counted_steps(engine: LocalEngine) -> Iterator[list[int]]:
    scheduler, sizes = _scheduler(engine), []
    schedule = scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            sizes.append(output.total_num_scheduled_tokens)
        return output

    with _replaced(scheduler, "schedule", counted):
        yield sizes


def _no_passes(engine: LocalEngine) -> Any:
    return _replaced(_connector(engine).move_executor.planner, "_max_pass_tokens", lambda: 0)


def _rows_as_one_chunk() -> Any:
    from acmserve.engine.vllm.passes import rows

    return _replaced(rows, "split_rows", lambda common, split: common)


@contextmanager
def _replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, original)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
