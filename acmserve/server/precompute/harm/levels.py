"""How bold `auto` is here: one level for each model and one for each session, of which the more careful one holds.

    answer of `auto` --note--> level of the session, level of the model --name--> the next request of `auto`

It measures nothing: see `probe.py`. Levels live as long as the process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from prometheus_client import Counter, Gauge

from acmserve.context.storage.session import Key
from acmserve.errors import IntegrityError
from acmserve.plan.harm.level import AutoLevel, LevelLadder

MAX_SESSIONS = 4096
"""Those that were judged or asked last. The level of a session that falls out is that of its model."""
CAREFUL_WAY, BOLD_WAY = "careful", "bold"
LEVEL = Gauge(
    "acmserve:auto_level", "How bold auto is on a model, 0 for exact, by the harm measured.", labelnames=("model_name",)
)
CHANGES = Counter(
    "acmserve:auto_level_changes",
    "Changes of how bold auto is, by scope (model, session) and direction (careful, bold).",
    labelnames=("model_name", "scope", "direction"),
)


class AutoLevels:
    """`model` is the name that is served, whose series are there from the start."""

    def __init__(self, ladder: LevelLadder, model: str = "") -> None:
        self._ladder = ladder
        self._model = model
        self._models: dict[str, AutoLevel] = {}
        self._sessions: OrderedDict[Key, AutoLevel] = OrderedDict()
        LEVEL.labels(model).set(ladder.start)
        for scope in ("model", "session"):
            for way in (CAREFUL_WAY, BOLD_WAY):
                CHANGES.labels(model, scope, way)

    def note(self, model: str | None, key: Key, log_ratios: Sequence[float]) -> None:
        """An answer of `auto` was judged."""
        name = model or self._model
        before = self._of_model(name)
        self._models[name] = before.with_answer(log_ratios)
        _count(name, "model", before, self._models[name])
        LEVEL.labels(name).set(self._models[name].place)
        own = self._of_session(key)
        self._sessions[key] = own.with_answer(log_ratios)
        _count(name, "session", own, self._sessions[key])
        self._sessions.move_to_end(key)
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[self._least_missed(key)]

    def of(self, key: Key, model: str | None = None) -> AutoLevel:
        """The level of a session on a model."""
        return min(self._of_session(key), self._of_model(model or self._model), key=lambda level: level.place)

    def asked_of(self, key: Key, model: str | None = None) -> str | None:
        """The level to ask the engine for. None: the calibrated one, which it takes by itself.

        The session counts as used: at `exact` nothing of it is judged any more.
        """
        if key in self._sessions:
            self._sessions.move_to_end(key)
        level = self.of(key, model)
        return None if level.place == self._ladder.start else level.name

    def forget(self, key: Key) -> None:
        """The session is gone, or something in it was redacted."""
        self._sessions.pop(key, None)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where a level is off its ladder, or on another one."""
        for level in (*self._models.values(), *self._sessions.values()):
            level.check_integrity()
            if level.ladder != self._ladder:
                raise IntegrityError(f"harm: a level is on the ladder {level.ladder.names}, not {self._ladder.names}")

    def _least_missed(self, judged: Key) -> Key:
        """The oldest session of those that are no more careful than a new one, else the oldest of all.

        Never the one that has just been judged: it could not gather any evidence.
        """
        others = (key for key in self._sessions if key != judged)
        careless = (key for key in self._sessions if key != judged and self._sessions[key].place >= self._ladder.start)
        return next(careless, next(others))

    def _of_model(self, model: str) -> AutoLevel:
        known = self._models.get(model)
        return known or AutoLevel(self._ladder, self._ladder.start, self._ladder.model_floor)

    def _of_session(self, key: Key) -> AutoLevel:
        return self._sessions.get(key) or AutoLevel(self._ladder, self._ladder.start)


def _count(model: str, scope: str, before: AutoLevel, after: AutoLevel) -> None:
    if after.place != before.place:
        CHANGES.labels(model, scope, CAREFUL_WAY if after.place < before.place else BOLD_WAY).inc()
