"""A random Qwen2-VL of one layer: images, M-RoPE, and a processor that needs no download."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

NUM_WORDS = 390
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
IDS = {name: NUM_WORDS + index for index, name in enumerate((*SPECIAL, "<|video_pad|>", "<unk>"))}
IMAGE = [IDS["<|vision_start|>"], IDS["<|image_pad|>"], IDS["<|vision_end|>"]]
"""An image in a prompt, before the processor writes its tokens out."""
PATCH, MERGE = 14, 2

TEXT = {
    "vocab_size": NUM_WORDS + len(IDS),
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
    "bos_token_id": IDS["<|im_start|>"],
    "eos_token_id": IDS["<|im_end|>"],
    "pad_token_id": IDS["<|endoftext|>"],
    "tie_word_embeddings": False,
    "dtype": "float32",
}
VISION = {
    "depth": 1,
    "embed_dim": 32,
    "hidden_size": 128,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "in_channels": 3,
}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "patch_size": PATCH,
    "merge_size": MERGE,
    "temporal_patch_size": 2,
    "min_pixels": (2 * MERGE * PATCH) ** 2,
    "max_pixels": (8 * MERGE * PATCH) ** 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
}


def write_image_model(folder: Path) -> Path:
    """Save model, tokenizer and processor."""
    vocab = {f"w{index}": index for index in range(NUM_WORDS)} | IDS
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[name for name in IDS if "vision" in name or "pad" in name or "start" in name],
    ).save_pretrained(folder)
    config = Qwen2VLConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=IDS["<|image_pad|>"],
        video_token_id=IDS["<|video_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"],
        vision_end_token_id=IDS["<|vision_end|>"],
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(7)
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                scale = {"lm_head.weight": 0.2}.get(name, 1.0 if "embed_tokens" in name else 0.3)
                weight.normal_(0, 0.05 if "visual" in name else scale)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def picture(seed: int, height: int, width: int) -> Image.Image:
    """A random image of height x width tokens."""
    pixels = (height * MERGE * PATCH, width * MERGE * PATCH, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, pixels, dtype=np.uint8))
