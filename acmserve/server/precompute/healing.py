"""Whether a context that was computed anew is the one that its client's next request begins with.

    served      [ tools, system | user | moved | answer ..         the client's own request
    computed    [ tools, system | user | exact | answer ..         of its frame and its messages: healed
    computed    [        system | user | exact | answer ..         a frame that leaves the tools out: healed nothing

A frame is what is known of a client's request (`background_request.py`). A template, or a flag of the server, may make
another prompt of it. So prompts are compared, up to the last token that was moved.

An edit between two turns ends what the two have in common. There the messages that were served are rendered once more,
in the frame. It knows tokens, and nothing of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.server.exchange.served_prompts import ServedContext
from acmserve.server.precompute.background_request import Background, RequestFrame


async def is_healed(
    background: Background, frame: RequestFrame, served: ServedContext, computed: Sequence[int], *, was_edited: bool
) -> bool:
    """Whether the prompt `computed` has exact KV for all that was moved in what was served last."""
    last = served.last
    if not was_edited or last is None or not last.moved:
        return _covers_moved(served, computed)
    rendered = await background.render(frame.body(last.messages))
    return rendered is not None and _covers_moved(served, served.splice(rendered, 2 * len(rendered)))


def _covers_moved(served: ServedContext, prompt: Sequence[int]) -> bool:
    moved = () if served.last is None else served.last.moved
    return served.num_kept(prompt) >= max((end for _, end in moved), default=0)
