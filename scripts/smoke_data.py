"""Make a tiny collection, pairs and a random backbone for configs/smoke.toml, without downloads.

The passages are the documentation of Python's standard library, as in `citadel demo`; a query is a few
consecutive words of its relevant passage. The result is deterministic.

    python scripts/smoke_data.py [FOLDER]        (build/smoke by default)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from citadel.demo.passages import passages
from citadel.types import Document

PASSAGES = 300
VOCABULARY = 800
WORDS = 6  # per query
REACH = 20  # queries come from this many first words, which training reads
HIDDEN, LAYERS, HEADS, POSITIONS = 64, 2, 2, 64
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def main(folder: Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    documents = [document for document in passages() if len(document.text.split()) > 2 * WORDS][:PASSAGES]
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(
        folder / "passages.jsonl", ({"id": d.id, "title": d.title, "text": d.text} for d in documents)
    )
    write_lines(folder / "pairs.jsonl", (pair(document, rng) for document in documents))
    backbone = folder / "backbone"
    backbone.mkdir(exist_ok=True)
    tokenizer = train_tokenizer([document.encoded_text for document in documents])
    tokenizer.save(str(backbone / "tokenizer.json"))
    write_backbone(backbone, tokenizer.get_vocab_size(), rng)


def pair(document: Document, rng: np.random.Generator) -> dict[str, str]:
    words = document.text.split()[:REACH]
    start = int(rng.integers(len(words) - WORDS))
    return {"query": " ".join(words[start : start + WORDS]), "positive": document.id, "kind": "crop"}


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a lower-case WordPiece tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - not a secret
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def write_backbone(folder: Path, vocabulary: int, rng: np.random.Generator) -> None:
    """Write a BERT with random weights under the usual names."""
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * HIDDEN,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    shapes = tensor_shapes(vocabulary)
    tensors = {name: start(name, shape, rng) for name, shape in shapes.items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def tensor_shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    linear = {"attention.output.dense": (HIDDEN, HIDDEN)}
    linear |= {f"attention.self.{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")}
    linear |= {"intermediate.dense": (2 * HIDDEN, HIDDEN), "output.dense": (HIDDEN, 2 * HIDDEN)}
    modules: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        modules |= {prefix + name: shape for name, shape in linear.items()}
        modules |= {prefix + name: (HIDDEN,) for name in ("attention.output.LayerNorm", "output.LayerNorm")}
    for name, shape in modules.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def start(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith("LayerNorm.weight"):
        return np.ones(shape, np.float32)
    return (
        np.zeros(shape, np.float32)
        if name.endswith("bias")
        else rng.normal(0, 0.05, shape).astype(np.float32)
    )


def write_lines(path: Path, rows: object) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]  # type: ignore[attr-defined]
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/smoke"))
