"""What the engine served to a session, as the API server saw it: its outputs as tokens, and where moved KV lies.

    answer as sampled    [ "ca" "pital" ]     the tokens that the KV cache holds
    answer as text         "capital"
    in the next prompt   [ "capital" ]        the template renders text, the tokenizer chooses other tokens: prefix lost

`ServedContext.splice` puts the sampled tokens back into the next prompt wherever the very text appears with the
tokenizer's own choice of tokens. The text stays the same to the byte. Only outputs whose tokens differ from that choice
are remembered, so for most answers there is nothing to do. Where a template rewrites an answer, nothing is found, the
engine's matcher takes what still agrees, and the receipt shows it.

Lives in memory only: after a restart the first request of a session is computed. So it is for a session whose memory
was dropped. The memory of all sessions is bounded in bytes, and the bound is shared fairly between API keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.session import Bound, Key
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import IntegrityError
from acmserve.server.exchange.ended_request import Served
from acmserve.server.exchange.foldable_pieces import PieceFinder
from acmserve.server.exchange.scores import ScoredAnswer
from acmserve.server.exchange.served.held_bytes import HeldBytes
from acmserve.server.exchange.served.sampled_outputs import (
    SampledOutputs,
    TextTokenizer,
    TokenizedOutput,
    tokenize_output,
)

MAX_DESCRIBED_TOKENS = 2**18
"""Longest prompt in which messages are looked for, which decodes it and counts it anew."""
DEFAULT_BOUND = Bound(4096, 256 * 2**20)
_CONTEXT_BYTES, _SPAN_BYTES = 512, 128


class ServedContext:
    """Memory of one session. `last` is None until a request of the session was answered.

    `pieces` finds the messages in a prompt, for all sessions of a server. `scored` is the last answer with the log
    probabilities that it was sampled with, where they are wanted. Every change of its size is told to `held`.
    """

    def __init__(
        self, tokenizer: TextTokenizer, pieces: PieceFinder | None = None, held: HeldBytes | None = None
    ) -> None:
        self.pieces = pieces or PieceFinder(tokenizer)
        self._tokenizer = tokenizer
        self._last: Served | None = None
        self._scored: ScoredAnswer | None = None
        self._outputs: SampledOutputs | None = None
        self._found: tuple[NDArray[np.int32], list[tuple[int, int] | None]] | None = None
        self._held, self._num_counted = held or HeldBytes(), 0
        self._recount()

    @property
    def last(self) -> Served | None:
        """The request that was answered last."""
        return self._last

    @last.setter
    def last(self, served: Served | None) -> None:
        self._last = served
        self._recount()

    @property
    def scored(self) -> ScoredAnswer | None:
        """Its answer, where it is to be judged."""
        return self._scored

    @scored.setter
    def scored(self, scored: ScoredAnswer | None) -> None:
        self._scored = scored
        self._recount()

    def leave(self) -> None:
        """It is no session's any more. Whoever still writes into it changes no sum."""
        self._held.num_bytes -= self._num_counted
        self._held, self._num_counted = HeldBytes(), 0

    def _recount(self) -> None:
        num_bytes = self.num_bytes
        self._held.num_bytes += num_bytes - self._num_counted
        self._num_counted = num_bytes

    @property
    def num_served(self) -> int:
        """Tokens of the last prompt."""
        return 0 if self.last is None else len(self.last.prompt_token_ids)

    @property
    def num_bytes(self) -> int:
        """Host memory: 4 bytes a token, outputs, and the places of messages that were looked for."""
        last = 0 if self.last is None else self.last.num_bytes
        found = 0 if self._found is None else _SPAN_BYTES * len(self._found[1])
        scored = 0 if self.scored is None else self.scored.num_bytes
        outputs = 0 if self._outputs is None else self._outputs.num_bytes
        return _CONTEXT_BYTES + last + outputs + found + scored

    @property
    def num_stale(self) -> int:
        """Tokens of the last prompt from the first one whose KV was moved."""
        if self.last is None or not self.last.moved:
            return 0
        return self.num_served - min(start for start, _ in self.last.moved)

    def num_kept(self, prompt_token_ids: Sequence[int]) -> int:
        """Tokens that a prompt begins with as the last one did."""
        return 0 if self.last is None else num_common(self.last.prompt_token_ids, prompt_token_ids)

    def num_cut_off(self, prompt_token_ids: Sequence[int]) -> int:
        """Tokens of the last prompt behind those that a prompt begins with. 0 for an append."""
        return self.num_served - self.num_kept(prompt_token_ids)

    def note_healed(self) -> None:
        """The last context was computed anew since it was served: what the next request keeps is not moved."""
        if self.last is not None:
            self.last = replace(self.last, moved=())

    def splice(self, prompt_token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """The prompt with earlier outputs in the tokens that were sampled, unless it would exceed `max_tokens`."""
        if self._outputs is None:
            return list(prompt_token_ids)
        return self._outputs.splice(prompt_token_ids, max_tokens)

    def remember_output(self, text: str, token_ids: Sequence[int]) -> None:
        """Keep the sampled tokens of an answer where the tokenizer would choose others for its text."""
        output = tokenize_output(self._tokenizer, text, token_ids) if text else None
        if output is not None:
            self.keep_output(output)

    def keep_output(self, output: TokenizedOutput) -> None:
        """Keep an answer that was tokenized already."""
        if self._outputs is None:
            self._outputs = SampledOutputs()
        self._outputs.keep(output)
        self._recount()

    def outputs(self) -> list[tuple[str, list[int]]]:
        """The answers that are remembered, as text and sampled tokens. `remember_output` takes them elsewhere."""
        sampled = [] if self._outputs is None else self._outputs.sampled()
        return [(self._tokenizer.decode(tokens), tokens) for tokens in sampled]

    def take_over(self, other: ServedContext) -> None:
        """Begin with the memory of another session."""
        self._outputs = None if other._outputs is None else other._outputs.copy()
        self.last = other.last

    def record(
        self,
        messages: Sequence[Message],
        prompt_token_ids: Sequence[int],
        receipt: Mapping[str, Any],
        answer: str = "",
    ) -> None:
        """Note a served request. Moved KV in the kept prefix stays moved. The receipt names what was moved now."""
        kept = receipt["kept_tokens"]
        before = self.last.moved if self.last is not None else ()
        moved = [(start, min(end, kept)) for start, end in before if start < kept]
        moved += [(move["dst_start"], move["dst_start"] + move["num_tokens"]) for move in receipt["moves"]]
        if (receipt.get("chosen") or receipt["fidelity"]) == "exact":
            moved = []
        prompt = np.array(prompt_token_ids, dtype=np.int32)
        self.last = Served(tuple(messages), prompt, tuple(moved), receipt["fidelity"], answer)
        self.scored = None

    def describe_kv(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[str | None]:
        """For each message that the model sees now, what the next request finds of its KV.

        kept: in place. moved: it was moved, or will be, unless `auto` chooses exact then. partly moved. gone: the next
        request computes it. None: the template hides where the message stands in the prompt.
        """
        if self.last is None:
            return ["gone"] * len(messages)
        spans = self._spans(tokenizer)
        described: list[str | None] = []
        unchanged, moves = True, self.last.fidelity != "exact"
        served = {tuple(texts(old)) for old in self.last.messages} if moves else set()
        for index, message in enumerate(messages):
            answered = unchanged and index == len(self.last.messages) and texts(message) == [(None, self.last.answer)]
            known = index < len(self.last.messages) and texts(self.last.messages[index]) == texts(message)
            unchanged = unchanged and known
            if unchanged:
                described.append(self._state_of(spans[index]))
            elif answered:
                described.append("kept")
            else:
                described.append("moved" if tuple(texts(message)) in served else "gone")
        return described

    def _state_of(self, span: tuple[int, int] | None) -> str | None:
        assert self.last is not None
        if span is None:
            return None
        start, end = span
        num_moved = sum(max(0, min(end, b) - max(start, a)) for a, b in self.last.moved)
        return "kept" if num_moved == 0 else "moved" if num_moved == end - start else "partly moved"

    def _spans(self, tokenizer: Tokenizer) -> list[tuple[int, int] | None]:
        """Token span of each served message in the prompt, None where its text is not found there.

        What was found is remembered as long as the prompt is the last one. A very long prompt is not looked into.
        """
        assert self.last is not None
        if self._found is None or self._found[0] is not self.last.prompt_token_ids:
            self._found = self.last.prompt_token_ids, self._find_spans(tokenizer)
            self._recount()
        return self._found[1]

    def _find_spans(self, tokenizer: Tokenizer) -> list[tuple[int, int] | None]:
        assert self.last is not None
        if self.num_served > MAX_DESCRIBED_TOKENS:
            return [None] * len(self.last.messages)
        prompt = self._tokenizer.decode(self.last.prompt_token_ids.tolist())
        starts = tokenizer.starts(prompt)
        if len(starts) != len(self.last.prompt_token_ids):
            return [None] * len(self.last.messages)
        spans: list[tuple[int, int] | None] = []
        position = 0
        for message in self.last.messages:
            found = [text for _, text in texts(message)]
            start = prompt.find(found[0].strip(), position) if found else -1
            if start < 0:
                spans.append(None)
                continue
            position = start + len(found[0].strip())
            spans.append((bisect_left(starts, start), bisect_left(starts, position)))
        return spans


class ServedContexts:
    """The contexts of all sessions. Over the bound, those used longest ago go of the API key that holds most."""

    def __init__(self, tokenizer: TextTokenizer, bound: Bound = DEFAULT_BOUND) -> None:
        self._tokenizer = tokenizer
        self._pieces = PieceFinder(tokenizer)
        self._bound = bound
        self._contexts: OrderedDict[Key, ServedContext] = OrderedDict()
        self._held = HeldBytes()

    def __len__(self) -> int:
        return len(self._contexts)

    @property
    def num_bytes(self) -> int:
        """Host memory of all contexts, a running sum: it is asked for with each token of each answer."""
        return self._held.num_bytes

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where the running sum is not the sum."""
        num_bytes = sum(context.num_bytes for context in self._contexts.values())
        if num_bytes != self._held.num_bytes:
            raise IntegrityError(f"served prompts: {self._held.num_bytes} bytes are counted, {num_bytes} are held")

    def of(self, tenant: str, session_id: str) -> ServedContext:
        """The context of a session, a new one at first. What exceeds the bound goes, but never this one."""
        key = (tenant, session_id)
        if key not in self._contexts:
            self._contexts[key] = ServedContext(self._tokenizer, self._pieces, self._held)
        self._contexts.move_to_end(key)
        if len(self) > self._bound.max_sessions or self.num_bytes > self._bound.max_bytes:
            self._shrink(key)
        return self._contexts[key]

    def tokenize_output(self, text: str, token_ids: Sequence[int]) -> TokenizedOutput | None:
        """An answer as `ServedContext.keep_output` takes it, None where there is nothing to keep. Safe in a thread."""
        return tokenize_output(self._tokenizer, text, token_ids)

    def detached(self) -> ServedContext:
        """A context of no session: nobody finds what is remembered in it."""
        return ServedContext(self._tokenizer, self._pieces)

    def _shrink(self, spared: Key) -> None:
        sizes = {key: context.num_bytes for key, context in self._contexts.items()}
        for victim in plan_victims(sizes, self._bound, lambda key: key == spared):
            self.drop(*victim)

    def outputs(self, tenant: str, session_id: str) -> list[tuple[str, list[int]]]:
        """What is remembered of a session's answers. It counts as no use."""
        context = self.known(tenant, session_id)
        return [] if context is None else context.outputs()

    def known(self, tenant: str, session_id: str) -> ServedContext | None:
        """The context of a session, None where there is none. It counts as no use."""
        return self._contexts.get((tenant, session_id))

    def share(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Let a new session know what was served to an old one, with which it begins."""
        if old in self._contexts:
            self.of(*new).take_over(self.of(*old))

    def drop(self, tenant: str, session_id: str) -> None:
        """Forget a session."""
        context = self._contexts.pop((tenant, session_id), None)
        if context is not None:
            context.leave()


def num_common(first: Sequence[int] | NDArray[np.int32], second: Sequence[int] | NDArray[np.int32]) -> int:
    """Tokens that two prompts begin with."""
    num = min(len(first), len(second))
    differs = np.asarray(first[:num], dtype=np.int32) != np.asarray(second[:num], dtype=np.int32)
    return int(differs.argmax()) if differs.any() else num
