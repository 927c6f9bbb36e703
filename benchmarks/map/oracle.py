"""The scripted agent of `bench map`: a policy over what it knows, and what it knows comes from the map and its tools.

    map text ---.
                 >-- Known --> step(question) --> a call, or the answer
    results ----'      '--> distilled, charted: what the map does not say yet

Nothing reaches the agent past these two. What the map says was learned by an earlier question and went through
Distiller and Cartographer, under guided decoding and the budget. It is read back from the text in the prompt.
What has been evicted has to be found out again. The agent reads neither its earlier answers nor the corpus itself.
It knows nothing of servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.map.corpus import LABELS_FILE, MONTHS, SAMPLE, USERS_FILE, CorpusQuestion

SUBJECTS = ("label", "user", "month")
_ABOUT = "Letters of passengers to a mountain railway, one a record; questions so far were about"
_ITEM = re.compile(r"^\[([a-z]{2}-\d{5,9})\] (.*)$", re.MULTILINE)
_COUNTED = re.compile(r"^(\d+) lines match (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the agent wants to make."""

    name: str
    arguments: dict[str, Any]

    @property
    def line(self) -> str:
        """How a model of the Hermes style writes it."""
        return f"<tool_call>\n{json.dumps({'name': self.name, 'arguments': self.arguments})}\n</tool_call>"


