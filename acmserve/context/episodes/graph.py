"""The graph of a session's episodes, read from its transcript and from nothing else.

    entries   system user | start A .. end A | answer | user | start B(A) .. end B | start C ..
              [ prologue ] [ A, expl        ] [ gap  ]        [ B, act on A       ] [ C, active

Calls of `delimiter` that were carried out are the only source: a restart or a rewound history gives the same graph
again. It only grows with the transcript. Each message is read once. Where a history diverges, build a new one.

- Acyclic: an edge goes from an act to explorations that had ended when the act started, and to nothing else.
- The prologue, everything before the first start, belongs to no episode, and no turn of the user ever does.
- Work between two named episodes is unannotated: exploratory, and every act that starts later may depend on it. A turn
  of the user divides it. At the end of the transcript it is active, like an episode that has not ended.

Decision: a step (an assistant's message with its results) is read when all its calls have a result, or when another
message follows. Only then it is known which calls of `delimiter` were carried out. Episodes that are fully evicted are
forgotten by `forget`. Their names and kinds stay, so that no name is used twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from acmserve.context.episodes.delimiter import DELIMITER, EpisodeMark, Scope, check_mark, is_refusal, read_mark
from acmserve.context.episodes.episode import Episode, Kind
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Line, Outline, Use
from acmserve.context.transcript.parts import Parts, Role, read_parts
from acmserve.errors import IntegrityError, InvalidRequest


@dataclass(slots=True)
class _Current:
    """The episode that grows: a named one, or unannotated work."""

    number: int
    name: str | None
    kind: Kind
    start: int
    depends_on: tuple[int, ...] = ()
    messages: list[int] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)

    def episode(self, end: int | None = None, close_entry: int | None = None, description: str = "") -> Episode:
        return Episode(
            number=self.number,
            name=self.name,
            kind=self.kind,
            start=self.start,
            depends_on=self.depends_on,
            end=end,
            close_entry=close_entry,
            description=description or None,
            messages=tuple(self.messages),
            uses=tuple(self.uses),
        )


@dataclass(slots=True)
class _Step:
    """The last assistant's message, while it is not known how its calls of `delimiter` went."""

    entry: int
    calls: dict[int, object]
    num_missing: int
    marks: dict[int, EpisodeMark | None] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    strays: list[int] = field(default_factory=list)


