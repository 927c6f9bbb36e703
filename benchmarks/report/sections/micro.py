"""Sections about single operations: the move itself, a scheduler step, a search, rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import share
from acmserve.bench.micro.rotation_error import ROTATIONS
from acmserve.bench.micro.rows import limited_rows, slow_rows
from acmserve.bench.micro.step_instructions import STEPS, share_told
from acmserve.bench.overhead.table import PARTS, STEP_KINDS, TOTALS, percent
from acmserve.bench.overhead.totals import SHARES
from acmserve.bench.report.page_section import PageSection, PageTable, Reports, page_table

_MOVES = ("move", "odd")
_GROUP = "Single operations: the move, a scheduler step, search, eviction, identity, rounding"


def _kernel(reports: Reports) -> Iterator[list[str]]:
    for row in reports["kernel"]["rows"]:
        if row["what"] in _MOVES:
            times = [f"{row[name]:.1f} ms" for name in ("move_ms", "memcpy_ms")]
            yield [row["kv"], row["what"], str(row["num_threads"]), *times, share(row["ratio"])]


def _search(reports: Reports) -> Iterator[list[str]]:
    rows = reports["search"]["rows"]
    for query in dict.fromkeys(row["query"] for row in rows):
        some = [row for row in rows if row["query"] == query]
        times = [row["median_ms"] for row in some]
        yield [query, f"{min(times):.1f} to {max(times):.1f} ms", _limit(some)]


def _pass(reports: Reports) -> Iterator[list[str]]:
    for row in reports["budget-pass"]["rows"]:
        yield [row["name"], f"{row['median_ms']:.1f} ms", f"{row['worst_ms']:.1f} ms", _limit([row])]


def _identity(reports: Reports) -> Iterator[list[str]]:
    for row in reports["identity"]["rows"]:
        yield [row["name"], f"{row['median_ms']:.2f} ms", f"{row['worst_ms']:.2f} ms", _limit([row])]


def _limit(rows: Sequence[Report]) -> str:
    """What the medians of a line may be at most, and whether they are. "" where nothing is said."""
    limited, slow = limited_rows(rows), slow_rows(rows)
    if not limited:
        return ""
    by = f", by {len(slow)} of {len(limited)}" if len(limited) > 1 else ""
    return f"{limited[0]['limit_ms']:g} ms: {f'**missed**{by}' if slow else 'met'}"


def _held(reports: Reports, name: str) -> str:
    """How many medians are above their limits."""
    rows = reports[name]["rows"]
    limited, slow = limited_rows(rows), slow_rows(rows)
    missing = f"{len(slow)} miss{'es' * (len(slow) == 1)} it" if slow else "none misses it"
    return f"Of {len(limited)} medians with a limit {missing}."


def missed_by_searches(reports: Reports) -> str:
    """How many searches take longer than their limit. "" where none does."""
    rows = reports["search"]["rows"]
    if not (slow := slow_rows(rows)):
        return ""
    worst = max(row["median_ms"] for row in slow)
    return f"Of {len(rows)} searches {len(slow)} take more than {slow[0]['limit_ms']:g} ms, up to {worst:.1f} ms."


def missed_by_passes(reports: Reports) -> str:
    """Each part of an eviction pass that takes longer than its limit. "" where none does."""
    told = (
        f"{row['name'][:1].upper()}{row['name'][1:]}: {row['median_ms']:.1f} ms, {row['limit_ms']:g} at most."
        for row in slow_rows(reports["budget-pass"]["rows"])
    )
    return " ".join(told)


def slowest_move(reports: Reports) -> float:
    """Beside memcpy of the same bytes."""
    return min(float(row["ratio"]) for row in reports["kernel"]["rows"] if row["what"] in _MOVES)


def _speeds(reports: Reports) -> str:
    shares = [row["ratio"] for row in reports["kernel"]["rows"] if row["what"] in _MOVES]
    return f"At {share(slowest_move(reports))} to {share(max(shares))} of the speed of memcpy, by type and threads."


def _counted(reports: Reports) -> str:
    found = reports["step-instructions"]["share_beside_stock"]
    own = found["acmserve"] - found["connector"]
    told = share_told(reports["step-instructions"], "acmserve")
    return f"{told}. acmserve's own code takes {100 * own:.1f} % of a step of stock."


def _whole_request(reports: Reports) -> str:
    bars = reports["request-instructions"]["bars"]
    limit = f"{100 * bars[0]['bar']:.0f} %"
    told = [f"{percent(bar['value'])} {SHARES[bar['what']]}: {'met' if bar['is_met'] else 'missed'}." for bar in bars]
    return f"The bar is {limit}. At worst {told[0]} {' '.join(told[1:])}"


def _lengths(reports: Reports) -> str:
    found = reports["request-instructions"]
    return f"A request has {found['prompt_tokens']:,} prompt tokens and {found['answer_tokens']} of its answer."


def _slowest(reports: Reports) -> str:
    times = [row["median_ms"] for row in reports["search"]["rows"]]
    told = f"The slowest query took {max(times):.1f} ms, and the fastest {min(times):.1f} ms."
    return f"{told} {_held(reports, 'search')}"


def _whole_pass(reports: Reports) -> str:
    rows = {row["name"]: row["median_ms"] for row in reports["budget-pass"]["rows"]}
    worst = max(row["worst_ms"] for row in reports["budget-pass"]["rows"])
    told = f"No part takes more than {worst:.0f} ms, of {len(rows)} parts that were timed."
    return f"{told} {_held(reports, 'budget-pass')}"


def _found(reports: Reports) -> str:
    worst = max(row["worst_ms"] for row in reports["identity"]["rows"])
    return f"At most {worst:.2f} ms for a history of 32,000 tokens. {_held(reports, 'identity')}"


MICRO = (
    PageSection(
        "The move",
        "How fast are 3,000 tokens of KV moved, beside memcpy of the same bytes on the same threads?",
        "acmserve bench micro kernel",
        "The moved KV equals the reference.",
        ("kernel",),
        (PageTable(("KV cache", "offsets", "threads", "move", "memcpy", "speed of memcpy"), _kernel),),
        (
            "`move` goes from offset 100 to 20 of a block, `odd` from 31 to 0.",
            "Memcpy itself was slower beside bfloat16 than beside float16. So the shares of two types do not compare.",
        ),
        answer=_speeds,
        group=_GROUP,
    ),
    PageSection(
        "A scheduler step, in instructions",
        "What does a step of 64 decoding requests without session pay for the plugin?",
        "acmserve bench step-instructions",
        "Every run schedules the same tokens. Two counts of one engine and seed are less than a thousandth apart.",
        ("step-instructions",),
        (page_table(STEPS, "step-instructions"),),
        ("Valgrind counts the instructions of Python and of what it calls. A model's own are in none of them.",),
        answer=_counted,
        group=_GROUP,
    ),
    PageSection(
        "A whole request, in instructions",
        "What does a request without session pay for the plugin, from HTTP to the worker?",
        "acmserve bench request-instructions",
        "Every run answers and schedules what stock does. Two counts of one case agree.",
        ("request-instructions",),
        tuple(page_table(one, "request-instructions") for one in (PARTS, STEP_KINDS, TOTALS)),
        (
            _lengths,
            "The plugin's own instructions are those of HTTP, scheduler and worker together.",
            "They are divided by those of stock, first without the worker, then with a tiny model, then with SmolLM2.",
            "The worker with hardly any arithmetic has as many layers as SmolLM2, each of them tiny.",
            "Sockets, the messages between server and engine, and other threads are in none of them.",
        ),
        is_optional=True,
        answer=_whole_request,
        group=_GROUP,
    ),
    PageSection(
        "Search",
        "What does one search of the context take over a million characters?",
        "acmserve bench micro search",
        "Matches and their positions are those of a regular expression over the same texts.",
        ("search",),
        (PageTable(("query", "median, by script and number of messages", "limit of a median"), _search),),
        answer=_slowest,
        group=_GROUP,
    ),
    PageSection(
        "The eviction pass",
        "What does a budget cost a step beside the model, in a conversation of 10,000 episodes?",
        "acmserve bench micro budget-pass",
        "The running count equals one built anew. The plan meets its target, and comes twice the same.",
        ("budget-pass",),
        (PageTable(("part", "median", "worst", "limit of the median"), _pass),),
        answer=_whole_pass,
        group=_GROUP,
    ),
    PageSection(
        "A session that is found by content",
        "What does a request without an id cost the server until its session is found?",
        "acmserve bench micro identity",
        "Every request finds the session that it goes on with. Only new calls are written in one spelling.",
        ("identity",),
        (PageTable(("history", "median", "worst", "limit of the median"), _identity),),
        ("Measured is processor time.",),
        answer=_found,
        group=_GROUP,
    ),
    PageSection(
        "Keys that are rotated again and again",
        "How large is the error of a key after so many moves, each reading the copy before it?",
        "python -m benchmarks.micro.rotation_error",
        "None. The table is the result.",
        ("hops",),
        (page_table(ROTATIONS, "hops"),),
        (
            "A key of 16 bits or more is moved eight times at most, one of e4m3 twice, one of e5m2 once.",
            "Then its token is computed again.",
        ),
        answer="The type decides. Moves are counted, and a key is computed again in time.",
        group=_GROUP,
    ),
)
