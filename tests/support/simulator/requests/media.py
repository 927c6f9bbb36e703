"""Images in scripts: tokens from `FIRST_IMAGE` on say of which image they are, which vLLM's placeholder does not.

    script's prompt   12 40 10012 10012 10012 7 9        runs of one number are one image
    vLLM's prompt     12 40   998   998   998 7 9        and one `mm_features` entry: image 12, 3 tokens

The truth of a slot is about the script's tokens. With M-RoPE an image has other numbers of positions and of tokens, so
text behind it is shifted (`truth.shift_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from tests.support.simulator.scripts import NUM_WORDS, Script, Tokens
from tests.support.simulator.truth import FIRST_IMAGE, is_image

PLACEHOLDER = 998
IMAGE_TOKENS = 3


def fed(token: int) -> int:
    """The token id that a request of vLLM has for a token of a script."""
    return PLACEHOLDER if is_image(token) else token


def features_of(prompt: Sequence[int]) -> list[MultiModalFeatureSpec]:
    """The images of a script's prompt, as vLLM has them."""
    if max(prompt, default=0) < FIRST_IMAGE:
        return []
    features, offset = [], 0
    for token, run in groupby(prompt):
        length = len(list(run))
        if is_image(token):
            place = PlaceholderRange(offset=offset, length=length)
            features.append(MultiModalFeatureSpec(None, "image", f"{token - FIRST_IMAGE}x{length}", place))
        offset += length
    return features


def with_images(script: Script, *, mrope: bool) -> Script:
    """The script with every eighth word and what follows it an image, on a machine that has such a model.

    Nothing is forgotten: what a redaction leaves is checked by token ids, which images have none of.
    """
    turns = tuple(replace(turn, prompt=_pictured(turn.prompt), forget=False) for turn in script.turns)
    return replace(script, turns=turns, machine=replace(script.machine, images=True, mrope=mrope))


def _pictured(prompt: Tokens) -> Tokens:
    tokens = list(prompt)
    for index, word in enumerate(prompt):
        if word < NUM_WORDS and word % 8 == 0 and not is_image(tokens[index]):
            for place in range(index, min(index + IMAGE_TOKENS, len(prompt) - 1)):
                if prompt[place] >= NUM_WORDS:
                    break
                tokens[place] = FIRST_IMAGE + word
    return tuple(tokens)
