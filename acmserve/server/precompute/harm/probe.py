"""Judges the last answer of a session in front of its heal: what would exact KV have made of the same tokens?

    served      [ prompt, in part moved ][ a1 a2 a3 ... ]        log p of each, as it was sampled
    request 1   [ prompt, exact ......)                          all but its last token
    request 2   [ found ..............][. a1 a2 a3 ... ]         log p of each, computed with the answer
    heal        [ found ...............................][ . ]    what is left of the context as it is

All three are background requests, so nobody waits for them. Together they compute what the heal alone computes, and at
most two KV blocks more. Decision: the prompt goes first, without log probabilities, since those of a long prompt cost
its vocabulary in each row. Its last token is left out: the row of `a1` is computed with it.

The tokens are those that were served, not a rendering of them. So reasoning that a template drops later is judged, too.
What was edited since is not judged: nobody needs its KV any more. Where the engine refuses, the heal goes on all the
same. It keeps no estimate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from acmserve.context.storage.session import Session
from acmserve.errors import Unavailable
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.scores import AnswerScores, PromptScores
from acmserve.server.precompute.background_request import Background, RequestFrame
from acmserve.server.precompute.harm.estimates import HarmEstimates
from acmserve.server.precompute.harm.levels import AutoLevels
from acmserve.server.sessions.sessions import Sessions
from acmserve.server.vllm.model_names import ASKED_NAME

MAX_NAMES = 64

logger = logging.getLogger(f"vllm.{__name__}")


class HarmProbe:
    """`will_heal` says whether a session is healed after its turns. `window` bounds a prompt. `levels` may learn."""

    def __init__(
        self,
        sessions: Sessions,
        estimates: HarmEstimates,
        will_heal: Callable[[Session], bool],
        window: int | None = None,
        levels: AutoLevels | None = None,
    ) -> None:
        self._sessions = sessions
        self._estimates = estimates
        self._will_heal = will_heal
        self._window = window
        self._levels = levels
        self._names: set[str] = set()
        self.num_failed = 0

    def scores(self, session: Session, fidelity: str | None) -> AnswerScores | None:
        """What the next answer of a session takes down. None where nothing is moved, or nothing will heal."""
        return AnswerScores() if self._sessions.can_move(fidelity) and self._will_heal(session) else None

    def level(self, session: Session) -> str | None:
        """How bold `auto` is in the next request of a session. None: as the engine does by itself."""
        return None if self._levels is None else self._levels.asked_of(session.key, self._known(ASKED_NAME.get()))

    def _name(self, asked: str | None) -> str | None:
        """The name of a model by which answers are kept apart. With an alias for every name there is no end of them."""
        known = self._known(asked)
        if known is not None:
            self._names.add(known)
        return known

    def _known(self, asked: str | None) -> str | None:
        """The same for a request that may yet be refused: what no model answers to takes no other name's room."""
        has_room = bool(asked) and len(self._names) < MAX_NAMES
        return asked if has_room or asked in self._names else None

    async def judge(self, background: Background, session: Session, frame: RequestFrame) -> None:
        """Judge the last answer, once, where it was given under moved KV."""
        served = self._sessions.served.of(*session.key)
        last, scored = served.last, served.scored
        if last is None or scored is None or not served.num_stale:
            return
        prompt = last.prompt_token_ids.tolist()
        whole = [*prompt, *scored.token_ids]
        if len(prompt) < 2 or (self._window is not None and len(whole) >= self._window):
            return
        if await self._compute(background, session, frame, PromptScores(prompt[:-1])) is None:
            return
        scores = PromptScores(whole, len(scored.token_ids))
        receipt = await self._compute(background, session, frame, scores)
        if served.scored is not scored:
            return
        served.scored = None
        exact = [] if receipt is None else scores.covered(receipt)
        if exact:
            moved = scored.logprobs[-len(exact) :]
            ratios = [given - told for given, told in zip(moved, exact, strict=True)]
            name = self._name(frame.fields.get("model"))
            self._estimates.note(name, session.key, last.fidelity, ratios)
            if self._levels is not None and last.fidelity == "auto":
                self._levels.note(name, session.key, ratios)

    async def _compute(
        self, background: Background, session: Session, frame: RequestFrame, scores: PromptScores
    ) -> Mapping[str, Any] | None:
        """The receipt of a prompt that was computed exactly. None where it was not, or in part."""
        exchange = self._sessions.background_exchange(session, (), 0, scores)
        CURRENT.set(exchange)
        try:
            await background(frame.body_of_tokens())
        except (Unavailable, ValueError) as error:
            self.num_failed += 1
            if self.num_failed == 1:
                logger.warning("acmserve: an answer is not judged: %s Later failures are only counted.", error)
            return None
        receipt = exchange.receipt
        is_whole = receipt is not None and receipt["fallback_reason"] is None and not receipt["moved_tokens"]
        return receipt if is_whole else None
