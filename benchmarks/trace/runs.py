"""The runs of `bench trace` that are recorded, by the stems of their files. Data."""

from __future__ import annotations

from acmserve.bench.agent.agentperf import AGENTPERF
from acmserve.bench.harness.benchmark import BenchmarkRun
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.trace.prompts import BUDGET_POLICIES, POLICIES

TINY = "tiny"
FULL_POOL_TOKENS = 28_000
"""Little more than four sessions show at a budget of 6,000: what they no longer show has to leave the pool."""
CLEARED_TOKENS = 3_500
"""A budget that clears twice as often as 6,000: the least one, in steps of 500, that has room for every step.

Behind the default opening 12 turns are the shortest window of two properties. Each session clears at least twice, and
of three edits two are not the first of their session. A first one moves nothing that was moved before.
"""
_RESUME = ("--resume",)
_SERVERS, _WITH_AUTO = "exact,reuse,stock", "exact,auto,reuse,stock"


def _counted(name: str, *arguments: str, servers: str = _SERVERS) -> BenchmarkRun:
    """A run of the tiny model, which counts tokens."""
    words = ("trace", "--model", TINY, *arguments, "--against", servers, "--answer-tokens", "4", "--repetitions", "1")
    return BenchmarkRun(name, words, can_plot=False, measures=SERVER, is_timed=False)


def _loaded(name: str, *arguments: str, policy: str = "recency@1", servers: str = _SERVERS) -> BenchmarkRun:
    """A run of several sessions, all servers in float32 and eager, where `exact` has to sample stock's tokens.

    Answers are as long as the recorded ones, so that a turn has its decode. They have 49 to 72 tokens on average.

    About a third of the turns edit, of `trace-4-clear` a quarter, and of `trace-open` 28 %. A slow CPU computes 190
    tokens of prompts a second, and decodes at 20 steps a second. At that rate five repetitions take at most 86 minutes
    for `trace-4`, 71 for `trace-4-clear` and 98 for `trace-16`. That is with every server as slow as `exact`.
    `trace-open` takes about 143, most of which are arrivals.

    Decision: not at vLLM's own defaults. A CPU without matrix units reads 50 to 100 tokens a second in bfloat16, so
    stock would be the weaker baseline there.
    """
    words = ("trace", *arguments, "--policies", policy, "--against", servers, "--answer-tokens", "0")
    return BenchmarkRun(name, words, can_plot=False, measures=SERVER, resume_flags=_RESUME)


RUNS = (
    BenchmarkRun(
        "trace",
        (
            *("trace", "--policies", "cwl,recency@1", "--turns", "12"),
            *("--against", "exact,reuse,stock,llamacpp,llamacpp@defaults"),
        ),
        quick=("trace", "--quick"),
        can_plot=False,
        measures=SERVER,
        resume_flags=_RESUME,
    ),
    _loaded("trace-4", "--concurrency", "4", "--turns", "4", servers=_WITH_AUTO),
    _loaded(
        *("trace-4-clear", "--concurrency", "4", "--budget", str(CLEARED_TOKENS), "--turns", "12"),
        policy="clear_tool_uses",
        servers=_WITH_AUTO,
    ),
    _loaded("trace-16", "--concurrency", "16", "--budget", "3000", "--skip", "4", "--turns", "3"),
    _loaded("trace-open", "--concurrency", "6", "--arrivals", "1", "--turns", "6"),
    _counted(
        *("trace-real", "--traces", AGENTPERF, "--policies", ",".join(POLICIES[1:]), "--turns", "0"),
        servers=_WITH_AUTO,
    ),
    _counted(
        *("trace-pool", "--concurrency", "4", "--pool-tokens", str(FULL_POOL_TOKENS)),
        *("--policies", ",".join(BUDGET_POLICIES)),
        servers=_WITH_AUTO,
    ),
    _counted("trace-auto", "--concurrency", "4", "--policies", "none,clear_tool_uses,recency@1", servers=_WITH_AUTO),
)
