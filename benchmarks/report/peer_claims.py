"""The section of the page about peers that were not run here: what their authors report, and why nothing was measured.

Nothing in it is a result of ours, so it has no file and no age. Each row names its source.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.bench.harness.markdown_text import strong, table

_HEADS = ("peer", "what it does", "its own figures", "why it was not run")
_NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class PeerClaim:
    """What a peer says of itself, in Markdown. `claim` is beside a full prefill where nothing else is said."""

    peer: str
    does: str
    claim: str
    why: str = _NOT_TRIED


CLAIMS = (
    PeerClaim(
        "[CacheBlend](https://arxiv.org/abs/2405.16444) of LMCache",
        "joins texts that were computed alone, and computes a few tokens anew",
        "first token 2.2 to 3.3 times sooner, throughput 2.8 to 5 times",
        "its attention [needs a GPU](https://github.com/LMCache/LMCache/issues/2594)",
    ),
    PeerClaim(
        "[EPIC](https://arxiv.org/abs/2410.15332)",
        "the same, and computes the beginnings of texts anew",
        "first token up to 8 times sooner, throughput up to 7 times",
    ),
    PeerClaim(
        "[MiniPIC](https://arxiv.org/abs/2606.13126)",
        "keeps keys without positions in vLLM's cache, and turns them in its attention",
        "first token of cached texts up to two orders of magnitude sooner, 5.7 % overhead at worst",
    ),
    PeerClaim(
        "[CacheSlide](https://www.usenix.org/conference/fast26/presentation/liu-yang)",
        "keeps parts of an agent's prompt that shift, with learned weights",
        "latency 3.11 to 4.3 times lower, throughput 3.5 to 5.8 times, beside other caches",
    ),
    PeerClaim(
        "[Leyline](https://arxiv.org/abs/2606.01065)",
        "removes or replaces a span, and turns the keys behind it",
        "up to 241 ms less, and 11.2 points more cache hits",
    ),
    PeerClaim(
        "[SGLang](https://docs.sglang.io/platforms/cpu_server.html)",
        "keeps prefixes in a tree, as vLLM does in blocks",
        "none for edits",
        "its CPU engine is made for matrix units (AMX), and was not tried on a machine with them",
    ),
)


def claims_section() -> list[str]:
    """Its lines of Markdown."""
    return [
        "### Peers that were not run",
        "",
        strong("What do others report of KV that is used again at another place?"),
        "From twice to a hundred times sooner than a full prefill. Their machines, models and loads are others.",
        "",
        '<details markdown="1">',
        "<summary>Their own figures</summary>",
        "",
        table(_HEADS, [(one.peer, one.does, one.claim, one.why) for one in CLAIMS]),
        "",
        "These are the authors' figures, and nobody checked them here. llama.cpp was run, see above.",
        "",
        "</details>",
        "",
    ]
