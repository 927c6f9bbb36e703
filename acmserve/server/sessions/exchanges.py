"""What goes to the engine with a request of a session, and what is taken in when its receipt comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.session.render import render
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.plan.request import SessionParams
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.budget.rates import Rates
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.http.tenants import engine_session_id
from acmserve.server.maps.turn import MapTurn
from acmserve.server.sessions.sessions import Sessions, engine_key


class Exchanges:
    """Makes the exchanges. `served` remembers the last prompts, `rates` what prefill and moves cost."""

    def __init__(self, sessions: Sessions, served: ServedContexts, rates: Rates, default_fidelity: str) -> None:
        self._sessions = sessions
        self.served = served
        self._rates = rates
        self._default_fidelity = default_fidelity

    def can_move(self, fidelity: str | None) -> bool:
        """Whether a request of this fidelity moves KV. `auto` moves where little is removed, so it counts."""
        return (fidelity or self._default_fidelity) != "exact"

    def of(
        self,
        session: Session,
        params: SessionParams,
        messages: Sequence[Message],
        enforced: Enforced | None = None,
        turn_map: MapTurn | None = None,
    ) -> Exchange:
        """The exchange of one request of this session, for which `messages` were rendered; the map is not in them."""
        engine_params = replace(
            params,
            session_id=engine_session_id(*engine_key(session)),
            forget=params.forget or self._sessions.must_forget(session),
        )

        def take(receipt: Mapping[str, Any], seconds: float) -> None:
            if engine_params.forget:
                self._sessions.forgotten(session)
            self._rates.note(receipt["computed_tokens"], receipt["moved_tokens"], seconds)
            if enforced is not None and enforced.on_served is not None:
                enforced.on_served(receipt["prompt_tokens"])

        fields = {"budget": enforced.report} if enforced is not None and enforced.report is not None else {}
        slot = None
        if turn_map is not None:
            fields, slot = {**fields, **turn_map.fields}, turn_map.slot
        return Exchange(engine_params, session.session_id, self.served.of(*session.key), messages, take, fields, slot)

    def background(self, session: Session, num_cut: int) -> Exchange:
        """The exchange of a request that precomputes for this session, all but the last `num_cut` tokens."""
        params = SessionParams(engine_session_id(*engine_key(session)), "exact", precompute=True)
        served = self.served.of(*session.key)
        return Exchange(params, session.session_id, served, remembers=False, num_cut=num_cut)

    def describe_kv(self, session: Session, tokenizer: Tokenizer) -> list[str | None]:
        """For each message that the model sees, what the next request finds of its KV (see `served_prompts.py`)."""
        return self.served.of(*session.key).describe_kv(render(session.state), tokenizer)
