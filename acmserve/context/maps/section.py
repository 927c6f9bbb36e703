"""The sections of a context map: how each is named, titled and described, and how early its items are evicted.

    ## CONTEXT ROADMAP            [cr-00001]     evicted last
    ## CONTEXT UNDERSTANDING      [cu-00002]     evicted last
    ## DOMAIN CONSTANTS           [dc-00003]     third
    ## PARSING SCHEMA             [ps-00004]     first
    ## REUSABLE RESULTS           [rr-00005]     second
    ## ERROR PATTERNS             [ep-00006]     first, and shown only when it has items

Titles and descriptions are those of PEEK's initial map (arXiv 2605.19932, appendix F). The eviction order is that of
its section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.errors import InvalidRequest
from acmserve.validation import echo


@dataclass(frozen=True, slots=True)
class Section:
    """`slug` begins the ids of its items. Items of a lower `tier` are evicted first. `holds` explains it to a model."""

    name: str
    slug: str
    title: str
    description: str
    tier: int
    holds: str
    always_shown: bool = True


SECTIONS = (
    Section(
        "context_roadmap",
        "cr",
        "CONTEXT ROADMAP",
        "Index of what the context contains and where to find it",
        3,
        "what parts the context has, what each is about, and where it stands",
    ),
    Section(
        "context_understanding",
        "cu",
        "CONTEXT UNDERSTANDING",
        "High-level understanding of the context: what it is, how it's organized, and what matters",
        3,
        "what the context is as a whole: main entities and ideas, and how they belong together",
    ),
    Section(
        "domain_constants",
        "dc",
        "DOMAIN CONSTANTS",
        "Exact parameters, formulas, thresholds, reference values, enum sets, and output field requirements defined by "
        "the context.",
        2,
        "exact values that the context defines: numbers, formulas, allowed values, names and types of fields; never "
        "rounded or paraphrased",
    ),
    Section(
        "parsing_schema",
        "ps",
        "PARSING SCHEMA",
        "How to parse and navigate the context's format",
        0,
        "how the text is laid out: delimiters, fields of a record, a way to split it that works",
    ),
    Section(
        "reusable_results",
        "rr",
        "REUSABLE RESULTS",
        "Reusable knowledge about the context",
        1,
        "results worked out from the whole context that several questions need, each with how it was computed",
    ),
    Section(
        "error_patterns",
        "ep",
        "ERROR PATTERNS",
        "What went wrong while the context was processed",
        0,
        "what went wrong in fact while the context was processed, such as a field that is missing at times",
        always_shown=False,
    ),
)
SECTION_NAMES = tuple(section.name for section in SECTIONS)
BY_NAME: Mapping[str, Section] = {section.name: section for section in SECTIONS}
BY_SLUG: Mapping[str, Section] = {section.slug: section for section in SECTIONS}
BY_TITLE: Mapping[str, Section] = {section.title: section for section in SECTIONS}


def check_sections(value: object, field: str) -> tuple[str, ...]:
    """The names of a map's sections, in our order. Raises `InvalidRequest` for a name that is none."""
    names = value if isinstance(value, list | tuple) else ()
    wrong = [name for name in names if not isinstance(name, str) or name not in BY_NAME]
    if not names or wrong:
        shown = echo(wrong[0] if wrong else value)
        raise InvalidRequest(field, f"{shown} is no list of sections.", f"Choose some of {', '.join(SECTION_NAMES)}.")
    return tuple(name for name in SECTION_NAMES if name in names)
