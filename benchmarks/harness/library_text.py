"""Real text for benchmarks without a download: the sources and the manual of the running Python's standard library.

    read    lines of a source file          grep   `argparse.py:1823:    def _get_values(...)`
    count   `  2653 argparse.py`            manual `python -m pydoc calls`

Files and topics are read in sorted order, so one version of Python gives the same text on every machine. Another
version gives other text of the same sizes. It cuts by tokens, since that is what a budget counts.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from acmserve.context.transcript.tokenizer import Tokenizer

_LEAST_SOURCE_CHARS = 24_000
_LEAST_TOPIC_CHARS = 6_000
_DEF = re.compile(r" *def ([a-z]\w{5,23})\(").match


@dataclass(frozen=True, slots=True)
class Library:
    """`sources` by file name, `topics` of the manual by name. Both are sorted."""

    sources: Mapping[str, str]
    topics: Mapping[str, str]

    def definitions(self) -> dict[str, list[tuple[str, int]]]:
        """The functions that a file defines once, each with its line, by file."""
        found = {}
        for name, source in self.sources.items():
            defined = [(n, match[1]) for n, line in enumerate(source.splitlines(), start=1) if (match := _DEF(line))]
            counts = Counter(function for _, function in defined)
            found[name] = [(function, line) for line, function in defined if counts[function] == 1]
        return found

    def lines(self, name: str, first: int) -> str:
        """A file from line `first` on, and over again from its beginning."""
        lines = self.sources[name].splitlines(keepends=True)
        return "".join([*lines[first - 1 :], *lines])

    def grep(self, pattern: str, first: str) -> Iterator[str]:
        """Lines that contain a pattern, the file `first` before the others."""
        for name in [first, *(name for name in self.sources if name != first)]:
            if pattern in self.sources[name]:
                for number, line in enumerate(self.sources[name].splitlines(), start=1):
                    if pattern in line:
                        yield f"{name}:{number}:{line}\n"

    def count(self, first: str) -> str:
        """How many lines each file has, from the file `first` on."""
        names = list(self.sources)
        start = names.index(first)
        return "\n".join(f"{self.sources[name].count(chr(10)):>7} {name}" for name in [*names[start:], *names[:start]])


def read_library() -> Library:
    """The larger modules at the top of the standard library, and the longer topics of the manual."""
    from pydoc_data.topics import topics

    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.glob("[a-z]*.py"))
    sources = {path.name: path.read_text(encoding="utf-8") for path in paths}
    return Library(
        {name: source for name, source in sources.items() if len(source) >= _LEAST_SOURCE_CHARS},
        {name: topics[name] for name in sorted(topics) if len(topics[name]) >= _LEAST_TOPIC_CHARS},
    )


def cut(text: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """The first tokens of a text, or all of it where it has fewer."""
    # Only as much is tokenized as may be needed: no tokenizer takes more than 16 characters a token of such text.
    text = text[: 16 * num_tokens]
    starts = tokenizer.starts(text)
    return text if len(starts) <= num_tokens else text[: starts[num_tokens]]
