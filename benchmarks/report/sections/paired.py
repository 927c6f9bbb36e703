"""Sections about precompute on against off, in interleaved rounds. Each stands on the page once its policy was run."""

from __future__ import annotations

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import interval, ratio, seconds, share
from acmserve.bench.precompute.real_pauses import REAL_PAUSES, edited_turns
from acmserve.bench.precompute.table import BARS, ROUNDS, precomputed_counts, spent_and_saved
from acmserve.bench.report.page_section import PageSection, Reports, page_table

PAIRED_GROUP = "Precompute on against off, and beside other sessions"
_COMMANDS = {
    "precompute-paired": ("CWL", "acmserve bench precompute"),
    "precompute-paired-clear": ("clearing", "acmserve bench precompute --policy clear_tool_uses"),
    "precompute-paired-thoughts": ("dropped reasoning", "acmserve bench precompute --thoughts"),
}
_BECAME = {"used": "were used", "wasted": "were wasted", "held": "were still cached at the end"}


def _section(name: str, title: str, command: str) -> PageSection:
    def answer(reports: Reports) -> str:
        bars = reports[name]["bars"]
        spent, saved = map(seconds, spent_and_saved(reports[name]["rounds"]))
        return (
            f"Of {len(bars)} bars {sum(bar['is_met'] for bar in bars)} are met. "
            f"The engine worked {spent} ahead, and all waiting was {saved} shorter."
        )

    def became(reports: Reports) -> str:
        counts = precomputed_counts(reports[name]["rounds"])
        computed = counts["computed"]
        if not computed:
            return ""
        parts = [
            f"{share(num / computed)} {_BECAME[what]}"
            for what, num in counts.items()
            if what in _BECAME and num is not None
        ]
        return f"Of {computed:,.0f} precomputed tokens {', '.join(parts)}."

    def compared(reports: Reports) -> str:
        agreements = [one["agreement"] for one in reports[name]["rounds"]]
        num, differ = (sum(one[key] for one in agreements) for key in ("num_tokens", "num_different"))
        return f"Of {num:,} tokens behind the same prompts, {differ} would have been another with precompute."

    return PageSection(
        f"Precompute on against off: {title}",
        "What do ordinary turns pay for precompute, and what do all turns and edited ones gain?",
        command,
        "The weights say the same with precompute and without. Receipts add up, and no prompt exceeds the budget.",
        (name,),
        (page_table(BARS, name), page_table(ROUNDS, name), page_table(REAL_PAUSES, name)),
        (
            became,
            compared,
            "An ordinary turn comes behind a pause. Neither side edits it, and both had the same prompt.",
            lambda reports: prompts_note(reports[name]),
            "An edited turn is held against what an append takes without precompute.",
            lambda reports: pauses_note(reports[name]),
            lambda reports: real_pauses_note(reports[name]),
            "Edited turns count where the pause in front of them was a second or more.",
            "A server on a CPU with nothing set does the same here. It heals nothing, and nothing was moved.",
        ),
        is_optional=True,
        answer=answer,
        group=PAIRED_GROUP,
    )


def prompts_note(report: Report) -> str:
    """In how many turns the prompt was another with precompute, why, and what all waiting comes to in both kinds."""
    same, other = (report["waiting_by_prompt"][name] for name in ("same", "other"))
    num_turns = same["num_turns"] + other["num_turns"]
    if not other["num_turns"]:
        return f"Each of {num_turns} turns had the same prompt with precompute and without."
    told = (
        f"In {other['num_turns']} of {num_turns} turns the prompt was another with precompute. It carries out an "
        "eviction early where the context behind it is ready, and most later prompts are then shorter. All waiting "
        "keeps these turns, since an early eviction is a part of what precompute does."
    )
    if not same["num_turns"]:
        return told
    parts = [f"{ratio(one['value'])}{interval(one['interval'])} times" for one in (same, other)]
    return f"{told} All waiting was {parts[0]} as long in turns with the same prompt, and {parts[1]} in the others."


def pauses_note(report: Report) -> str:
    """Where the pauses of a result are from. Older ones were drawn evenly on a logarithmic scale."""
    least, most = report["tool_seconds"]
    drawn = f"Each request comes behind a pause of {least:g} to {most:g} s"
    if (pauses := report.get("pauses")) is None:
        return f"{drawn}, drawn evenly on a logarithmic scale."
    faster, slower = share(pauses["faster_share"]), share(pauses["slower_share"])
    return (
        f"{drawn}, drawn from the times of tools that {pauses['source']} published. {faster} of those calls are faster "
        f"and {slower} are slower. A user's wait is {most:g} s."
    )


def real_pauses_note(report: Report) -> str:
    """What rounds with the pauses of real agents would have to gain from. "" where no tools are called."""
    found = edited_turns(report)
    if found is None:
        return ""
    files = f"{found.behind_files} follow a tool that searches, reads or edits a file"
    return (
        f"Drawn by kind of tool, {found.by_kind} of {found.num} edited turns would come behind a pause of a second or "
        f"more, and {found.as_played} did here. Of {found.num} such turns {files}. By the median that takes real "
        "agents milliseconds, so precompute has less time there."
    )


PAIRED = tuple(_section(name, *about) for name, about in _COMMANDS.items())
