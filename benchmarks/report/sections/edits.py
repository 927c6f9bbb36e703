"""Sections about the turn after an edit: time to the first token, beside an append and beside stock vLLM."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from acmserve.bench.report.markdown_text import count, interval, milliseconds, ratio, seconds, share
from acmserve.bench.report.page_section import PageSection, PageTable, Report, Reports

_TURNS = {
    "append": "plain append, 50 new tokens",
    "fold, reuse": "fold, `reuse`",
    "append, 2 markers": "plain append, 70 new tokens",
    "two holes, reuse": "two folds, `reuse`",
    "fold, exact": "fold, `exact` (default)",
    "fold, stock engine": "fold, stock vLLM with prefix caching",
}
_KINDS = ("append", "reuse", "repair", "exact", "stock", "llamacpp")
_RUNS = {
    "exact, predict": "`exact`, precompute `predict`",
    "exact": "`exact`",
    "reuse": "`reuse`",
    "stock": "stock vLLM",
}
_POLICIES = {"precompute": "`cwl`", "precompute-clear": "`clear_tool_uses`"}


def _turns(reports: Reports) -> Iterator[list[str]]:
    report = reports["edit-cpu"]
    for name, title in _TURNS.items():
        times, receipt = report["seconds_to_first_token"][name], report["receipts"].get(name, {})
        spread = f"{1e3 * min(times):,.0f} to {1e3 * max(times):,.0f} ms"
        tokens = [count(receipt.get(f"{part}_tokens")) for part in ("kept", "moved", "computed")]
        yield [title, milliseconds(report["medians"][name]), spread, *tokens]


def _kinds(reports: Reports) -> Iterator[list[str]]:
    for cell in reports["edit-kinds"]["cells"]:
        evaluated = cell["receipts"].get("llamacpp", {}).get("computed_tokens")
        yield [cell["kind"], *(milliseconds(cell["medians"].get(name)) for name in _KINDS), count(evaluated)]


def _evictions(reports: Reports) -> Iterator[list[str]]:
    for name, policy in _POLICIES.items():
        for run in reports[name]["runs"]:
            over, new = run["eviction_over_append"], run["eviction_new_tokens"]
            cells = [str(run["num_evictions"]), count(new["median"]), ratio(over["median"]), ratio(over["p90"])]
            yield [policy, _RUNS[run["name"]], *cells, seconds(total_seconds(reports[name], run["name"]))]


def _ordinary(reports: Reports) -> Iterator[list[str]]:
    for name, policy in _POLICIES.items():
        turns = reports[name]["ordinary_turns"]
        cells = [f"{ratio(turns['median_ratio'])}{interval(turns['interval'])}", share(turns["slower_share"])]
        yield [policy, str(turns["num_turns"]), *cells, milliseconds(turns["mean_extra_seconds"])]


def _ready(reports: Reports) -> str:
    first, second = (reports[name]["runs"][0] for name in _POLICIES)
    ready = " and ".join(f"{run['num_ready']} of {run['num_evictions']}" for run in (first, second))
    return f"Under `predict` {ready} evictions were ready when they came."


def _used(reports: Reports) -> str:
    used = " and ".join(share(reports[name]["runs"][0]["precomputed_used_share"]) for name in _POLICIES)
    return f"Of what was computed before it was asked for, {used} was used."


def _saved(reports: Reports) -> str:
    totals = [[total_seconds(reports[name], run) for run in ("exact, predict", "exact")] for name in _POLICIES]
    (first, first_exact), (second, second_exact) = ([seconds(total) for total in pair] for pair in totals)
    return (
        f"All waiting added up is {first} with precompute and {first_exact} without under `cwl`. "
        f"Under `clear_tool_uses` it is {second} and {second_exact}."
    )


def _different(reports: Reports) -> str:
    agreement = reports["precompute"]["agreement_with_stock"]
    return f"Of {agreement['num_tokens']:,} tokens, {agreement['num_different']} would have been another than stock's."


def _modes(reports: Reports) -> Iterator[list[str]]:
    for name, mode in reports["precompute-foreground"]["modes"].items():
        rounds = mode["p99_seconds_by_round"]
        spread = f"{min(rounds):.2f} to {max(rounds):.2f} s"
        yield [f"`{name}`", ratio(mode["turns_per_second"]), spread, f"{mode['cpu_seconds_per_turn']:.3f} s"]


def _wave(reports: Reports) -> str:
    wave = reports["precompute-foreground"]["wave_ratio"]
    return f"A wave of turns takes {ratio(wave['mean'])} times as long{interval(wave['interval'])}."


def _answers(reports: Reports) -> Iterator[list[str]]:
    for way in reports["precompute-answers"]["ways"]:
        right = f"{share(way['accuracy'])}{interval(way['accuracy_interval'])}"
        yield [way["name"].replace("ahead", "precomputed"), right, milliseconds(way["median_seconds"])]


def times_sooner(report: Report) -> float:
    """How many times sooner than on stock vLLM the first token comes after a fold under `reuse`."""
    medians = report["medians"]
    return float(medians["fold, stock engine"] / medians["fold, reuse"])


def median_seconds(report: Report, kind: str, series: str) -> float:
    """Median seconds of one kind of edit in one series of `bench edit --kinds`."""
    (cell,) = (cell for cell in report["cells"] if cell["kind"] == kind)
    return statistics.median(cell["seconds_to_first_token"][series])


def total_seconds(report: Report, name: str) -> float:
    """All times to first token of one run of `bench precompute`, added up."""
    (run,) = (run for run in report["runs"] if run["name"] == name)
    return float(sum(run["turns"]["seconds"]))


EDITS = (
    PageSection(
        "The turn after a fold",
        "How long does the first token take on the turn after a fold of 2,000 tokens, with 3,000 tokens behind it?",
        "acmserve bench edit",
        "Under `exact` the first token is the stock engine's. Receipts add up. The text behind the fold was moved.",
        ("edit-cpu",),
        (PageTable(("turn", "median", "range", "kept", "moved", "computed"), _turns),),
        (
            lambda reports: (
                f"`reuse` starts {times_sooner(reports['edit-cpu']):.0f} times sooner than stock vLLM. "
                "`exact` is about as slow as stock."
            ),
            lambda reports: (
                f"Under `reuse` the first token was stock's in {reports['edit-cpu']['reuse_first_token_agrees']} of "
                f"{len(reports['edit-cpu']['seconds_to_first_token']['fold, exact'])} repetitions. So this gate alone "
                "proves little about `exact`. The fidelity benchmark has the stronger one."
            ),
            "The prefix has 500 tokens. `exact` also keeps the tokens behind it that happen to be equal.",
        ),
    ),
    PageSection(
        "Every kind of edit",
        "Which kinds of edit gain, and how does llama.cpp's server treat them?",
        "acmserve bench edit --kinds append fold deletion two-holes restore insertion --repetitions 2",
        "As above, for each kind.",
        ("edit-kinds",),
        (
            PageTable(
                (
                    "5,500 tokens",
                    "append of as many",
                    "`reuse`",
                    "`repair`",
                    "`exact`",
                    "stock vLLM",
                    "llama.cpp",
                    "tokens it evaluates",
                ),
                _kinds,
            ),
        ),
        (
            "llama.cpp (build 11434) ran with `--cache-reuse 256 --cache-ram 0 --no-repack -fa off` on the 4-bit file.",
            "`--cache-ram 0` switches its cache in host memory off. By default it would load a restore from there.",
            "Of llama.cpp only the evaluated tokens compare. It was timed over HTTP, with another format of weights.",
            "5,500 tokens leave a block of 128 nearly full, close to the worst case of stock's append and restore.",
        ),
        "edit-kinds.png",
    ),
    PageSection(
        "Precompute",
        "What does the turn after an eviction wait for, when the engine may compute while tools run?",
        "acmserve bench precompute --tasks 20 [--policy clear_tool_uses]",
        "No prompt above the budget. The tokens sampled under `predict` are those of stock vLLM on the same prompts.",
        ("precompute", "precompute-clear", "precompute-foreground", "precompute-answers"),
        (
            PageTable(
                (
                    "policy",
                    "run",
                    "evictions",
                    "new tokens at an eviction",
                    "first token over an append, median",
                    "p90",
                    "all first tokens",
                ),
                _evictions,
                "212 turns of one conversation, with tools of 0.5 to 5 seconds between them. "
                "The ratio is over a plain append of the same run with as many new tokens.",
            ),
            PageTable(
                ("policy", "ordinary turns", "`predict` over `exact`, median", "slower", "mean difference"),
                _ordinary,
                "What precompute costs the turns between evictions: the same turns under `predict` and under `exact`.",
            ),
            PageTable(
                ("mode", "turns a second", "p99 of the first token, by round", "CPU time a turn"),
                _modes,
                "Four sessions in step that leave no pause (`acmserve bench precompute --foreground 5 --model tiny`). "
                "Nothing is precomputed there.",
            ),
            PageTable(
                ("way", "right", "median first token"),
                _answers,
                "A fold of superseded lines, asked at once (`acmserve bench precompute --answers 60`). "
                "The precomputed context was waited for.",
            ),
        ),
        (
            _ready,
            _used,
            _different,
            _saved,
            "Each run has an append line of its own, so a ratio below 1 says nothing about another run.",
            "Under `cwl` `predict` and stock evict at other turns than `exact` and `reuse`.",
            _wave,
            "A round has 64 turns, so its p99 is nearly its slowest turn.",
        ),
        "precompute.png",
    ),
)
