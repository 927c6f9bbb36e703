"""An empty figure to draw on, where matplotlib is installed. That is an extra of the project, no dependency.

Drawn without pyplot, so that no window system is asked for and nothing global is left behind.
"""

from __future__ import annotations

from typing import Any

MISSING = "no plot: matplotlib is not installed (pip install matplotlib); the JSON file holds the numbers"


def open_figure(width: float, height: float) -> Any | None:
    """A figure of that many inches. None where there is no matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found,unused-ignore]
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
