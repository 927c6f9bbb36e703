"""Hooks of MkDocs: what the pages link to outside of `docs/` becomes a part of the site.

On GitHub the links lead into the repository, `../benchmarks/results/edit-cpu.json`. On the site they lead to copies.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LOG = ("../benchmarks/LOG.md", "log.md")
RESULTS = ("../benchmarks/results/", "results/")
"""Where a page of `docs/` finds them, and where it finds them on the site. A page in a folder has `../` before."""


def on_files(files: Files, config: Any) -> Files:
    """Add the results and the log of the benchmarks."""
    for path in sorted((ROOT / "benchmarks/results").iterdir()):
        files.append(File.generated(config, f"{RESULTS[1]}{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, LOG[1], abs_src_path=str(ROOT / "benchmarks/LOG.md")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links into the repository into links on the site."""
    for there, here in (LOG, RESULTS):
        markdown = re.sub(rf"(\(|\.\./){re.escape(there)}", rf"\g<1>{here}", markdown)
    return markdown
