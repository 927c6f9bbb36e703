"""Sections about the turn after an edit: time to the first token, beside an append and beside stock vLLM."""

from __future__ import annotations

from functools import partial

from acmserve.bench.edit.llama import WAYS_TABLE
from acmserve.bench.edit.receipts import tokens_in_words
from acmserve.bench.edit.table import (
    KINDS_TABLE,
    LLAMA_TABLE,
    TURNS,
    TURNS_AT_DEFAULTS,
    at_defaults,
    cell_of,
    sooner_interval,
    times_sooner,
)
from acmserve.bench.edit.times import APPEND, AUTO, DEFAULTS, EXACT, REUSE, STOCK
from acmserve.bench.harness.llama_cpp import BEST, NO_STORE, OWN_DEFAULTS
from acmserve.bench.harness.machine import cpu_of
from acmserve.bench.harness.markdown_text import MET, MISSED, interval, ratio
from acmserve.bench.precompute.foreground import MODES_TABLE
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.report.sections.paired import PAIRED_GROUP

AUTO_MOST_APPENDS, AUTO_LEAST_SOONER = 1.5, 12
RESULT, WITH_AMX = "edit-cpu", "edit-cpu-amx"
KINDS_OF_PROCESSORS = {RESULT: "without AMX", WITH_AMX: "with AMX"}
"""Results of one benchmark, by the kind of processor that each is of: `with_amx` of their runs."""

_KINDS_GROUP = "Every kind of edit, and llama.cpp with its store of prompts"


def _wave(reports: Reports) -> str:
    wave = reports["precompute-foreground"]["wave_ratio"]
    return f"A wave of turns takes {ratio(wave['mean'])} times as long{interval(wave['interval'])}."


def _answered(reports: Reports, name: str) -> str:
    told = cell_of(reports[name], "fold")["answers"]
    exact, reuse = told["exact"], told["reuse"]
    apart = reuse["largest_difference"]
    by = "further apart than what is listed" if apart is None else f"{apart:.1f} nats apart"
    return (
        f"Of {exact['num_tokens']} tokens `exact` gave {exact['num_same']} as stock did, with log-probabilities "
        f"{exact['largest_difference']:.0e} nats apart at most. Under `reuse` {reuse['num_same']} are the same, and "
        f"log-probabilities are {by}, so the gate sees moves."
    )


def _answered_at_defaults(reports: Reports, name: str) -> str:
    """Files older than the comparison lack it."""
    found = cell_of(reports[name], "fold")["answers"].get(at_defaults(EXACT))
    seen = "Answers were compared in float32 alone."
    if found is not None:
        same = f"{found['num_same']} of {found['num_tokens']} tokens"
        seen = f"At vLLM's defaults `exact` gave {same} as stock did. No gate judges that."
    return f"{seen} In bfloat16 a prompt that is computed in other pieces may give another token."


def _sooner(reports: Reports, name: str) -> str:
    report, reuse = reports[name], at_defaults(REUSE)
    found = f"{times_sooner(report, reuse, DEFAULTS):.1f}{interval(sooner_interval(report, reuse, DEFAULTS), digits=1)}"
    return (
        f"`reuse` starts {found} times sooner than stock vLLM, both at vLLM's own defaults. In float32 and eager it is "
        f"{times_sooner(report, REUSE, STOCK):.1f} times. `exact` is about as slow as stock."
    )


def _repeated(reports: Reports) -> str:
    """Of how many repetitions the times are, which a command at its defaults now has five of."""
    return f"Times are medians of {reports['edit-kinds']['cells'][0]['num_repetitions']} repetitions."


def _llama_flags(reports: Reports) -> str:
    """Files of older runs say no flags. They had none but those of `NO_STORE`."""
    flags = reports["edit-kinds"].get("llama_cpp", {}).get(BEST.name)
    if flags:
        return f"llama.cpp ran with `{flags}` on the 4-bit file, and at its own defaults."
    return (
        f"llama.cpp (build 11434) ran with `{' '.join(NO_STORE.flags)}` on the 4-bit file. `--cache-ram 0` switches "
        "off its store of prompts in host memory. By its description the store saves a context that another one "
        "replaces, and loads it again. A restore would then evaluate its new tokens alone. `acmserve bench llama` "
        "counts that."
    )


def _restored_by_llama(reports: Reports) -> str:
    ways = {row["kind"]: row["ways"] for row in reports["llama"]["rows"]}
    fold, restore = (
        [ways[kind][way.name]["computed_tokens"] for way in (OWN_DEFAULTS, BEST, NO_STORE)]
        for kind in ("fold", "restore")
    )
    return (
        f"A restore evaluates {restore[0]:,} tokens at its defaults, {restore[1]:,} at its best, and {restore[2]:,} "
        f"without the store. A fold evaluates {fold[0]:,}, {fold[1]:,} and {fold[2]:,}."
    )


