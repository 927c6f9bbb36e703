"""A model that works through the tasks of `terminal` (see `terminal.py`), for `--logits-processors`."""

from __future__ import annotations

from tests.support.clients.errand_model import ErrandModel
from tests.support.clients.terminal import due_call


class TerminalModel(ErrandModel):
    """Says the next command."""

    def answer(self, prompt: str) -> str:
        return due_call(prompt)
