"""Small tokenizers of the ways in which SentencePiece is written for `tokenizers`: a space stands before each text.

encode   "Yes"             ["▁Yes"]            the space is put in front ...
decode   ["▁Yes"]          "Yes"               ... and taken off again
         ["Yes"]           "Yes"               what a model samples behind a line's end
         ["a", "▁Yes"]     "a Yes"             between others they differ
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPACE = "\u2581"
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>")
_MERGES = (("Y", "e"), ("Ye", "s"), (SPACE, "Yes"), ("N", "o"), (SPACE, "No"))
_LETTERS = tuple(chr(code) for code in range(33, 127))


def prepending() -> PreTrainedTokenizerFast:
    """Llama 2 and TinyLlama: a normalizer puts the space in front, and the decoder strips one."""
    tokenizer = _byte_fallback()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return _wrapped(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    """Llama of transformers 5: `Metaspace` does it for the first piece of a text."""
    tokenizer = _byte_fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    return _wrapped(tokenizer)


def metaspace_without_bytes() -> PreTrainedTokenizerFast:
    """No token stands for a byte, and `Metaspace` is the decoder, too."""
    tokenizer = Tokenizer(_pairs([*SPECIAL, SPACE, *_LETTERS, "\n"], byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="first", split=False)
    return _wrapped(tokenizer)


def _byte_fallback() -> Tokenizer:
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *_LETTERS]
    tokenizer = Tokenizer(_pairs(names, byte_fallback=True))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _pairs(names: list[str], *, byte_fallback: bool) -> Any:
    vocab = {name: index for index, name in enumerate([*names, *(left + right for left, right in _MERGES)])}
    return models.BPE(vocab, list(_MERGES), unk_token="<unk>", byte_fallback=byte_fallback)


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=list(SPECIAL[3:]), **special)