@dataclass(slots=True)
class Known:
    """What the agent knows of the corpus. `tables`: the number of all letters by label, user or month.

    `counts` are those of this question, by pattern. `said` the items of the map, text by id.
    """

    files: str = ""
    layout: str = ""
    cues: dict[str, tuple[str, ...]] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def read_map(self, text: str) -> None:
        """Take in what a map says. Only items of the form of `items` mean something to the agent."""
        self.said = dict(_ITEM.findall(text))
        for item in self.said.values():
            head, _, rest = item.partition(": ")
            if head == "Files":
                self.files = rest
            elif head == "A record is one line":
                self.layout = rest
            elif head == "Label of a letter, by words in its text":
                self.cues = {name: tuple(cues.split(", ")) for name, cues in _pairs(rest, "; ", " = ")}
            for subject in SUBJECTS:
                if head == f"All letters by {subject}":
                    self.tables[subject] = {name: int(number) for name, number in _pairs(rest, ", ", " = ")}
        self.users = tuple(self.tables.get("user", ()))

    def read_result(self, call: ToolUse, result: str) -> None:
        """Take in what a tool answered."""
        if call.name == "list_files":
            self.files = ", ".join(line.partition(":")[0] for line in result.splitlines())
        elif call.name == "count_lines":
            self.counts |= {pattern: int(number) for number, pattern in _COUNTED.findall(result)}
            for subject in SUBJECTS:
                self._tabulate(subject)
        elif call.arguments["file"] == LABELS_FILE:
            rows = (line.partition(". ")[0] for line in result.splitlines())
            self.cues = {name: tuple(cues.split(", ")) for name, cues in (row.split(": ") for row in rows)}
        elif call.arguments["file"] == USERS_FILE:
            self.users = tuple(result.splitlines())
        elif all(line.count(" | ") == 2 for line in result.splitlines()):
            self.layout = "date | user | text"

    def step(self, question: CorpusQuestion) -> ToolUse | str:
        """What the agent does next: find out what it does not know, count, answer."""
        table = {} if question.within else self.tables.get(question.subject, {})
        if table:
            self.used.add(f"All letters by {question.subject}")
            return question.conclude(table)
        if not self.files:
            return ToolUse("list_files", {})
        if question.subject == "label" and not self.cues:
            return ToolUse("read_lines", {"file": LABELS_FILE, "first": 1, "last": 40})
        if question.subject == "user" and not self.users:
            return ToolUse("read_lines", {"file": USERS_FILE, "first": 1, "last": 40})
        if not self.layout:
            first = next(name for name in self.files.split(", ") if name.startswith("records"))
            return ToolUse("read_lines", {"file": first, "first": 1, "last": SAMPLE})
        self.used |= {"Files", "A record is one line"}
        self.used |= {"Label of a letter, by words in its text"} if question.subject == "label" else set()
        patterns = {key: self._pattern(question.subject, key, question.within) for key in question.keys}
        if all(pattern in self.counts for pattern in patterns.values()):
            return question.conclude({key: self.counts[pattern] for key, pattern in patterns.items()})
        return ToolUse("count_lines", {"patterns": list(patterns.values())})

    def items(self, question: CorpusQuestion) -> list[tuple[str, str]]:
        """What is worth a place in the map, by section."""
        about = {*re.findall(r"label|user|month", " ".join(self.said.values()).partition(_ABOUT)[2].partition(".")[0])}
        subjects = [name for name in SUBJECTS if name in about | {question.subject}]
        found = [("context_understanding", f"{_ABOUT} {', '.join(subjects)}.")]
        if self.files:
            found.append(("context_roadmap", f"Files: {self.files}"))
        if self.cues:
            cues = "; ".join(f"{name} = {', '.join(words)}" for name, words in self.cues.items())
            found.append(("domain_constants", f"Label of a letter, by words in its text: {cues}"))
        if self.layout:
            found.append(("parsing_schema", f"A record is one line: {self.layout}"))
        for subject, table in self.tables.items():
            numbers = ", ".join(f"{name} = {number}" for name, number in table.items())
            found.append(("reusable_results", f"All letters by {subject}: {numbers}"))
        return found

    def update(self, question: CorpusQuestion) -> list[str]:
        """What Distiller and Cartographer answer after this question: JSON lines for the scripted model."""
        candidates, operations = [], []
        for section, text in self.items(question):
            if text in self.said.values():
                continue
            candidates.append({"section": section, "value": text, "transferability": "all", "rationale": "Found out."})
            old = next((item for item, said in self.said.items() if _ABOUT in said and _ABOUT in text), None)
            operations.append(
                {"type": "ADD", "section": section, "content": text}
                if old is None
                else {"type": "REPLACE", "item_id": old, "content": text}
            )
        # In the order of their numbers: so the schema names them, and guided decoding keeps its order.
        items = sorted(self.said.items(), key=lambda item: int(item[0].partition("-")[2]))
        tags = {item: "helpful" if text.partition(":")[0] in self.used else "neutral" for item, text in items}
        asked = {"item_tags": tags} if tags else {}
        diagnosis = f"Asked by {question.subject}; {len(candidates)} things were found out that the map did not say."
        return [
            json.dumps({"diagnosis": diagnosis, **asked, "cache_candidates": candidates}),
            json.dumps({"reasoning": "What any question needs.", "operations": operations}),
        ]

    def _tabulate(self, subject: str) -> None:
        """Where every key of a subject has been counted over all letters, that is a result to keep."""
        keys: Sequence[str] = {"label": tuple(self.cues), "user": self.users, "month": MONTHS}[subject]
        patterns = {key: self._pattern(subject, key) for key in keys}
        if patterns and all(pattern in self.counts for pattern in patterns.values()):
            self.tables[subject] = {key: self.counts[pattern] for key, pattern in patterns.items()}

    def _pattern(self, subject: str, key: str, within: str = "") -> str:
        """The regular expression for the records of a key. The layout says where date and user stand."""
        own = {"label": f"({'|'.join(self.cues.get(key, ()))})", "user": f"[|] {key} [|]", "month": f"^{key}"}[subject]
        if not within:
            return own
        return f"^{within}.*{own}" if within in MONTHS else f"[|] {within} [|].*{own}"


def answer_text(question: CorpusQuestion, answer: str) -> str:
    """How the agent puts it."""
    return (
        f"I went by the letters in the record files, all of them, and by nothing else. You asked: {question.text} "
        f"The count behind this can be made again at any time with the same patterns.\nAnswer: {answer}"
    )


def read_answer(said: str) -> str:
    """What `answer_text` says."""
    return said.rpartition("Answer: ")[2]


def _pairs(text: str, between: str, inside: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (pair.partition(inside) for pair in text.split(between))]
