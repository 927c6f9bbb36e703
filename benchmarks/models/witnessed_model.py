"""The scripted model, and what the weights would have said in its place: one line of JSON for each answer.

    {"id": "predict-7", "step": 0, "said": [412, 88], "lead": [3.1, 0.4]}

`said[i]` is the likeliest token before the script forced token i, `lead[i]` by how much its logit is above the second.
Two servers that were led along the same script have computed the same KV where they would have said the same. So whole
answers are compared, and the comparison goes on behind a difference. Lines go to the file named by the environment,
`ACMSERVE_BENCH_WITNESS`. Requests without a `script_id` leave none. Loaded by
`--logits-processors acmserve.bench.models.witnessed_model:WitnessedModel`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams

from acmserve.bench.models.scripted_model import STEP, ScriptedModel
from acmserve.bench.models.witness import WITNESS


class WitnessedModel(ScriptedModel):
    """Forces what `ScriptedModel` forces, and writes down what was likeliest, when an answer ends."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """The processor of the script, behind a look at the logits."""
        force = super().new_req_logits_processor(params)
        extra: dict[str, Any] = params.extra_args if params.extra_args is not None else {}
        if "script_id" not in extra:
            return force
        said: dict[int, tuple[int, float]] = {}

        def look(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            first, second = torch.topk(logits, 2).values.tolist()
            said[len(output_token_ids)] = int(logits.argmax()), first - second
            forced: torch.Tensor = force(output_token_ids, logits)
            if int(forced.argmax()) == self.end_token:
                _write(extra["script_id"], extra[STEP], [said[n] for n in sorted(said)])
            return forced

        return look


def _write(script_id: str, step: int, said: list[tuple[int, float]]) -> None:
    line = {"id": script_id, "step": step, "said": [token for token, _ in said]}
    line["lead"] = [round(lead, 5) for _, lead in said]
    with Path(os.environ[WITNESS]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
