"""The section about an 8B model on a GPU. It stands on the page once `make gpu` ran on a card.

Its stages may have fewer repetitions than times want: a card is often lent for minutes. Then the section says how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.gpu.stage import DECODE, FOLD, HOLES, KERNEL, OVERHEAD, SESSIONS, holds_bar
from acmserve.bench.gpu.table import DECODE_TABLE, FOLD_TABLE, HOLES_TABLE, KERNEL_TABLE, OVERHEAD_TABLE, SESSIONS_TABLE
from acmserve.bench.harness.markdown_text import count, interval, ratio, share
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.provenance.repetitions import few_told
from acmserve.bench.report.page_section import PageSection, PageTable, Reports

RESULT = "gpu"
_LONG = 4096
_SHOWN_TOKENS = (_LONG, 32_768, 131_072)


def _of_stage(kind: str, table: ResultTable, caption: str) -> PageTable:
    def rows(reports: Reports) -> Iterator[list[str]]:
        stage = reports[RESULT]["stages"].get(kind)
        if stage is not None:
            yield from (list(row) for row in table.rows(stage))

    return PageTable(table.heads, rows, caption)


def _shown_moves(stage: Report) -> Iterable[Sequence[str]]:
    shown = [row for row in stage["rows"] if row["num_tokens"] in _SHOWN_TOKENS]
    return KERNEL_TABLE.rows({"rows": shown})


def fold_appends(reports: Reports) -> list[float]:
    """Appends that a fold takes with `reuse`, by length."""
    return [cell["appends"] for cell in _folds(reports)]


def _folds(reports: Reports) -> list[Report]:
    return [cell for cell in reports[RESULT]["stages"][FOLD]["cells"] if cell["num_holes"] == 1]


def slowest_of(reports: Reports, kv_type: str, least_tokens: int = _LONG, *, is_latent: bool = False) -> float:
    """Bandwidth of a move beside a copy's at so many tokens and more, of the 8B models or of latent attention."""
    rows = reports[RESULT]["stages"][KERNEL]["rows"]
    return min(
        float(row["ratio"])
        for row in rows
        if row["kv_type"] == kv_type and row["num_tokens"] >= least_tokens and row["model"].endswith("8B") != is_latent
    )


def overhead_missed(reports: Reports) -> str:
    """What requests without a session pay, by the interval's worse end. "" where that is met, or was not run."""
    stage = reports[RESULT]["stages"].get(OVERHEAD)
    if stage is None or holds_bar(stage["over_stock"], stage["bar"]):
        return ""
    found = f"{ratio(stage['over_stock']['ratio'], 4)}{interval(stage['over_stock']['interval'], digits=4)}"
    limit = f"{stage['bar']} at most by the interval's end"
    return f"Requests without a session take {found} times as long on a GPU{of_few(reports, OVERHEAD)}, {limit}."


def of_few(reports: Reports, kind: str) -> str:
    """` in 3 repetitions`, where a stage has so few. A stage of a ratio has the seconds of each, and no number."""
    stage = reports[RESULT]["stages"][kind]
    few = few_told(stage | {"repetitions": len(stage["seconds"]["stock"])} if "seconds" in stage else stage)
    return f" in {few}" if few else ""


def _answer(reports: Reports) -> str:
    first, *_, last = _folds(reports)
    ratios = [ratio(cell["beside_stock"]["reuse"]["ratio"], 1) for cell in (first, last)]
    most = {row["server"]: row for row in reports[RESULT]["stages"][SESSIONS]["rows"]}
    rates = [ratio(most[name]["rate_beside_stock"]["ratio"]) for name in ("reuse", "exact")]
    lengths = [count(cell["context_tokens"]) for cell in (first, last)]
    return (
        f"{_reading(reports)}With `reuse` the first token comes {ratios[0]} times sooner than stock's at {lengths[0]} "
        f"tokens, and {ratios[1]} times at {lengths[1]}. `exact` takes as long as stock. "
        f"With {most['reuse']['num_sessions']} sessions side by side, `reuse` answers {rates[0]} times as many turns "
        f"a second, and `exact` {rates[1]} times."
    )


