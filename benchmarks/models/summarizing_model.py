"""The scripted model of `bench budget`: a request without a script is one for a summary, and gets a text of its own.

The policy `compact` asks the served model for summaries, which nobody can script from outside. Every summary is other
text: about 250 tokens of the manual of the standard library. Summaries that are equal by chance would find each other
in a cache. Loaded by `--logits-processors acmserve.bench.models.summarizing_model:SummarizingModel`.
"""

from __future__ import annotations

from pydoc_data.topics import topics

from acmserve.bench.models.scripted_model import ScriptedModel

NUM_CHARS = 1_100


class SummarizingModel(ScriptedModel):
    """Forces the tokens of the line that is due, or of the next summary."""

    unscripted = tuple(
        f"Summary {number + 1}. {topics[name][:NUM_CHARS]}"
        for number, name in enumerate(name for name in sorted(topics) if len(topics[name]) >= NUM_CHARS)
    )
