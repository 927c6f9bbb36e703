"""Turns one GGUF file into a Hugging Face folder: `python -m acmserve.models.gguf_folder FILE.gguf FOLDER`.

`--no-chat-template` in front says that the file is a base model, which has none.

The weights are dequantized once and saved as float32. That is exactly what the GGUF file says, while a rounding to
bfloat16 would be a second quantization. The folder carries the tokenizer and the file's own chat template, and no
`quantization_config`, so every engine loads it as a plain dense model.

It is a program of its own. A caller (a server about to start its engine) should inherit neither the memory nor the
thread pools of the conversion. It knows nothing about which model it converts, or where files come from.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, folder: Path, has_chat_template: bool = True) -> None:
    """Write `gguf` as config, float32 safetensors, tokenizer and chat template into `folder`.

    Raises ValueError when the file has no chat template, unless it is said to have none. A chat server without one
    would format prompts by guesswork.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if has_chat_template and not tokenizer.chat_template:
        raise ValueError(f"{gguf.name} carries no chat template")
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    *flags, file, into = sys.argv[1:]
    convert(Path(file), Path(into), has_chat_template="--no-chat-template" not in flags)
