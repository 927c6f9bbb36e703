"""How far the prefill of a session goes in one step while a draft of the same session is decoded.

    step      1          2          3                  4
    draft     [d1]       [d2]       [d3]               (has ended)
    exact     [chunk )   [chunk )   [chunk )           [all that is left .......................)

A step takes as long as its chunk. With vLLM's own chunks of thousands of tokens a draft would have three tokens at the
end of a prefill. With chunks of one token the prefill would never end. So a chunk is the larger one of two numbers. One
is fixed: from it on, a step costs more than reading the weights. The other one is an even share of what is left for
each token that the draft may still say.

It knows which requests are alive. It does not know what becomes of a draft: the server verifies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acmserve.engine.requests.chunk_end import chunk_end
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.session_request import SessionRequest

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request


class DraftPace:
    """See the module. Chunks end with a block of `block_size` tokens, where that leaves any token."""

    def __init__(self, live: LiveRequests, block_size: int, chunk_tokens: int) -> None:
        self._live = live
        self._block_size = block_size
        self._chunk_tokens = chunk_tokens

    def cap_chunk(self, request: Request, num_computed: int, num_new: int) -> int:
        """The chunk `[num_computed, +num_new)` of a request, shortened where a draft is decoded beside it."""
        if num_new <= self._chunk_tokens:
            return num_new
        session = self._live.get(request.request_id)
        if session is None or session.draft:
            return num_new
        num_left = self._num_undrafted(session)
        if not num_left:
            return num_new
        share = -(-(request.num_prompt_tokens - num_computed) // num_left)
        end = chunk_end(num_computed, num_computed + max(self._chunk_tokens, share), self._block_size)
        return min(num_new, end - num_computed)

    def _num_undrafted(self, session: SessionRequest) -> int:
        """Tokens that drafts of the session may still say. 0 where none is decoded."""
        drafts = (request for other, request in self._live.of_session(session.owner) if other.draft)
        return max((request.max_tokens - request.num_output_tokens for request in drafts), default=0)
