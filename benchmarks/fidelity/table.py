"""The tables of `acmserve bench fidelity`, as people read them. Pure: a report in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.fidelity.variants import AUTO, EXACT, NUM_GREEDY
from acmserve.bench.harness.options import red_gate

_TEXTS = {
    "unrelated": "text that is unrelated to the fold",
    "related": "text that goes on from what was folded",
    "superseded": "updates that replace folded ones",
}


def as_table(report: Mapping[str, Any]) -> list[str]:
    """Nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines = []
    for model in report["models"]:
        lines += ["", f"{model['name']}: {model['num_cases']} cases out of {model['num_documents']} documents"]
        if model["refusal"]:
            lines += [
                f"  REFUSED: the engine moves nothing ({model['refusal']}).",
                f"  Every answer is exact: {_refused(model)}.",
            ]
            continue
        lines += [*_overall(model), *_by_kind(model), *_rest(model)]
    return [*lines, "", *_NOTES, *_gate(report)]


_NOTES = (
    "KL: of the exact distributions from the served ones, nats per token of the true continuation; 95 % interval over",
    f"documents. top-1: the likeliest token is the same one. greedy: all {NUM_GREEDY} tokens of a greedy answer are",
    "the same; parts: the token at which half of the answers have parted. moved: of the old text behind the edit.",
    "other marker, unedited, S dropped are exact answers to other prompts: how far apart prompts are that a user may",
    "take for the same. keys not turned: KV moved without its rotation.",
)


def _gate(report: Mapping[str, Any]) -> list[str]:
    worst = max(model["exact_difference"] for model in report["models"])
    return [
        f"gate green: receipts add up, restores bit-exact in KL, exact logits twice the same to {worst:.1e}",
    ]


def _refused(model: Mapping[str, Any]) -> str:
    kls = [row["kl"] for record in model["records"] for name, row in record["variants"].items() if _moves(model, name)]
    return f"KL at most {max(kls, default=0.0):.1e}, 0 tokens moved in {len(kls)} measurements"


def _moves(model: Mapping[str, Any], name: str) -> bool:
    return name in model["moving_variants"]


def _overall(model: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    rows = model["summary"]["by_dependence"]
    for dependence, title in _TEXTS.items():
        held = [row for row in rows if row["dependence"] == dependence]
        if not held:
            continue
        lines += ["", f"  {title:<42}{'n':>4}{'KL per token':>29}{'top-1':>8}{'greedy':>8}{'parts':>7}{'moved':>8}"]
        lines += [f"    {row['variant']:<40}{_cells(row)}" for row in held]
    return lines


def _cells(row: Mapping[str, Any]) -> str:
    parts = row["divergence_median"]
    parted = "-" if parts is None else f">{NUM_GREEDY}" if parts >= NUM_GREEDY else f"{parts:g}"
    return (
        f"{row['n']:>4}{_kl(row):>29}{row['top1']:>8.1%}{_percent(row['greedy_same']):>8}{parted:>7}"
        f"{_percent(row['moved_share']):>8}"
    )


def _kl(row: Mapping[str, Any]) -> str:
    between = row["kl_interval"]
    return _number(row["kl"]) + (f" [{_number(between[0])}, {_number(between[1])}]" if between else "")


def _number(value: float) -> str:
    return "0" if value < 5e-7 else f"{value:.2g}" if value < 1e-3 else f"{value:.4f}" if value < 1 else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _by_kind(model: Mapping[str, Any]) -> list[str]:
    """KL of each kind of edit, a column for each way."""
    rows = model["summary"]["by_kind"]
    names = [name for name in model["variants"] if name != EXACT]
    lines = ["", f"  {'KL by kind of edit':<26}{'n':>4}" + "".join(f"{name:>16}" for name in names)]
    for key in dict.fromkeys((row["kind"], row["dependence"]) for row in rows):
        held = {row["variant"]: row for row in rows if (row["kind"], row["dependence"]) == key}
        lines.append(_columns("  " + ", ".join(key), held, names))
    for title, group, label in (
        ("folds by share folded", "folds_by_share", "folded_share"),
        ("edits by tokens behind the cut", "by_suffix_tokens", "suffix_from"),
        ("chains by number of edits", "chains", "num_edits"),
    ):
        rows = model["summary"][group]
        lines += ["", f"  {title}"] if rows else []
        for value in dict.fromkeys(row[label] for row in rows):
            held = {row["variant"]: row for row in rows if row[label] == value}
            shown = (
                f"{value:.0%}" if label == "folded_share" else f"from {value}" if value or label != "num_edits" else ""
            )
            lines.append(_columns(f"    {value if label == 'num_edits' else shown}", held, names))
    return lines


def _columns(label: str, held: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    n = max(row["n"] for row in held.values())
    cells = "".join(f"{_number(held[name]['kl']) if name in held else '-':>16}" for name in names)
    return f"  {label:<26}{n:>4}{cells}"


def _rest(model: Mapping[str, Any]) -> list[str]:
    summary = model["summary"]
    names = [name for name in model["variants"] if name != EXACT]
    lines = ["", "  KL along the continuation"]
    positions = summary["by_position"]
    for start, end in dict.fromkeys((row["from"], row["to"]) for row in positions):
        held = {row["variant"]: row["kl"] for row in positions if row["from"] == start}
        cells = "".join(f"{_number(held[name]) if name in held else '-':>16}" for name in names)
        lines.append(f"  {f'  tokens {start} to {end - 1}':<30}{cells}")
    lines += ["", "  what foretells the KL of reuse (rank correlation)     all     without updates"]
    for row in summary["predictors"]:
        found = [row["spearman_all"], row["spearman_ordinary"]]
        told = "".join(f"{'-' if value is None else f'{value:.2f}':>16}" for value in found)
        lines.append(f"    {row['feature']:<40}{told}")
    for half, judged in (summary[AUTO] or {}).items():
        if judged:
            lines += ["", f"  {AUTO} on the {half.replace('_', ' ')} documents", *_judged(judged)]
    return lines


def _judged(row: Mapping[str, Any]) -> list[str]:
    return [
        (
            f"    of {row['n']} edits {row['num_harmful']} are harmful (KL of reuse > {row['harmful_kl']:g}), "
            f"{row['num_harmful_moved']} of them were moved; {row['num_harmless_computed']} harmless ones were computed"
        ),
        (
            f"    moved: {row['moved_share']:.0%} of the tokens; "
            f"KL {_number(row['kl_auto'])} instead of {_number(row['kl_reuse'])} under reuse"
        ),
    ]
