"""The scripted model of `bench budget`: a request without a script is one for a summary, and gets a text of its own.

The policy `compact` asks the served model for summaries, which nobody can script from outside. Every summary is other
text (`summaries.py`). Loaded by `--logits-processors acmserve.bench.models.summarizing_model:SummarizingModel`.
"""

from __future__ import annotations

from acmserve.bench.harness.summaries import SUMMARIES
from acmserve.bench.models.scripted_model import ScriptedModel


class SummarizingModel(ScriptedModel):
    """Forces the tokens of the line that is due, or of the next summary."""

    unscripted = SUMMARIES
