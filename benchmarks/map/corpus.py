"""The recurring context of `bench map`: a corpus of letters that an agent sees through tools, and questions about it.

    labels.txt      what each label means, by cue words      records-1.txt   2041-01-03 | Orla Venn | We waited ...
    users.txt       who writes                               ...             a quarter of a year each

After OOLONG (arXiv 2511.02817) in kind, not in data: questions count, compare and rank over all records, so that none
is answered by one passage. Numbers score 0.75 to the power of their error, anything else has to match. Generated from a
fixed seed. The truth of a question comes from the labels that the records were made with, which the agent never sees.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.scripted_agent import function_tool

NUM_FILES, NUM_RECORDS, YEAR, SEED = 4, 480, 2041, 6
SAMPLE = 12
LABELS_FILE, USERS_FILE = "labels.txt", "users.txt"
# Every sentence has a cue word of its label, and none of another one.
LABELS: Mapping[str, Mapping[str, str]] = {
    "delay": {
        "waited": "We waited for most of an hour at {place} and nobody said why.",
        "too late": "The evening train came too late for the last bus from {place}.",
        "missed": "Because of a halt on the bridge we missed the boat at {place}.",
    },
    "comfort": {
        "freezing": "From {place} on the carriage was freezing, coats and all.",
        "crowded": "It was so crowded above {place} that we stood in the aisle.",
        "cushion": "My cushion was torn open, I felt every sleeper down to {place}.",
    },
    "fares": {
        "ticket": "The machine in {place} took my coins and gave no ticket.",
        "refund": "I ask for a refund of the ride to {place}, which was called off.",
        "fare": "The fare to {place} went up for the third time in two years.",
    },
    "staff": {
        "conductor": "Please thank the conductor who found my glove at {place}.",
        "rude": "The man behind the counter in {place} was rude to my father.",
        "guard": "A guard carried the pram over the footbridge at {place}.",
    },
    "luggage": {
        "suitcase": "My suitcase went on to {place} without me.",
        "skis": "There is no rack for skis on the cars that go up to {place}.",
        "bicycle": "They would not take my bicycle at {place}, though the leaflet says so.",
    },
    "scenery": {
        "panorama": "The panorama over {place} is worth every bend of the line.",
        "fog": "There was fog from {place} to the summit, and still we sang.",
        "window": "Whoever cleans each window before {place} deserves a medal.",
    },
}
_MEANINGS = (
    "Trains that come or leave at another time than the timetable says, and what follows from it.",
    "How it is to ride: warmth, room, cleanliness, what one sits on.",
    "What a ride costs, how it is paid for, and how money is given back.",
    "Praise and blame of the people who work for the railway.",
    "Whatever is taken along, with or without its owner.",
    "What there is to be seen on the way, or not to be seen.",
)
# fmt: off
USERS = (
    "Orla Venn", "Tibor Askew", "Maren Holt", "Jonas Pell", "Ysolde Crane", "Bram Quill", "Petra Lund", "Silas Ford",
    "Runa Beck", "Emil Thorne", "Greta Moss", "Anselm Roy", "Livia Stamm", "Odo Fenwick", "Hanne Vogt", "Cosmo Reed",
)
PLACES = ("Kessel Halt", "Upper Thorn", "Marrow Pass", "Lake Ombra", "Sankt Velt", "Crow Mill", "Arden Cross")
# fmt: on
MONTHS = tuple(f"{YEAR}-{month:02}" for month in range(1, 13))
_ASIDES = (
    "The draft of this section is due on Friday and still has a gap where the number belongs.",
    "The board will read the first page only, so the sentence has to stand by itself.",
    "Last year's report said the opposite, and two members of the board remember it.",
    "I have put the quotation from the spring meeting in front of it, please leave that as it is.",
    "The chart beside it was drawn from an older count and will be drawn again.",
    "Whoever translates this wants short sentences and the names as they are in the letters.",
    "The union has asked for the same figure, so it should be one that we can explain.",
    "We leave out the letters of the year before, they were kept in another way.",
    "The press office would like a figure that does not change until the summer.",
    "There will be a footnote on how the letters were collected, which is written already.",
)
TOOLS = [
    function_tool("list_files", "Lists the files of the corpus with their numbers of lines."),
    function_tool(
        "read_lines",
        "Reads the lines from first to last of a file, both included, counted from 1.",
        file="string",
        first="integer",
        last="integer",
    ),
    function_tool(
        "count_lines",
        "Counts, for each of several regular expressions, the lines of all record files in which it is found.",
        patterns={"type": "array", "items": {"type": "string"}},
    ),
]


@dataclass(frozen=True, slots=True)
class Record:
    """One letter. `label` stands nowhere in its text."""

    date: str
    user: str
    label: str
    text: str

    @property
    def line(self) -> str:
        return f"{self.date} | {self.user} | {self.text}"


@dataclass(frozen=True, slots=True)
class CorpusQuestion:
    """`keys` are what has to be counted, of one `subject` (label, user, month), in the letters of `within`.

    `kind`: count, most, least, compare, or at_least, which counts the keys that have `least` letters.
    """

    text: str
    kind: str
    subject: str
    keys: tuple[str, ...]
    within: str = ""
    least: int = 0

    def conclude(self, counts: Mapping[str, int]) -> str:
        """The answer, from the number of letters of each key."""
        if self.kind == "count":
            return str(counts[self.keys[0]])
        if self.kind == "at_least":
            return str(sum(counts[key] >= self.least for key in self.keys))
        if self.kind == "compare":
            first, second = (counts[key] for key in self.keys)
            return "equally often" if first == second else "more often" if first > second else "less often"
        sign = -1 if self.kind == "most" else 1
        return min(self.keys, key=lambda key: (sign * counts[key], key))


@dataclass(frozen=True, slots=True)
class Corpus:
    """The records and the files that they stand in."""

    records: tuple[Record, ...]
    files: Mapping[str, tuple[str, ...]]

    @property
    def digest(self) -> str:
        """The same for the same text."""
        return hashlib.sha256(json.dumps(dict(self.files)).encode()).hexdigest()[:16]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers."""
        if name == "list_files":
            return "\n".join(f"{file}: {len(lines)} lines" for file, lines in self.files.items())
        if name == "read_lines":
            return "\n".join(self.files[arguments["file"]][arguments["first"] - 1 : arguments["last"]])
        lines = [line for file, lines in self.files.items() if file.startswith("records") for line in lines]
        counted = ((pattern, sum(1 for line in lines if re.search(pattern, line))) for pattern in arguments["patterns"])
        return "\n".join(f"{number} lines match {pattern}" for pattern, number in counted)

    def truth(self, question: CorpusQuestion) -> str:
        """The right answer."""
        where = question.within
        records = [r for r in self.records if where in (r.user, r.date[:7], "")]
        names: Mapping[str, Callable[[Record], str]] = {
            "label": lambda r: r.label,
            "user": lambda r: r.user,
            "month": lambda r: r.date[:7],
        }
        return question.conclude(Counter(names[question.subject](record) for record in records))


