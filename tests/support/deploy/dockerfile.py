"""A Dockerfile as its instructions. It reads what the files of `deploy/` use, and no more of the language."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a stage. Stages count from 0."""

    name: str
    text: str
    stage: int

    @property
    def words(self) -> list[str]:
        """The words, of a JSON array or of plain text, without flags of the instruction."""
        text = re.sub(r"^(--\S+\s+)+", "", self.text)
        found: list[str] = json.loads(text) if text.startswith("[") else text.split()
        return found

    @property
    def flags(self) -> dict[str, str]:
        """`--from=build` as `{"from": "build"}`."""
        head = re.match(r"(?:--\S+\s+)*", self.text)
        return {} if head is None else dict(re.findall(r"--([\w-]+)=(\S+)", head[0]))


def read_dockerfile(text: str) -> list[Instruction]:
    """Instructions in order, with continued lines joined, without comments."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", "", plain).splitlines()
    found: list[Instruction] = []
    stage = -1
    for line in filter(str.strip, lines):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Instruction(name, rest.strip(), stage))
    return found