class EpisodeGraph:
    """`outline` grows with the graph. `live` holds the ended episodes that were not forgotten, by number."""

    def __init__(self, messages: Iterable[Message] = (), observations: Collection[int] = ()) -> None:
        self.outline = Outline()
        self.live: dict[int, Episode] = {}
        self.prologue_end: int | None = None
        self.num_forgotten = 0
        self._named: dict[str, tuple[int, Kind]] = {}
        self._num_episodes = 0
        self._current: _Current | None = None
        self._step: _Step | None = None
        self.extend_read(read_parts(messages, observations))

    @classmethod
    def of(cls, outline: Outline, episodes: Sequence[Episode], prologue_end: int | None = None) -> EpisodeGraph:
        """A graph of episodes that were found otherwise, in order. The last is active. It does not grow.

        Numbers that none of them has are those of episodes that were forgotten. The prologue goes up to the first of
        them where no other end is given.
        """
        graph = cls()
        graph.outline = outline
        graph._num_episodes = episodes[-1].number + 1 if episodes else 0
        graph.num_forgotten = graph._num_episodes - len(episodes)
        for one in episodes[:-1]:
            graph.live[one.number] = one
        if episodes:
            last = episodes[-1]
            graph.prologue_end = episodes[0].start if prologue_end is None else prologue_end
            graph._current = _Current(
                last.number, last.name, last.kind, last.start, last.depends_on, [*last.messages], [*last.uses]
            )
        return graph

    def __len__(self) -> int:
        """Episodes so far, forgotten and unannotated ones included."""
        return self._num_episodes

    @property
    def num_entries(self) -> int:
        """Messages read so far: go on with the next."""
        return len(self.outline)

    @property
    def active(self) -> Episode | None:
        """The episode that has not ended, or the unannotated work at the end. None right behind an end."""
        return None if self._current is None else self._current.episode()

    @property
    def beginning(self) -> int:
        """The entries in front of the first marked episode, or of the first step where none is marked."""
        if self.prologue_end is not None:
            return self.prologue_end
        lines = self.outline.lines
        return next((entry for entry, line in enumerate(lines) if line.role is Role.ASSISTANT), len(lines))

    @property
    def names(self) -> Mapping[str, tuple[int, Kind]]:
        """Number and kind of every named episode, in order of the starts."""
        return self._named

    def scope(self) -> Scope:
        """What the next call of `delimiter` is judged against."""
        current = self._current
        return Scope({name: kind for name, (_, kind) in self._named.items()}, None if current is None else current.name)

    def extend(self, messages: Iterable[Message]) -> None:
        """Read the messages that are new."""
        self.extend_read(read_parts(messages))

    def extend_read(self, new: Sequence[Parts]) -> None:
        """Take in messages that were taken apart."""
        start = len(self.outline.lines)
        self.outline.extend(new)
        for entry, parts in enumerate(new, start):
            line = self.outline.lines[entry]
            if line.role is Role.RESULT:
                self._read_result(entry, line, parts)
                continue
            self._settle()
            if line.role is Role.ASSISTANT:
                calls = {index: call.arguments for index, call in enumerate(parts.calls) if call.name == DELIMITER}
                self._step = _Step(entry, calls, len(line.names))
                self._settle_if_complete()
            elif line.is_user and self._current is not None and self._current.name is None:
                self._close(entry, None)

    def forget(self, gone: Collection[int]) -> None:
        """Forget ended episodes that are fully evicted, all but their names and kinds."""
        for number in gone:
            del self.live[number]
        self.num_forgotten += len(gone)

    def _read_result(self, entry: int, line: Line, parts: Parts) -> None:
        step = self._step
        if line.use is None and step is not None:
            step.strays.append(entry)
        elif line.use is None:
            self._own(entry)
        elif step is not None and line.use.entry == step.entry and line.use.number not in step.answered:
            step.answered.add(line.use.number)
            step.num_missing -= 1
            if line.use.number in step.calls and is_refusal(" ".join(parts.texts).lstrip()):
                step.refused.add(line.use.number)
            self._settle_if_complete()

    def _settle_if_complete(self) -> None:
        if self._step is not None and not self._step.num_missing:
            self._settle()

    def _settle(self) -> None:
        """Give the last step's text and calls to their episodes."""
        step, self._step = self._step, None
        if step is None:
            return
        first = self._first_start(step)
        if first is None:
            self._own(step.entry)
        for index in range(len(self.outline.lines[step.entry].names)):
            use = Use(step.entry, index)
            mark = self._mark(step, index)
            if mark is not None and mark.starts:
                self._open(step.entry, mark)
                if index == first:
                    self._own(step.entry)
            if self.prologue_end is not None:
                self._grow(step.entry).uses.append(use)
            if mark is not None and not mark.starts:
                self._close(self._end_of(use), step.entry, mark.description)
        for entry in step.strays:
            self._own(entry)

    def _own(self, entry: int) -> None:
        """Give a text to the episode that grows, unless it belongs to the prologue."""
        if self.prologue_end is not None:
            self._grow(entry).messages.append(entry)

    def _first_start(self, step: _Step) -> int | None:
        """The call that starts an episode to which the message's text belongs: none is active before it."""
        if self._current is not None and self._current.name is not None:
            return None
        for index in step.calls:
            if self._mark(step, index) is not None:
                return index
        return None

    def _mark(self, step: _Step, index: int) -> EpisodeMark | None:
        """The mark that a call set. None for any other call, and for one that changed nothing."""
        if index not in step.calls or index not in step.answered or index in step.refused:
            return None
        try:
            if index not in step.marks:
                step.marks[index] = None
                step.marks[index] = read_mark(step.calls[index])
            mark = step.marks[index]
            if mark is not None:
                self._check(mark)
        except InvalidRequest:
            return None
        return mark

    def _check(self, mark: EpisodeMark) -> None:
        """`check_mark` with the few names that it looks at, so that a call costs the same after ten thousand."""
        active = None if self._current is None else self._current.name
        asked = {mark.name, *mark.dependencies} | ({active} if active is not None else set())
        check_mark(mark, Scope({name: self._named[name][1] for name in asked if name in self._named}, active))

    def _grow(self, entry: int) -> _Current:
        """The episode that content at `entry` belongs to. Unannotated work begins where there is none."""
        if self._current is None:
            self._current = _Current(self._take_number(), None, Kind.EXPL, entry)
        return self._current

    def _open(self, entry: int, mark: EpisodeMark) -> None:
        assert mark.kind is not None
        if self._current is not None:
            self._close(entry, None)
        if self.prologue_end is None:
            self.prologue_end = entry
        depends_on = tuple(self._named[name][0] for name in mark.dependencies)
        self._current = _Current(self._take_number(), mark.name, mark.kind, entry, depends_on)
        self._named[mark.name] = (self._current.number, mark.kind)

    def _close(self, end: int, close_entry: int | None, description: str = "") -> None:
        assert self._current is not None
        self.live[self._current.number] = self._current.episode(end, close_entry, description)
        self._current = None

    def _take_number(self) -> int:
        self._num_episodes += 1
        return self._num_episodes - 1

    def _end_of(self, use: Use) -> int:
        """The entry behind a call and its results."""
        return max([use.entry, *self.outline.lines[use.entry].results[use.number]]) + 1

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when one of the invariants is broken."""
        self.outline.check_integrity()
        episodes = [*self.live.values(), *([self.active] if self.active is not None else [])]
        if len(self.live) + self.num_forgotten + (self.active is not None) != self._num_episodes:
            raise IntegrityError(f"episodes: {len(self.live)} live, {self.num_forgotten} forgotten, {len(self)} in all")
        kinds = dict(self._named.values())
        for episode in episodes:
            _check_edges(episode, kinds)
            _check_content(episode, self.outline, self.prologue_end)
        for before, after in pairwise(episodes):
            if before.number >= after.number or before.start > after.start:
                raise IntegrityError(f"episodes: {before.number} at {before.start} before {after.number}")
        if sum(not episode.is_closed for episode in episodes) > 1:
            raise IntegrityError("episodes: more than one is active")
        _check_owners(episodes)


def _check_edges(episode: Episode, kinds: Mapping[int, Kind]) -> None:
    if bool(episode.depends_on) != (episode.kind is Kind.ACT):
        raise IntegrityError(f"episodes: {episode.kind.value} {episode.number} depends on {episode.depends_on}")
    for number in episode.depends_on:
        if number >= episode.number or kinds.get(number) is not Kind.EXPL:
            raise IntegrityError(f"episodes: {episode.number} depends on {number}, a {kinds.get(number)}")


def _check_content(episode: Episode, outline: Outline, prologue_end: int | None) -> None:
    entries = [*episode.messages, *(use.entry for use in episode.uses)]
    if not entries or prologue_end is None or min(entries) < max(prologue_end, episode.start):
        raise IntegrityError(f"episodes: {episode.number} at {episode.start} holds {entries}, prologue {prologue_end}")
    protected = [entry for entry in entries if outline.lines[entry].role is Role.PROTECTED]
    if protected:
        raise IntegrityError(f"episodes: {episode.number} holds the protected messages {protected}")


def _check_owners(episodes: Iterable[Episode]) -> None:
    owned: set[int | Use] = set()
    for episode in episodes:
        mine: list[int | Use] = [*episode.messages, *episode.uses]
        if len(set(mine)) != len(mine) or owned & set(mine):
            raise IntegrityError(f"episodes: {episode.number} holds what another holds too")
        owned |= set(mine)
