"""Supervised training on exported rows: all weights of a small model, on one CPU, resumable.

    rows of `acmserve export --format sft` --> seeded order --> cross entropy of sampled tokens --> AdamW

A row at a time goes through the model, so nothing is padded, and gradients of a step add up. All of it is float32, as
the server of the trained model is.

Decision: logits are computed where a token has a loss, and nowhere else. They are the largest product of a small model.
Decision: the order of rows follows from the seed and the step. So a run that is cut off goes on as if it were not.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acmserve.bench.provenance.kept_file import kept_entries
from acmserve.errors import AcmError
from acmserve.training.formats import IGNORED_LABEL

Rows = Sequence[Mapping[str, list[int]]]


@dataclass(frozen=True, slots=True)
class SftOptions:
    """How to train.

    Gradients of `rows_per_step` rows add up. The rate rises for `warmup` steps, then falls to a tenth.
    """

    num_steps: int
    rows_per_step: int = 4
    learning_rate: float = 1e-4
    warmup: int = 10
    max_norm: float = 1.0
    seed: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear, then a cosine."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.num_steps - self.warmup, 1)
        return self.learning_rate * (0.1 + 0.9 * (1 + math.cos(math.pi * min(done, 1.0))) / 2)


@dataclass(slots=True)
class SftProgress:
    """The steps that were done, the loss of each, and the seconds that they took."""

    losses: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0

    @property
    def num_steps(self) -> int:
        return len(self.losses)


def rows_of_step(num_rows: int, options: SftOptions, step: int) -> list[int]:
    """Which rows a step trains on. Each row comes once before any comes again."""
    places = range(step * options.rows_per_step, (step + 1) * options.rows_per_step)
    orders: dict[int, list[int]] = {}
    for epoch in {place // num_rows for place in places}:
        orders[epoch] = random.Random(f"{options.seed} {epoch}").sample(range(num_rows), num_rows)
    return [orders[place // num_rows][place % num_rows] for place in places]


def row_loss(model: Any, row: Mapping[str, list[int]]) -> tuple[Tensor, int]:
    """The sum of the cross entropies of the tokens of a row that have a loss, and how many these are."""
    labels = torch.tensor(row["labels"][1:])
    places = (labels != IGNORED_LABEL).nonzero().squeeze(-1)
    last = int(places[-1]) + 1
    hidden = model.model(input_ids=torch.tensor([row["input_ids"][:last]]), use_cache=False).last_hidden_state[0]
    logits = model.lm_head(hidden[places])
    return torch.nn.functional.cross_entropy(logits, labels[places], reduction="sum"), len(places)


class SftRun:
    """A model, its optimizer, and where it stands. `checkpoint` is written by `save` and read when it exists."""

    def __init__(self, model: Any, rows: Rows, options: SftOptions, checkpoint: Path) -> None:
        if not rows:
            raise AcmError("there are no rows to train on; were all rollouts wrong?")
        self.progress = SftProgress()
        self._model, self._rows, self._options, self._checkpoint = model, rows, options, checkpoint
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
        if checkpoint.exists():
            self._load()

    def steps(self, clock: Callable[[], float] = time.monotonic) -> Iterator[SftProgress]:
        """Train to the last step, one at a time."""
        while self.progress.num_steps < self._options.num_steps:
            begun = clock()
            loss, num_tokens = self._step(self.progress.num_steps)
            self.progress.losses.append(loss)
            self.progress.num_tokens += num_tokens
            self.progress.seconds += clock() - begun
            yield self.progress

    def save(self) -> None:
        """Write all that is needed to go on. The file appears by one rename."""
        part = self._checkpoint.with_suffix(".part")
        kept = {"options": asdict(self._options), "progress": asdict(self.progress), "digest": self._digest()}
        torch.save(kept | {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, part)
        part.replace(self._checkpoint)

    def _step(self, step: int) -> tuple[float, int]:
        chosen = [self._rows[number] for number in rows_of_step(len(self._rows), self._options, step)]
        num_tokens = sum(label != IGNORED_LABEL for row in chosen for label in row["labels"][1:])
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.rate(step)
        self._optimizer.zero_grad()
        total = 0.0
        for row in chosen:
            loss, _ = row_loss(self._model, row)
            (loss / num_tokens).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._options.max_norm)
        self._optimizer.step()
        return total / num_tokens, num_tokens

    def _load(self) -> None:
        kept = torch.load(self._checkpoint, weights_only=True)
        if kept["options"] != asdict(self._options) or kept["digest"] != self._digest():
            raise AcmError(f"{self._checkpoint} is of other rows or options; remove it, or give the same ones")
        self._model.load_state_dict(kept["model"])
        self._optimizer.load_state_dict(kept["optimizer"])
        self.progress = SftProgress(**kept["progress"])

    def _digest(self) -> int:
        """Of the rows: a checkpoint is of these alone."""
        return sum((place + 1) * sum(row["input_ids"]) for place, row in enumerate(self._rows))


def read_rows(file: Path) -> list[dict[str, list[int]]]:
    """The rows that `acmserve export --format sft` wrote. Raises AcmError where they cannot be read."""
    with kept_entries(file, "Remove it, and its sessions are played again."):
        return [_row(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _row(line: str) -> dict[str, list[int]]:
    row = json.loads(line)
    return {name: list(row[name]) for name in ("input_ids", "labels")}
