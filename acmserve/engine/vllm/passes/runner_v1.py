"""Passes in model runner V1, the runner of CPUs: its inputs and its attention metadata are wrapped.

    _prepare_inputs             places, tokens and slots of the passes in the batch
    _build_attention_metadata   the builders see a row for each hole

Knows the runner. What a row is stands in `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.vllm.passes.rows import ROWS, AttentionRows, plan_rows, positions_of, splitting_builders

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


def prepare_inputs(
    original: Callable[..., Any], runner: Any, scheduler_output: SchedulerOutput, num_scheduled: np.ndarray
) -> Any:
    """vLLM's inputs of a step, and then the true positions, tokens and slots of the passes in it."""
    prepared = original(runner, scheduler_output, num_scheduled)
    vars(runner).pop(ROWS, None)
    metadata = scheduler_output.kv_connector_metadata
    passes: Sequence[HolePass] = getattr(metadata, "passes", ())
    if not passes:
        return prepared
    num_requests = runner.input_batch.num_reqs
    request_ids = runner.input_batch.req_ids[:num_requests]
    rows = plan_rows(passes, request_ids, num_scheduled, runner.optimistic_seq_lens_cpu[:num_requests].numpy())
    _place_tokens(runner, rows, {one.request_id for one in passes})
    setattr(runner, ROWS, rows)
    assert metadata is not None
    metadata.is_laid_out = True
    return prepared


def _place_tokens(runner: Any, rows: AttentionRows, request_ids: set[str]) -> None:
    import torch

    positions = positions_of(rows)
    batch = runner.input_batch
    for request_id in request_ids:
        index = batch.req_id_to_index[request_id]
        where = rows.tokens_of(index)
        runner.positions[where] = torch.from_numpy(positions[where]).to(runner.positions.device)
        runner.input_ids.np[where] = batch.token_ids_cpu[index, positions[where]]
        runner.input_ids.gpu[where].copy_(runner.input_ids.cpu[where])
    num_requests = batch.num_reqs
    starts = runner.query_start_loc.gpu[: num_requests + 1]
    batch.block_table.compute_slot_mapping(num_requests, starts, runner.positions[: len(positions)])


def build_attention_metadata(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's attention metadata, with a row for each hole of the step."""
    rows: AttentionRows | None = vars(runner).pop(ROWS, None)
    if rows is None:
        return original(runner, *args, **kwargs)
    builders = [group.get_metadata_builder(0) for groups in runner.attn_groups for group in groups]
    with splitting_builders(builders, rows):
        return original(runner, *args, **kwargs)