def _card(reports: Reports) -> str:
    machine = reports[RESULT]["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("vllm", "torch"))
    return f"One {machine['gpu']}, {versions}. vLLM's defaults: compiled, CUDA graphs, FlashAttention 3."


def _reading(reports: Reports) -> str:
    num = reports[RESULT]["stages"][FOLD]["repetitions"]
    return "" if num >= LEAST_REPETITIONS else f"A first reading, of {num} repetitions where times want more. "


def _answers(reports: Reports) -> str:
    stage = reports[RESULT]["stages"][FOLD]
    same = sum(cell["answers"]["exact"]["num_same"] for cell in stage["cells"])
    told = sum(cell["answers"]["exact"]["num_tokens"] for cell in stage["cells"])
    beside = reports[RESULT]["stages"][SESSIONS]
    other, compared = (beside[f"answers_{name}"] for name in ("other_than_stock", "compared_with_stock"))
    return (
        f"One at a time, {same} of {told} tokens of `exact` are stock's. "
        f"Side by side, {other} of {compared} answers are other ones. "
        f"In bfloat16 the batch in which a token is computed changes its last digits. {_itself(beside)}"
    )


def _itself(stage: Report) -> str:
    """The run of 2026-11-27 did not hold stock against itself side by side."""
    found = stage.get("stock_beside_itself")
    if found is None:
        return "Stock was not held against itself side by side, so that cause was not shown."
    return f"Of {found['compared']} answers of stock, asked twice, {found['other']} are other ones."


def _passes(reports: Reports) -> str:
    """The run of 2026-11-27 was before the stage of holes, and before moves of 2,048 blocks."""
    if HOLES in reports[RESULT]["stages"]:
        return "A move of more than 32,768 tokens takes a forward pass for each as many."
    return (
        "A fold with a marker took two forward passes: one for the marker, one behind the moved text. "
        "A move of more than 16,384 tokens took one more for each as many. Later it does so for each 32,768, and the "
        "scheduler asks no more for the chunks of sessions that decode."
    )


def _speeds(reports: Reports) -> str:
    long, short = ([share(slowest_of(reports, name, least)) for name in ("bf16", "fp8")] for least in (_LONG, 0))
    latent = slowest_of(reports, "bf16", is_latent=True)
    return (
        f"From {count(_LONG)} tokens on, a move of an 8B model has at least {long[0]} of a copy's bandwidth in "
        f"bfloat16, and {long[1]} in fp8. Shorter ones have {short[0]} and {short[1]} at worst. "
        f"Latent attention has at least {share(latent)} in bfloat16."
    )


GPU = (
    PageSection(
        "An 8B model on a GPU",
        "What does a fold of an 8B model cost on a card, beside stock vLLM at its own defaults?",
        "make gpu",
        "Moves are right to a rounding. `exact` gives stock's tokens, read in the same pieces. Moved KV fails that.",
        (RESULT,),
        (
            _of_stage(FOLD, FOLD_TABLE, "A fold by length and by number of holes, and the first token behind it:"),
            _of_stage(HOLES, HOLES_TABLE, "Holes in one forward pass, on a small model of the same class:"),
            _of_stage(SESSIONS, SESSIONS_TABLE, "Sessions side by side, in which a third of the turns fold:"),
            _of_stage(OVERHEAD, OVERHEAD_TABLE, "Requests without a session:"),
            _of_stage(DECODE, DECODE_TABLE, "Chunks of prefill beside the answer of another session:"),
            _of_stage(
                KERNEL,
                ResultTable(KERNEL_TABLE.heads, _shown_moves),
                "Single moves beside a copy of as many bytes, on the device:",
            ),
        ),
        (
            _card,
            "Single moves have fifteen repetitions.",
            "The weights are random, in the shape of Llama 3.1 8B. So times mean something, and answers do not.",
            _answers,
            _speeds,
            _passes,
        ),
        is_optional=True,
        answer=_answer,
    ),
)
