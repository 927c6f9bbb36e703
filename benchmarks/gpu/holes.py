"""Holes in one forward pass beside a step for each, on a small model in a process of its own. One stage of the suite.

    together    the holes of an edit are rows of one forward pass
    apart       each hole takes a step of its own, because no pass is planned
    beside      together, while another request decodes in the same batch
    as a chunk  the control: tokens of a pass, and the attention of a chunk. It has to answer otherwise

    context    [ front ][ piece ][ piece ] ... [ piece ]                      read first
    edit       [ front ][h][ piece ][h][ piece ] ... [h][ piece ][N]          many short holes h, or some long ones

What the holes see has to show. In 16 bits a batch of another shape gives other last digits. So `together` may be a
quarter as far from `apart` as the control is. Steps of few tokens run in CUDA graphs, and longer ones do not. So there
are edits of both kinds. Where passes are refused, the stage says why, and nothing is red. Backends that nobody has
checked yet are allowed here: this is their check.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from acmserve.bench.edit.times import REUSE
from acmserve.bench.gpu.device import CPU, CUDA, KINDS, Device, told_by_program
from acmserve.bench.gpu.served_model import LOAD_FORMAT, LOADER, SMALL, TINY, Tokens
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.options import as_gate, as_json
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.engine.worker import pass_rule

FRONT_TOKENS, PIECE_TOKENS, MESSAGE_TOKENS = 64, 45, 30
"""A piece ends in no block of a card, so that each move turns keys across two."""
WINDOW = 8192
MOST_SHARE, LEAST_CONTROL = 0.25, 0.05
"""Of the control's distance, and that one in nats: on a CPU it is 0.4 to 0.6."""
_MOST_SECONDS = 600
_STRANGER_TOKENS, _STRANGER_ANSWER = 100, 128
_NUM_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class HoleEdit:
    """The lengths of the holes in tokens, in their order, and what people call them."""

    name: str
    holes: tuple[int, ...]


EDITS = (
    *(HoleEdit(f"{number} of {PIECE_TOKENS} tokens", (PIECE_TOKENS,) * number) for number in (2, 16, 64)),
    HoleEdit("48 of 8 tokens", (8,) * 48),
    HoleEdit("32 of 1 to 200 tokens", (1, 17, 200, 3) * 8),
)


def measure_holes(device: Device) -> dict[str, Any]:
    """Run the program below. Raises AcmError where it tells nothing."""
    return holes_report(told_by_program("acmserve.bench.gpu.holes", "--device", device.kind, seconds=_MOST_SECONDS))


def holes_report(told: dict[str, Any]) -> dict[str, Any]:
    """`told` with its gate. Pure."""
    left_out = [{"what": "holes in one forward pass", "why": told["refusal"]}] if told["refusal"] else []
    failures = [f"{row['holes']}: {why}" for row in told["rows"] for why in _failures(row)]
    return told | {"gate": as_gate(failures), "left_out": left_out}


def _failures(row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a row. A number that is none is wrong, too."""
    num_holes, control = row["num_holes"], row["control_difference"]
    if row["moved_tokens"] != num_holes * PIECE_TOKENS:
        yield f"{row['moved_tokens']} tokens were moved"
    if row["steps_together"] != 1 or row["steps_apart"] <= num_holes:
        yield f"{row['steps_together']} forward passes, and {row['steps_apart']} with a step for each"
    if not row["is_beside"]:
        yield "no step had the pass and the other request's next token"
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
            rows = [] if refusal else [_ask(engine, text, edit) for edit in EDITS]
            told = {"model": model.name, "engine": _engine_facts(engine), "refusal": refusal, "rows": rows}
        finally:
            engine.close()
    write_whole(options.json, as_json(told))
    return 0


def _engine_facts(engine: LocalEngine) -> dict[str, Any]:
    """What was checked: a card with another runner, attention or other graphs is not."""
    config = engine.llm.llm_engine.vllm_config
    compilation = config.compilation_config
    return {
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "attention": sorted({pass_rule.backend_of(layer) for layer in compilation.static_forward_context.values()}),
        "graphs": None if compilation.cudagraph_mode is None else compilation.cudagraph_mode.name,
        "max_graph_tokens": compilation.max_cudagraph_capture_size,
    }


def plan_edit(text: Tokens, edit: HoleEdit) -> tuple[Tokens, Tokens]:
    """The context, and the edited prompt. Pure."""
    tokens = iter(text)
    context = prompt = tuple(islice(tokens, FRONT_TOKENS))
    for hole in edit.holes:
        prompt += tuple(islice(tokens, hole))
        piece = tuple(islice(tokens, PIECE_TOKENS))
        context += piece
        prompt += piece
    return context, prompt + tuple(islice(tokens, MESSAGE_TOKENS))


def _ask(engine: LocalEngine, text: Tokens, edit: HoleEdit) -> dict[str, Any]:
    planned, candidates = plan_edit(text, edit), text[:_NUM_CANDIDATES]
    together, one = _steps(engine, planned, f"together {edit.name}", candidates)
    assert together.receipt is not None
    num_computed = together.receipt["computed_tokens"]
    with _counted_steps(engine) as sizes:
        beside = _beside(engine, planned, f"beside {edit.name}", candidates)
    with _no_passes(engine):
        apart, many = _steps(engine, planned, f"apart {edit.name}", candidates)
    with _rows_as_one_chunk():
        wrong, _ = _steps(engine, planned, f"as a chunk {edit.name}", candidates)
    return {
        "holes": edit.name,
        "num_holes": len(edit.holes),
        "steps_together": one,
        "steps_apart": many,
        "is_beside": num_computed + 1 in sizes,
        "moved_tokens": together.receipt["moved_tokens"],
        "computed_tokens": num_computed,
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