def _llama_version(reports: Reports) -> str:
    report = reports["llama"]
    return f"llama.cpp says {report['version']}. At its best it ran with `{report['flags'][BEST.name]}`."


def auto_after_fold(reports: Reports, name: str) -> str:
    """What `auto` reaches of its bars, which are none of the five numbers, and what it computes."""
    report, auto = reports[name], at_defaults(AUTO)
    appends = 1 / times_sooner(report, auto, at_defaults(APPEND))
    sooner = times_sooner(report, auto, DEFAULTS)
    met = MET if appends <= AUTO_MOST_APPENDS and sooner >= AUTO_LEAST_SOONER else MISSED
    computed = tokens_in_words(cell_of(report, "fold"), auto)
    return (
        f"`auto` takes {appends:.1f} appends after a fold{_processor(name)} and starts {sooner:.1f} times sooner than "
        f"stock. Its bars of {AUTO_MOST_APPENDS} and {AUTO_LEAST_SOONER} are {met}. "
        f"{computed[0].upper()}{computed[1:]}: phrases of the folded text, and what is behind them."
    )


def _processor(name: str) -> str:
    """Behind a sentence about the kind that was recorded second, for the first one has the other results, too."""
    return f" on a processor {KINDS_OF_PROCESSORS[name]}" if name == WITH_AMX else ""


def _measured_on(reports: Reports, name: str) -> str:
    machine = reports[name]["machine"]
    return f"Measured on {cpu_of(machine)}, {machine['cores']} cores."


def _fold_section(name: str) -> PageSection:
    """Of one kind of processor."""
    return PageSection(
        f"The turn after a fold{_processor(name)}",
        "How long does the first token take after a fold of 2,000 tokens, with 3,000 behind it?",
        "acmserve bench edit",
        "Under `exact` 32 tokens and log-probabilities are the stock engine's. Moved KV fails that. Receipts add up.",
        (name,),
        (page_table(TURNS_AT_DEFAULTS, name), page_table(TURNS, name)),
        (
            partial(_measured_on, name=name),
            partial(_answered, name=name),
            partial(_answered_at_defaults, name=name),
            "The prefix has 500 tokens. `exact` also keeps the tokens behind it that happen to be equal.",
        ),
        answer=partial(_sooner, name=name),
        is_optional=name != RESULT,
        group="The same on a processor with AMX" if name == WITH_AMX else "",
    )


EDITS = (
    *map(_fold_section, KINDS_OF_PROCESSORS),
    PageSection(
        "Every kind of edit",
        "Which kinds of edit gain on 5,500 tokens, and how does llama.cpp's server treat them?",
        "acmserve bench edit --kinds all",
        "As above, for each kind.",
        ("edit-kinds",),
        (page_table(KINDS_TABLE, "edit-kinds"), page_table(LLAMA_TABLE, "edit-kinds")),
        (
            _repeated,
            _llama_flags,
            "Of llama.cpp only the evaluated tokens compare. It was timed over HTTP, with another format of weights.",
            "5,500 tokens leave a block of 128 nearly full, close to the worst case of stock's append and restore.",
        ),
        answer="All that change the middle, under `reuse`. llama.cpp is fast where an edit only deletes.",
        group=_KINDS_GROUP,
    ),
    PageSection(
        "llama.cpp and its store",
        "Which tokens does llama.cpp's server evaluate for these edits, with its store of prompts in host memory?",
        "acmserve bench llama",
        "Kept and evaluated tokens add up to the prompt. A restore evaluates less with the store than without.",
        ("llama",),
        (page_table(WAYS_TABLE, "llama"),),
        (
            _llama_version,
            "`--cache-ram` gives the store room, 8 GiB by default. It saves a context before another one replaces it.",
            "A server at its defaults shifts no chunks: `--cache-reuse` is 0 there.",
        ),
        is_optional=True,
        answer=_restored_by_llama,
        group=_KINDS_GROUP,
    ),
)
FOREGROUND = (
    PageSection(
        "Precompute beside other sessions",
        "What does precompute cost four sessions that leave no pause?",
        "acmserve bench precompute --foreground 5 --model tiny",
        "No prompt above the budget. The model said what the script has.",
        ("precompute-foreground",),
        (page_table(MODES_TABLE, "precompute-foreground"),),
        ("A round has 64 turns, so its p99 is nearly its slowest turn.",),
        answer=_wave,
        group=PAIRED_GROUP,
    ),
)
