"""A tiny random model for tests: two layers of 32, 200 tokens."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from citadel.encode.config import BackboneConfig, ModelConfig
from citadel.model.shapes import shapes

ModelFolder = Callable[..., Path]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list(string.ascii_lowercase + string.digits)
TITLES = ["einstein", "darwin", "newton", "rome", "relativity", "physics", "evolution", "gravity", "history"]
WORDS = [*TITLES, "proposed", "in", "the", "of", "who"]
VOCABULARY = [*SPECIAL, *".,!?", *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
VOCABULARY += [f"[unused{number}]" for number in range(200 - len(VOCABULARY))]
ROUTERS: dict[str, dict[str, Any]] = {
    "dynamic": {"token_dimension": 8, "semantic_dimension": 16, "tau": 1.0},
    "static": {"token_dimension": 8, "semantic_dimension": 0},
    "all_to_all": {"token_dimension": 8, "semantic_dimension": 0, "query_padding": 8},
    "sparse": {"token_dimension": 0, "semantic_dimension": 0},
    "none": {"token_dimension": 0, "semantic_dimension": 32, "pooling": "mean", "normalize_pooled": True},
}


def tiny_config(router: str = "dynamic", **changes: Any) -> ModelConfig:
    shape = BackboneConfig(len(VOCABULARY), hidden=32, layers=2, heads=4, intermediate=64, positions=40)
    config = ModelConfig(
        router,
        shape,
        name="tiny",
        query_length=16,
        document_length=24,
        pad_id=0,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        **ROUTERS[router],
    )
    return replace(config, **changes)


def tiny_state(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors, large enough that tokens differ; norm weights are near 1."""
    random = np.random.default_rng(seed)
    state = {}
    for name, shape in shapes(config).items():
        spread = 0.5 if len(shape) == 2 and not name.startswith("embeddings") else 1.0
        values = random.normal(scale=spread / np.sqrt(shape[-1]) if len(shape) == 2 else 0.1, size=shape)
        state[name] = (values + (1 if "norm.weight" in name else 0)).astype(np.float32)
    return state


def tiny_tokenizer() -> Tokenizer:
    numbered = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_checkpoint(folder: Path, config: ModelConfig, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_state(config, seed), folder / "model.safetensors")
    config.save(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
