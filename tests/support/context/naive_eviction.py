"""Algorithm 1 of CWL written down line by line, on whole messages, with no index and no shortcut. The reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.context.episodes.episode import Episode, Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.eviction.cwl import Cwl
from acmserve.context.eviction.plan import Level
from acmserve.context.transcript.message import Message

REASONING = ("reasoning", "reasoning_content")


class NaiveSession:
    """`done` has the levels carried out, by episode number."""

    def __init__(
        self, messages: list[Message], weigh: Callable[[list[Message]], int], options: Cwl, act_ends: bool = False
    ) -> None:
        self.messages, self.weigh, self.options = messages, weigh, options
        self.graph = EpisodeGraph(messages)
        self.active = self.graph.active
        self.episodes = list(self.graph.live.values())
        if act_ends and self.active is not None and self.active.kind is Kind.ACT:
            self.episodes.append(self.active)
            self.active = None
        self.done: dict[int, set[Level]] = {episode.number: set() for episode in self.episodes}
        self.steps: list[tuple[str, Level, int]] = []
        self.silent: set[int] = set()
        self.calls = {call: e for e in self.episodes for call in e.uses}
        self.texts = {entry: e for e in self.episodes for entry in e.messages}

    def count_tokens(self) -> int:
        return self.weigh(self.rendered())

    def is_evicted(self, episode: Episode) -> bool:
        return Level.REMOVE in self.done[episode.number]

    def is_unread(self, episode: Episode) -> bool:
        """Whether a result of it stands behind the last answer. That of the call which ended it is no news."""
        answered = max((n for n, message in enumerate(self.messages) if message["role"] == "assistant"), default=-1)
        for entry in range(answered + 1, len(self.messages)):
            use = self.graph.outline.lines[entry].use
            is_end = episode.close_entry is not None and use == episode.uses[-1]
            if entry in episode.messages or (use in episode.uses and not is_end):
                return True
        return False

    def dependents(self, episode: Episode) -> list[Episode]:
        acts = [e for e in (*self.episodes, *([self.active] if self.active else [])) if e.kind is Kind.ACT]
        if episode.name is None:
            return [act for act in acts if act.number > episode.number]
        return [act for act in acts if episode.number in act.depends_on]

    def run(self, token_budget: int) -> None:
        """Lines 1 to 15, and then the second level: descriptions, the oldest first, where that is enough."""
        self.run_algorithm(token_budget)
        silent, noted = set(self.silent), {e.close_entry for e in self.episodes if e.note and self.is_evicted(e)}
        steps = []
        for entry in sorted(entry for entry in noted - self.silent if entry is not None):
            if self.count_tokens() <= token_budget:
                break
            size = self.count_tokens()
            self.silent.add(entry)
            steps.append((f"descriptions in message {entry}", Level.DESCRIPTIONS, size - self.count_tokens()))
        if self.count_tokens() <= token_budget:
            self.steps += steps
        else:
            self.silent = silent

    def run_algorithm(self, token_budget: int) -> None:
        """Lines 1 to 15."""
        while self.count_tokens() > token_budget:
            candidates = [
                episode
                for episode in self.episodes
                if not self.is_evicted(episode)
                and not self.is_unread(episode)
                and all(act is not self.active and self.is_evicted(act) for act in self.dependents(episode))
            ]
            if not candidates:
                break
            acts = [episode for episode in candidates if episode.kind is Kind.ACT]
            pool = candidates if self.options.by_position or not acts else acts
            target = min(pool, key=lambda episode: episode.number)
            for level in Level.REASONING, Level.BULK, Level.INTERMEDIATE, Level.REMOVE:
                if level is not Level.REASONING or target.kind is Kind.EXPL:
                    self.strip(target, level)
                    if self.count_tokens() <= token_budget:
                        return

    def strip(self, target: Episode, level: Level) -> None:
        size, before = self.count_tokens(), self.rendered()
        self.done[target.number].add(level)
        if _without_blanks(self.rendered()) != _without_blanks(before):
            self.steps.append((target.label, level, size - self.count_tokens()))

    def rendered(self) -> list[Message]:
        found: list[Message | None] = []
        for entry, message in enumerate(self.messages):
            use = self.graph.outline.lines[entry].use
            if message["role"] == "assistant":
                found.append(self.rendered_assistant(entry, message))
            elif message["role"] == "tool" and use is not None:
                found.append(None if self.is_call_gone(*use) else message)
            elif message["role"] == "tool":
                found.append(None if entry in self.texts and self.is_evicted(self.texts[entry]) else message)
            else:
                found.append(message)
        return [message for message in found if message is not None]

    def is_call_gone(self, entry: int, number: int) -> bool:
        episode = self.calls.get((entry, number))  # type: ignore[call-overload]
        if episode is None:
            return False
        name = self.messages[entry]["tool_calls"][number]["function"]["name"]
        done = self.done[episode.number]
        return (
            Level.REMOVE in done
            or (Level.BULK in done and name in self.options.bulk_tools)
            or (Level.INTERMEDIATE in done and name in self.options.intermediate_tools)
        )

    def rendered_assistant(self, entry: int, message: Message) -> Message | None:
        left: dict[str, Any] = dict(message)
        owner = self.texts.get(entry)
        if owner is not None and self.done[owner.number] & {Level.REASONING, Level.REMOVE}:
            for name in REASONING:
                left.pop(name, None)
        if owner is not None and self.is_evicted(owner):
            left["content"] = ""
        calls = [call for i, call in enumerate(left.get("tool_calls", ())) if not self.is_call_gone(entry, i)]
        left.pop("tool_calls", None)
        if calls:
            left["tool_calls"] = calls
        closed = [e for e in self.episodes if e.close_entry == entry and entry not in self.silent]
        notes = [e.note for e in closed if e.note and self.is_evicted(e)]
        if notes:
            lines = "\n".join(notes)
            left["content"] = f"{left['content']}\n{lines}" if left["content"].strip() else lines
        if left == message and not (owner is not None and self.is_evicted(owner)):
            return message
        return left if left["content"].strip() or calls else None


def _without_blanks(messages: list[Message]) -> list[Message]:
    return [{**message, "content": (message["content"] or "").strip()} for message in messages]