def make_corpus() -> Corpus:
    """The same corpus each time."""
    rng = random.Random(SEED)
    shares = {"label": (9, 7, 6, 5, 4, 3), "user": range(4, 4 + len(USERS)), "month": range(20, 20 + len(MONTHS))}
    records = []
    for _ in range(NUM_RECORDS):
        label = rng.choices(tuple(LABELS), shares["label"])[0]
        month = rng.choices(MONTHS, shares["month"])[0]
        text = rng.choice(tuple(LABELS[label].values())).format(place=rng.choice(PLACES))
        user = rng.choices(USERS, shares["user"])[0]
        records.append(Record(f"{month}-{rng.randint(1, 28):02}", user, label, text))
    records.sort(key=lambda record: record.date)
    files = {
        LABELS_FILE: tuple(
            f"{label}: {', '.join(cues)}. {meaning}"
            for (label, cues), meaning in zip(LABELS.items(), _MEANINGS, strict=True)
        ),
        USERS_FILE: USERS,
    }
    size = NUM_RECORDS // NUM_FILES
    for number in range(NUM_FILES):
        part = records[number * size : (number + 1) * size]
        files[f"records-{number + 1}.txt"] = tuple(record.line for record in part)
    return Corpus(tuple(records), files)


def make_questions() -> tuple[CorpusQuestion, ...]:
    """Sixteen questions, each asked once. The first four differ in what one has to find out about the corpus."""
    ask, labels, months = CorpusQuestion, tuple(LABELS), MONTHS
    return (
        ask("How many letters are about luggage?", "count", "label", ("luggage",)),
        ask("Which user has written the most letters?", "most", "user", USERS),
        ask("Which label is the most common?", "most", "label", labels),
        ask("In which month were the most letters written?", "most", "month", months),
        ask(
            "Are letters about comfort written more or less often than those about staff?",
            "compare",
            "label",
            ("comfort", "staff"),
        ),
        ask(f"How many letters of {USERS[6]} are about delay?", "count", "label", ("delay",), USERS[6]),
        ask("How many users have written at least 30 letters?", "at_least", "user", USERS, least=30),
        ask(f"How many letters of {months[8]} are about fares?", "count", "label", ("fares",), months[8]),
        ask("Which label is the least common?", "least", "label", labels),
        ask(f"How many letters were written in {months[4]}?", "count", "month", (months[4],)),
        ask(f"Which label is the most common in the letters of {USERS[12]}?", "most", "label", labels, USERS[12]),
        ask("Who has written the fewest letters?", "least", "user", USERS),
        ask("In how many months were at least 40 letters written?", "at_least", "month", months, least=40),
        ask("How many letters are about scenery?", "count", "label", ("scenery",)),
        ask(f"Does {USERS[10]} write more or less often than {USERS[3]}?", "compare", "user", (USERS[10], USERS[3])),
        ask(f"Which label is the most common in {months[9]}?", "most", "label", labels, months[9]),
    )


def with_asides(questions: Sequence[CorpusQuestion]) -> list[str]:
    """The messages of the user: each question behind a few sentences that a person writes around it."""
    rng = random.Random(SEED)
    return [f"{' '.join(rng.sample(_ASIDES, 4))}\n\n{question.text}" for question in questions]


def score(said: str, truth: str) -> float:
    """0.75 to the power of the error of a number. 1 or 0 for anything else (OOLONG)."""
    if re.fullmatch(r"-?\d+", truth):
        return 0.75 ** abs(int(said) - int(truth)) if re.fullmatch(r"-?\d+", said.strip()) else 0.0
    return float(said.strip().casefold() == truth.casefold())
