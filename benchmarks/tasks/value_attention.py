"""Value-specific attention before and after a fold, after section 4.3 of the paper on context tools (000).

    context    ... law: contract ... law: heat ... law: copper       folded: all but the last two rounds of updates
    answer     law: copper
                  |  `--- echo:    from the value said to the same value in the context (what the paper draws)
                  `------ latest:  from the token in front of it to the value that counts
                          stale:   from there to all values of the key that do not

Attention is the mean over layers and heads. Three conditions: the full context, the fold computed exactly, and the fold
on moved KV, which the exact positions of keys are turned for, as the engine turns them. Plain Hugging Face forward
passes; no engine. It knows models of the Llama type only, whose keys are turned by one table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acmserve.bench.tasks.generators.case import TaskCase
from acmserve.bench.tasks.generators.pi_llm import UpdateSizes, make_case
from acmserve.bench.tasks.prompt import CaseTokens, tokenize_case
from acmserve.bench.tasks.summary import difference_interval
from acmserve.errors import AcmError

SIZES = UpdateSizes(46, 8, 2)
FULL, EXACT, MOVED = "full", "exact", "moved"
TITLES = {FULL: "full context", EXACT: "fold, exact", MOVED: "fold, moved KV"}
MEASURES = ("latest", "stale", "echo")


@dataclass(frozen=True, slots=True)
class _Values:
    """Where the values of one key stand in the full context: token positions of each, in order of time."""

    key: str
    latest: str
    positions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Context:
    """KV of a context, its length, and how far the kept text lies from where it lay in the full one."""

    cache: Any
    num_tokens: int
    shift: int
    first_kept: int


def measure(folder: Path, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Attention for each key and condition, and what it comes to. Raises AcmError for another type of model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    if model.config.model_type != "llama":
        raise AcmError(f"attention is drawn for models of the Llama type, not {model.config.model_type}; use smollm2")
    case = make_case(seed, SIZES)
    tokens = tokenize_case(case, tokenizer)
    values = _find_values(case, tokens, tokenizer)
    with torch.inference_mode():
        say(f"reading {len(tokens.full):,} tokens, {tokens.num_folded:,} of them to be folded")
        contexts = _read(model, tokens)
        rows = []
        for number, value in enumerate(values, start=1):
            if number % 10 == 0:
                say(f"key {number} of {len(values)}")
            attention = {name: _attend(model, tokenizer, context, value) for name, context in contexts.items()}
            rows.append({"key": value.key, "value": value.latest, **attention})
    return {
        "setting": str(SIZES),
        "seed": seed,
        "full_tokens": len(tokens.full),
        "folded_context_tokens": len(tokens.folded),
        "summary": [_summary(rows, name, seed) for name in TITLES],
        "keys": rows,
    }


def as_table(report: Mapping[str, Any]) -> list[str]:
    """Mean attention by condition, and how many keys gain."""
    sizes = f"{report['full_tokens']:,} tokens, {report['folded_context_tokens']:,} once folded"
    lines = [
        f"{len(report['keys'])} keys, {sizes}; attention in thousandths, mean over layers and heads",
        f"{'':<16}{'latest':>9}{'stale':>9}{'echo':>9}{'echo beside full':>20}{'keys that gain':>16}",
    ]
    for row in report["summary"]:
        cells = "".join(f"{1000 * row[name]:>9.3f}" for name in MEASURES)
        low, high = row["echo_gain_interval"]
        gain = "" if row["condition"] == FULL else f"{row['echo_gain']:+.0%} [{low:+.0%}, {high:+.0%}]"
        gains = "" if row["condition"] == FULL else f"{row['num_gain']} of {len(report['keys'])}"
        lines.append(f"{TITLES[row['condition']]:<16}{cells}{gain:>20}{gains:>16}")
    return [
        *lines,
        "latest, stale: from the token in front of the answer to the value that counts, and to all that do not",
        "echo: from the value as it is said to the same value in the context",
    ]


def _find_values(case: TaskCase, tokens: CaseTokens, tokenizer: Any) -> list[_Values]:
    """Every key's values with their tokens; offsets tell which tokens a value has."""
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    start = len(tokenizer("").input_ids)
    for number, piece in enumerate(case.pieces):
        encoded = tokenizer(piece.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        at = 0
        for line in piece.text.splitlines(keepends=True) if number else ():
            key, _, value = line.rstrip("\n").partition(": ")
            first, behind = at + len(key) + 2, at + len(line) - 1
            held = (n for n, (a, b) in enumerate(encoded.offset_mapping) if a < behind and first < b)
            found.setdefault(key, []).append((value, tuple(start + n for n in held)))
            at += len(line)
        start += len(encoded.input_ids)
    assert start == len(tokens.full)
    return [_Values(key, said[-1][0], tuple(where for _, where in said)) for key, said in sorted(found.items())]


def _read(model: Any, tokens: CaseTokens) -> dict[str, _Context]:
    """KV of the three contexts. The moved one takes what stands behind the fold from the full one."""
    shift = len(tokens.folded) - len(tokens.full)
    ((first, _),) = tokens.suffix_spans
    caches = {
        name: model(input_ids=torch.tensor([ids]), use_cache=True).past_key_values
        for name, ids in ((FULL, tokens.full), (EXACT, tokens.folded))
    }
    return {
        FULL: _Context(caches[FULL], len(tokens.full), 0, 0),
        EXACT: _Context(caches[EXACT], len(tokens.folded), shift, first),
        MOVED: _Context(_moved(model, caches, first, shift), len(tokens.folded), shift, first),
    }


def _moved(model: Any, caches: Mapping[str, Any], first: int, shift: int) -> Any:
    """KV of the folded context up to token `first`; from there on that of the full one, its keys turned by `shift`."""
    from transformers import DynamicCache

    angles = shift * model.model.rotary_emb.inv_freq.double()
    angles = torch.cat([angles, angles])
    cos, sin = angles.cos(), angles.sin()
    cache = DynamicCache()
    for index, (exact, full) in enumerate(zip(caches[EXACT].layers, caches[FULL].layers, strict=True)):
        keys, values = full.keys[:, :, first - shift :], full.values[:, :, first - shift :]
        half = keys.shape[-1] // 2
        turned = keys * cos + torch.cat([-keys[..., half:], keys[..., :half]], dim=-1) * sin
        keys = torch.cat([exact.keys[:, :, :first], turned.to(keys.dtype)], dim=2)
        cache.update(keys, torch.cat([exact.values[:, :, :first], values], dim=2), index)
    return cache


def _attend(model: Any, tokenizer: Any, context: _Context, value: _Values) -> dict[str, float]:
    """Attention of one answer, teacher-forced; the cache is cut back afterwards."""
    lead = tokenizer(f"{value.key}:", add_special_tokens=False).input_ids
    said = tokenizer(f" {value.latest}", add_special_tokens=False).input_ids
    out = model(
        input_ids=torch.tensor([lead + said]), past_key_values=context.cache, use_cache=True, output_attentions=True
    )
    context.cache.crop(-len(lead + said))
    rows = torch.stack(out.attentions)[:, 0].mean(dim=(0, 1))
    here = [
        [at + context.shift for at in where if at + context.shift >= context.first_kept] for where in value.positions
    ]
    echo = rows[len(lead) : len(lead) + len(said)][:, here[-1]]
    return {
        "latest": float(rows[len(lead) - 1][here[-1]].sum()),
        "stale": float(sum(rows[len(lead) - 1][where].sum() for where in here[:-1])),
        "echo": float(echo.diagonal().mean()),
    }


def _summary(rows: Sequence[Mapping[str, Any]], condition: str, seed: int) -> dict[str, Any]:
    gains = [row[condition]["echo"] / row[FULL]["echo"] - 1 for row in rows]
    return {
        "condition": condition,
        **{name: statistics.fmean(row[condition][name] for row in rows) for name in MEASURES},
        "echo_gain": round(statistics.fmean(gains), 4),
        "echo_gain_interval": difference_interval(gains, seed),
        "num_gain": sum(gain > 0 for gain in gains),
    }
