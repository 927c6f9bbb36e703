"""One sample in one way: the requests that are made for it, and what came of them.

    Play --ask--> Target --> answer, completions, tools        Play.record() --> one line of the journal

A play that needs acmserve has a session of its own, named after the run, the way and the sample. So none profits from
another's edits, and a run that goes on finds no half-played session: it plays the sample anew.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits
from acmserve.bench.eval.completion import Completion, longest_main
from acmserve.bench.eval.map_ablations import with_ablation
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample
from acmserve.context.transcript.message import Message


class StrandState(ExitStack):
    """What the plays of one strand share: `held` is theirs, and what they opened here is closed behind the last."""

    def __init__(self, num_samples: int = 1) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.held: Any = None


@dataclass(slots=True)
class Play:
    """`run` names the run, `budget` is in tokens, or a share below 1.

    `update`: what updates of a map read and wrote, or summaries computed and wrote. `update_cached`: what summaries
    found in the cache. `map_changes`: how often its map was updated, and what its budget did not hold.
    `repeats`: what an agent in a shell did again. `is_cut`: whether the last answer ended at the bound of its tokens.

    `before` are questions about the same context that were asked before, with their answers in this way. `map_options`
    are fields of `acm.map`. `is_last`: no other sample of its group follows.
    """

    target: Target
    sample: EvalSample
    way: str
    run: str
    budget: float
    before: Sequence[tuple[str, str]] = ()
    map_options: Mapping[str, Any] = field(default_factory=dict)
    is_last: bool = True
    limits: WayLimits = PAPERS
    strand: StrandState = field(default_factory=StrandState)
    completions: list[Completion] = field(default_factory=list)
    tools: Counter[str] = field(default_factory=Counter)
    num_errors: int = 0
    is_unmet: bool = False
    is_cut: bool | None = None
    seconds: float = 0.0
    update: tuple[int, int] | None = None
    update_cached: int = 0
    map_changes: Mapping[str, int] | None = None
    repeats: Mapping[str, int] | None = None
    _open: str = ""

    @property
    def map_name(self) -> str:
        """The map of all questions about one context."""
        return self._name(self.sample.group)

    @property
    def salt(self) -> str:
        """Keeps the prefix cache of one way from the others. The questions of one way share it.

        Tasks of an agent are the same in each context, in another order. So each context has a cache of its own there.
        """
        return self._name(self.sample.group if self.sample.agent else "")

    @property
    def step_tokens(self) -> int:
        """Tokens that an agent may write in one step. A block of code needs more than a short answer does."""
        return max(self.limits.step_tokens, self.sample.max_tokens)

    @property
    def session_budget(self) -> int:
        """Tokens that a whole session of the sample may have."""
        own = self.sample.num_chars / CHARS_PER_TOKEN
        return int(own * self.budget) if self.budget < 1 else int(self.budget)

    def count_tokens(self, messages: Sequence[Message], acm: Mapping[str, Any] | None = None, **fields: Any) -> int:
        """Tokens of a prompt, which is part of no result.

        What acmserve puts into a prompt is known to its chat alone, so it is asked for one token there.
        """
        body = {"messages": list(messages), **fields}
        key = json.dumps([acm or None, body], sort_keys=True)
        sizes = self.target.sizes
        if key not in sizes:
            sizes[key] = self._count_in_chat(body, acm) if acm else self._count(body)
        return sizes[key]

    def ask(self, messages: Sequence[Message], acm: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """One request. Without `acm` it is one that every server takes."""
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": self.sample.max_tokens, **fields}
        if acm is None:
            return self._send(body)
        session = self._open or self._name(self.sample.name)
        try:
            return self._send({**body, "session_id": session, "acm": dict(acm)})
        finally:
            if not self._open:
                self.target.forget(session, self.salt)

    @contextmanager
    def one_session(self, *, of_group: bool = False) -> Iterator[None]:
        """Requests with `acm` belong to one session, of this sample or of its group. Else each has one of its own."""
        self._open = self._name(f"session of {self.sample.group}" if of_group else self.sample.name)
        try:
            yield
        finally:
            if self.is_last or not of_group:
                self.target.forget(self._open, self.salt)
            self._open = ""

    def removed_of(self, entries: Collection[int]) -> frozenset[int] | None:
        """Which of these messages the last prompt of the session did not show whole: none where no session is open.

        None where the server does not tell.
        """
        return self.target.removed_of(self._open, self.salt, entries) if self._open and entries else frozenset()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Requests that teach a map, its updates, and what those read and write. The first begins it anew."""
        if not self.before:
            self.target.forget_map(self.map_name, self.salt)
        before = self.target.wait_for_map(self.map_name, self.salt) or (0, 0)
        yield
        after = self.target.wait_for_map(self.map_name, self.salt)
        if after is not None:
            self.update = after[0] - before[0], after[1] - before[1]
            self.map_changes = self.target.map_changes(self.map_name, self.salt, self._name(self.sample.name))

    def acm_with_map(self, ablation: str = "", *, is_labelled: bool = False) -> dict[str, Any]:
        """What a request with the map of its context says. A labelled one tells the map's models the right answer."""
        options = with_ablation(self.map_options, ablation)
        if is_labelled:
            options["update"] = {**(options.get("update") or {}), "ground_truth": self.sample.gold}
        return {"map": {**options, "external_context_id": self.map_name}}

    def record(self, answer: str, score: float, error: str = "") -> dict[str, Any]:
        """What the journal keeps."""
        return {
            "task": self.sample.task,
            "setting": self.sample.setting,
            "sample": self.sample.name,
            "group": self.sample.group,
            "way": self.way,
            "score": round(score, 6),
            "answer": answer,
            "error": error,
            "completions": [[one.kept, one.moved, one.computed, one.output] for one in self.completions],
            "tools": dict(sorted(self.tools.items())),
            "num_errors": self.num_errors,
            "main_prompt": longest_main(self.completions),
            "unmet": self.is_unmet,
            "update": None if self.update is None else list(self.update),
            "update_cached": self.update_cached,
            "seconds": round(self.seconds, 3),
            **(self.map_changes or {}),
            **({} if self.is_cut is None else {"cut": self.is_cut}),
            **({} if self.repeats is None else {"repeats": dict(self.repeats)}),
        }

    def _count(self, body: Mapping[str, Any]) -> int:
        tools = {"tools": body["tools"]} if "tools" in body else {}
        found = self.target.count({"messages": body["messages"], **tools})
        return len(json.dumps(body)) // CHARS_PER_TOKEN if found is None else found

    def _count_in_chat(self, body: Mapping[str, Any], acm: Mapping[str, Any]) -> int:
        session, salt = self._name(f"size of {self.sample.name}"), self._name("sizes")
        asked = {**body, "max_tokens": 1, "session_id": session, "acm": dict(acm), "cache_salt": salt}
        try:
            answer, _ = self.target.chat(asked)
        finally:
            self.target.forget(session, salt)
        return answer.completions[0].prompt

    def _send(self, body: Mapping[str, Any]) -> str:
        salted = {"cache_salt": self.salt} if self.target.has_acm else {}
        answer, seconds = self.target.chat({**salted, **body})
        self.seconds += seconds
        self.completions += answer.completions
        self.tools += answer.tools
        self.num_errors += answer.num_errors
        self.is_unmet = self.is_unmet or answer.unmet
        self.is_cut = answer.is_cut
        for one in answer.summaries:
            computed, wrote = self.update or (0, 0)
            self.update = computed + one.computed, wrote + one.output
            self.update_cached += one.kept + one.moved
        return answer.text

    def _name(self, of: str) -> str:
        """Short, of letters that every route takes."""
        told = "\0".join((self.run, self.way, self.sample.task, of))
        return f"eval-{hashlib.sha256(told.encode()).hexdigest()[:24]}"
