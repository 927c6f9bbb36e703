"""Holes in one forward pass beside a step for each, on a small model in a process of its own. One stage of the suite.

    together    the holes of an edit are rows of one forward pass
    apart       each hole takes a step of its own, because no pass is planned
    beside      together, while another request decodes in the same batch
    as a chunk  the control: tokens of a pass, and the attention of a chunk. It has to answer otherwise

    context    [ front ][ piece ][ piece ] ... [ piece ]                      read first
    edit       [ front ][h][ piece ][h][ piece ] ... [h][ piece ][N]          every hole h is as long as a piece

Half of the prompt is computed in holes, so what they see shows. In 16 bits a batch of another shape gives other last
digits. So `together` may be a quarter as far from `apart` as the control is. Where passes are refused, the stage says
why, and nothing is red. Backends that nobody has checked yet are allowed here: this is their check.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from acmserve.bench.edit.times import REUSE
from acmserve.bench.gpu.device import CPU, CUDA, KINDS, Device, told_by_program
from acmserve.bench.gpu.served_model import LOAD_FORMAT, LOADER, SMALL, TINY, Tokens
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.options import as_gate, as_json
from acmserve.engine.worker import pass_rule

NUMBERS = (2, 16, 64)
FRONT_TOKENS, PIECE_TOKENS, MESSAGE_TOKENS = 64, 48, 30
WINDOW = 8192
MOST_SHARE, LEAST_CONTROL = 0.25, 0.05
"""Of the control's distance, and that one in nats: on a CPU it is 0.4 to 0.6."""
_MOST_SECONDS = 600
_STRANGER_TOKENS, _STRANGER_ANSWER = 100, 128
_NUM_CANDIDATES = 100


def measure_holes(device: Device) -> dict[str, Any]:
    """Run the program below. Raises AcmError where it tells nothing."""
    return holes_report(told_by_program("acmserve.bench.gpu.holes", "--device", device.kind, seconds=_MOST_SECONDS))


def holes_report(told: dict[str, Any]) -> dict[str, Any]:
    """`told` with its gate. Pure."""
    left_out = [{"what": "holes in one forward pass", "why": told["refusal"]}] if told["refusal"] else []
    failures = [f"{row['num_holes']} holes: {why}" for row in told["rows"] for why in _failures(row)]
    return told | {"gate": as_gate(failures), "left_out": left_out}


def _failures(row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a row. A number that is none is wrong, too."""
    num_holes, control = row["num_holes"], row["control_difference"]
    if row["moved_tokens"] != num_holes * PIECE_TOKENS:
        yield f"{row['moved_tokens']} tokens were moved"
    if row["steps_together"] != 1 or row["steps_apart"] <= num_holes:
        yield f"{row['steps_together']} forward passes, and {row['steps_apart']} with a step for each"
    if not control >= LEAST_CONTROL:
        yield f"the control answers {control:.2g} nats from a step for each, so nothing would be seen"
    for name in ("difference", "difference_beside"):
        if not row[name] <= MOST_SHARE * control:
            yield f"one pass answers {row[name]:.2g} nats from a step for each ({name}), the control {control:.2g}"


def main(argv: Sequence[str]) -> int:
    """Write what the engine answers, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m acmserve.bench.gpu.holes", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--device", choices=KINDS, default=CUDA)
    options = parser.parse_args(argv)
    model = TINY if options.device == CPU else SMALL
    settings: dict[str, Any] = {"hf_overrides": {"max_position_embeddings": WINDOW}, "skip_tokenizer_init": True}
    settings |= {"load_format": LOAD_FORMAT, "kv_cache_memory_bytes": 2**28, "max_num_seqs": 8}
    if options.device == CUDA:
        # Graphs as of a server with more requests: a pass is padded to one of them.
        settings |= {"gpu_memory_utilization": 0.05, "compilation_config": {"max_cudagraph_capture_size": 512}}
    pass_rule.CHECKED |= pass_rule.TO_CHECK
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        path = model.write(Path(folder))
        engine = LocalEngine(path, with_acmserve=True, max_model_len=WINDOW, imports=(LOADER,), **settings)
        try:
            found = _connector(engine).abilities
            refusal = found.copy_refusal or found.move_refusal or found.pass_refusal
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
    beside = _beside(engine, edit, f"beside {num_holes}", candidates)
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
        "difference_beside": _difference(beside, apart),
        "control_difference": _difference(wrong, apart),
    }


def _steps(engine: LocalEngine, edit: tuple[Tokens, Tokens], key: str, candidates: Tokens) -> tuple[EngineReply, int]:
    """The answer to an edit, and how many steps computed something for it."""
    context, prompt = edit
    engine.ask(Ask(context, key, key, REUSE))
    with _counted_steps(engine) as sizes:
        reply = engine.ask(Ask(prompt, key, key, REUSE, candidates=candidates))
    return reply, len(sizes)


def _beside(engine: LocalEngine, edit: tuple[Tokens, Tokens], key: str, candidates: Tokens) -> EngineReply:
    """The answer to an edit, in a batch with a request that decodes meanwhile."""
    context, prompt = edit
    stranger = Ask(prompt[-_STRANGER_TOKENS:], f"{key} stranger", max_tokens=_STRANGER_ANSWER, ignore_eos=True)
    asks = [Ask(context, key, key, REUSE), Ask(prompt, key, key, REUSE, candidates=candidates)]
    return engine.play([[stranger], asks]).replies[1][1]


def _difference(one: EngineReply, other: EngineReply) -> float:
    """Of log-probabilities, in nats. None is left out: the largest of a list with a NaN may be another one."""
    apart = [abs(one.first_logprobs[token] - logprob) for token, logprob in other.first_logprobs.items()]
    return math.inf if any(map(math.isnan, apart)) else max(apart)


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

    with mock.patch.object(scheduler, "schedule", counted):
        yield sizes


def _no_passes(engine: LocalEngine) -> Any:
    return mock.patch.object(_connector(engine).move_executor.planner, "_max_pass_tokens", return_value=0)


def _rows_as_one_chunk() -> Any:
    from acmserve.engine.vllm.passes import rows

    return mock.patch.object(rows, "split_rows", lambda common, split: common)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
