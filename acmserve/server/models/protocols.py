"""What the server asks of a model beside chat: summaries and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from acmserve.context.tools.run import SummaryWanted
from acmserve.server.budget.conversation_summary import ConversationSummarizer


class Summarizer(ConversationSummarizer, Protocol):
    """Writes a summary of a text, or of a conversation."""

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest where the text is too long, AcmError where the model cannot be reached."""


class Embedder(Protocol):
    """Turns texts into vectors of one length."""

    async def embed(self, texts: Sequence[str], tenant: str) -> Sequence[Sequence[float]]:
        """One vector for each text. No other tenant learns of it, not by the time either.

        Raises InvalidRequest with a remedy where there is no embedder.
        """
