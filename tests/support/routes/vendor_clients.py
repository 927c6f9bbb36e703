"""The vendors' own clients of a test's server, for one request or a few.

These servers speak no TLS. To load the certificates all the same takes longer than most answers do (`support/http.py`).
"""

from __future__ import annotations

import anthropic
import openai


def openai_client(server: str) -> openai.OpenAI:
    """OpenAI's client of a server, whose URL has no `/v1`. The caller closes it."""
    plain = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0, http_client=plain)


def anthropic_client(server: str) -> anthropic.Anthropic:
    """Anthropic's client of a server. The caller closes it."""
    plain = anthropic.DefaultHttpxClient(verify=False)
    return anthropic.Anthropic(base_url=server, api_key="unused", max_retries=0, http_client=plain)
