"""Passes in model runner V2, the runner of GPUs: its inputs and its attention metadata are wrapped.

    prepare_inputs              places and tokens of the passes. vLLM's slots are made of these places
    ModelState.prepare_attn     the builders see a row for each hole

Knows the runner. What a row is stands in `rows.py`.

Decision: a pass counts as laid out when the metadata have its rows, not earlier. A model with metadata of its own, or
a step in a CUDA graph of all its layers, ends with `IntegrityError` instead of other positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.vllm.passes.rows import ROWS, AttentionRows, on_device, plan_rows, positions_of, splitting_builders
from acmserve.engine.vllm.seams import PASSES_V2
from acmserve.errors import IntegrityError
from acmserve.seams import broken_seams

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


def why_no_passes() -> str | None:
    """What of this vLLM's runner does not fit. None where everything does."""
    try:
        broken = broken_seams(PASSES_V2)
    except Exception as error:  # noqa: BLE001 -- the runner of GPUs may fail in any way where it is not needed
        return f"engine: model runner V2, {type(error).__name__}: {error}"
    return f"engine: model runner V2, {broken[0]}" if broken else None


def prepare_inputs(
    original: Callable[..., Any], runner: Any, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
) -> Any:
    """vLLM's inputs of a step, and then the true positions and tokens of the passes in it."""
    batch = original(runner, scheduler_output, *args, **kwargs)
    metadata = scheduler_output.kv_connector_metadata
    passes: Sequence[HolePass] = getattr(metadata, "passes", ())
    if passes:
        lengths = batch.seq_lens_cpu_upper_bound[: batch.num_reqs].numpy()
        rows = plan_rows(passes, batch.req_ids, batch.num_scheduled_tokens, lengths)
        _place_tokens(runner, batch, rows, {one.request_id for one in passes})
        setattr(batch, ROWS, (rows, metadata))
    return batch


def _place_tokens(runner: Any, batch: Any, rows: AttentionRows, request_ids: set[str]) -> None:
    import torch

    positions = positions_of(rows)
    tokens = runner.req_states.all_token_ids.gpu
    for index, request_id in enumerate(batch.req_ids):
        if request_id in request_ids:
            where = rows.tokens_of(index)
            placed = on_device(torch.from_numpy(positions[where]), batch.positions.device)
            batch.positions[where] = placed
            batch.input_ids[where] = tokens[int(batch.idx_mapping_np[index])][placed]


def prepare_attn(
    original: Callable[..., Any], state: Any, input_batch: Any, cudagraph_mode: Any, *args: Any, **kwargs: Any
) -> Any:
    """vLLM's attention metadata, with a row for each hole of the step."""
    rows, metadata = vars(input_batch).pop(ROWS, (None, None))
    if rows is None:
        return original(state, input_batch, cudagraph_mode, *args, **kwargs)
    if cudagraph_mode.name == "FULL":
        raise IntegrityError(
            f"passes: a step of {len(rows.ends)} rows in a CUDA graph, whose rows are those of requests"
        )
    groups = kwargs["attn_groups"] if "attn_groups" in kwargs else args[2]
    builders = [group.get_metadata_builder(0) for some in groups for group in some]
    with splitting_builders(builders, rows):
        built = original(state, input_batch, cudagraph_mode, *args, **kwargs)
    metadata.is_laid_out = True
    return built
