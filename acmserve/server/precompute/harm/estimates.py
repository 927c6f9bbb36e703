"""The harm that moved KV did, by model and fidelity, and by session: estimates of this API server, and their metrics.

    judged answer --note--> estimate of (model, fidelity)    acmserve:harm_nats, acmserve:harm_tokens_total
                        --> estimate of (session, fidelity)  GET /v1/acm/sessions/{id}/totals

It knows no engine, and judges nothing. An estimate is lost with the process. Decision: fidelities are kept apart, since
a caller who asks for `reuse` says nothing of what `auto` chose.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from prometheus_client import Counter, Gauge

from acmserve.context.storage.session import Key
from acmserve.errors import IntegrityError
from acmserve.plan.harm.estimate import HarmEstimate
from acmserve.plan.request import FIDELITIES

MAX_SESSIONS = 4096
"""Those that were judged last."""
_LABELS = ("model_name", "fidelity")
HARM = Gauge(
    "acmserve:harm_nats", "Nats a token that moved KV added to answers, running mean, by fidelity.", labelnames=_LABELS
)
HARM_TOKENS = Counter("acmserve:harm_tokens", "Answer tokens judged against exact KV.", labelnames=_LABELS)
MOVING = tuple(fidelity for fidelity in FIDELITIES if fidelity != "exact")


class HarmEstimates:
    """`model` is the name that is served, whose series are there from the start."""

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._models: dict[tuple[str, str], HarmEstimate] = {}
        self._sessions: OrderedDict[Key, dict[str, HarmEstimate]] = OrderedDict()
        for fidelity in MOVING:
            HARM.labels(model, fidelity)
            HARM_TOKENS.labels(model, fidelity)

    def note(self, model: str | None, key: Key, fidelity: str, log_ratios: Sequence[float]) -> None:
        """An answer of a session was judged, which a model gave under a fidelity."""
        name = model or self._model
        found = self.of_model(fidelity, name).with_answer(log_ratios)
        self._models[name, fidelity] = found
        HARM.labels(name, fidelity).set(found.mean)
        HARM_TOKENS.labels(name, fidelity).inc(len(log_ratios))
        own = self._sessions.setdefault(key, {})
        own[fidelity] = own.get(fidelity, HarmEstimate()).with_answer(log_ratios)
        self._sessions.move_to_end(key)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def of_model(self, fidelity: str, model: str | None = None) -> HarmEstimate:
        """That of a model under a fidelity."""
        return self._models.get((model or self._model, fidelity), HarmEstimate())

    def of_session(self, key: Key) -> Mapping[str, HarmEstimate]:
        """Those of a session, by fidelity."""
        return self._sessions.get(key, {})

    def forget(self, key: Key) -> None:
        """The session is gone, or something in it was redacted."""
        self._sessions.pop(key, None)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where an estimate is no sum of answers, or a session was judged and its model not."""
        for estimate in self._models.values():
            estimate.check_integrity()
        judged = dict.fromkeys(MOVING, 0)
        for own in self._sessions.values():
            for fidelity, estimate in own.items():
                estimate.check_integrity()
                judged[fidelity] += estimate.num_tokens
        for fidelity, num_tokens in judged.items():
            num_known = sum(found.num_tokens for (_, asked), found in self._models.items() if asked == fidelity)
            if num_tokens > num_known:
                raise IntegrityError(f"harm: {num_tokens} tokens of sessions under {fidelity}, {num_known} of models")
