"""Tiny random models of transformers and sentence-transformers, saved as those libraries save them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from tests.support.models import VOCABULARY, tiny_tokenizer

TEXTS = [
    "Einstein proposed relativity.",
    "who",
    "The history of Rome, in 12 parts: physics, evolution, gravity!",
    "gravity " * 60,
    "darwin? newton! (rome) e2 e4",
]


def foreign_backbone(
    folder: Path, head: bool = False, kind: type[Any] = BertModel, config: Any = None
) -> Path:
    """Save a random backbone with its tokenizer; weights are large enough that texts differ."""
    torch.manual_seed(7)
    config = config or BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    (BertForMaskedLM if head else kind)(config).save_pretrained(folder)
    foreign_tokenizer().save_pretrained(folder)
    return folder


def foreign_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    library = tiny_tokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if extra:
        library.add_tokens(list(extra))
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=40,
    )
