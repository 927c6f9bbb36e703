"""How much of a text a way takes at once, and how much an agent that writes code may say and be told.

    rag            `retrieved` words, in chunks of which the last reaches that number
    memagent       parts of `part` tokens
    rlm, shell     `steps`, `step_tokens` of each, and `printed` characters of what a step gave

The numbers are the papers'. Of `rag` the paper has about 1,500 tokens (arXiv 2508.04664, appendix C.4), and here they
are words, which are about a third more. A text that is shorter than they are is seen whole, in one piece.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from acmserve.bench.harness.options import positive

_CHUNK_WORDS, _OF_WORDS = 200, 1_500
_LEAST_CHUNK = 20
"""A chunk has room for a sentence, however little is retrieved."""


@dataclass(frozen=True, slots=True)
class WayLimits:
    """`retrieved` are words, `part` and `step_tokens` tokens, `printed` characters. None: what each agent has."""

    retrieved: int = _OF_WORDS
    part: int = 5_000
    step_tokens: int = 512
    steps: int | None = None
    printed: int | None = None

    @property
    def chunk(self) -> int:
        """Words of a chunk: 200 of 1,500 as in the paper, and room for a sentence."""
        return min(self.retrieved, max(_LEAST_CHUNK, self.retrieved * _CHUNK_WORDS // _OF_WORDS))

    def told(self, ways: Collection[str]) -> list[str]:
        """What a page says of the ways that were played."""
        found = [f"rag: about {self.retrieved:,} words of a text"] if "rag" in ways else []
        found += [f"memagent: parts of {self.part:,} tokens"] if "memagent" in ways else []
        if any(way.startswith(("rlm", "shell")) for way in ways):
            steps = f"{self.steps:,} steps" if self.steps else "the steps of its paper"
            printed = f", which show {self.printed:,} characters" if self.printed else ""
            found.append(f"an agent that writes code: {steps}, of {self.step_tokens:,} tokens or an answer's{printed}")
        return found


PAPERS = WayLimits()


def add_limit_options(flags: argparse.ArgumentParser) -> None:
    """Add `--retrieved`, `--part`, `--step-tokens`, `--steps` and `--printed`."""
    for name, metavar, told in (
        ("retrieved", "WORDS", "of a text, for `rag`, in chunks of 200 where there are 1,500 (%(default)s)"),
        ("part", "TOKENS", "of a text, which `memagent` reads at once (%(default)s)"),
        ("step-tokens", "N", "of a step of an agent that writes code, and never below --max-tokens (%(default)s)"),
        ("steps", "N", "of an agent that writes code (30 in a Python session, 15 in a shell)"),
        ("printed", "CHARS", "that such an agent is shown of a step (20,000 of Python, 8,000 of a shell)"),
    ):
        default = getattr(PAPERS, name.replace("-", "_"))
        flags.add_argument(f"--{name}", type=positive, default=default, metavar=metavar, help=told)


def limits_of(options: argparse.Namespace) -> WayLimits:
    """The limits that the flags give."""
    return WayLimits(options.retrieved, options.part, options.step_tokens, options.steps, options.printed)
