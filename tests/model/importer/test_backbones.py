"""Every backbone with its kind of tokenizer, in every layout, gives the results of sentence-transformers."""

from __future__ import annotations

import base64
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from citadel.encode.encoder import Encoder
from citadel.model.importer.convert import import_model
from tests.support.charsmap import charsmap

WORDS = "the theory of relativity was proposed by einstein in Bern, not by newton; darwin wrote on evolution."
SENTENCES = [
    WORDS,
    WORDS.upper(),
    WORDS.title(),
    "Größe, naïve café, façade, 東京 and 北京.",
    string.printable,
]
# Texts of every length from none to beyond the maximum.
TEXTS = [
    *(" ".join((WORDS * 4).split()[:count]) for count in (1, 2, 3, 5, 8, 13, 21, 34, 55)),
    "e", "Größe  naïve\tcafé\n東京", "E=mc² (1905)!", "A.B.C",
]  # fmt: skip
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
MODERN = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 44, "initializer_range": 0.3,
}  # fmt: skip
BACKBONES: dict[str, tuple[str, Any]] = {
    "bert": ("wordpiece", lambda size: BertConfig(vocab_size=size, **SIZES)),
    "electra": ("wordpiece", lambda size: ElectraConfig(vocab_size=size, embedding_size=32, **SIZES)),
    "distilbert": (
        "wordpiece",
        lambda size: DistilBertConfig(
            vocab_size=size, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=44,
            initializer_range=0.3,
        ),
    ),
    "roberta": ("bytes", lambda size: RobertaConfig(vocab_size=size, pad_token_id=1, **SIZES)),
    "xlm-roberta": ("sentencepiece", lambda size: XLMRobertaConfig(vocab_size=size, pad_token_id=1, **SIZES)),
    "mpnet": ("mpnet", lambda size: MPNetConfig(vocab_size=size, **SIZES)),
    "modernbert": (
        "modern",
        lambda size: ModernBertConfig(
            vocab_size=size, local_attention=8, pad_token_id=3, cls_token_id=1, sep_token_id=2,
            bos_token_id=1, eos_token_id=2, **SIZES,
        ),
    ),
}  # fmt: skip


def word_pieces(special: tuple[str, ...], cls: str, sep: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    vocabulary = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing((sep, vocabulary[sep]), (cls, vocabulary[cls]))
    return tokenizer


def byte_pairs(special: tuple[str, ...], cls: str, sep: str, normalizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(SENTENCES, trainer)
    # As those of RoBERTa and ModernBERT: the mask swallows the space before it; runs of spaces are tokens.
    tokenizer.add_special_tokens([AddedToken(special[-1], lstrip=True)])
    tokenizer.add_tokens([AddedToken("   "), AddedToken("  ")])
    vocabulary = tokenizer.get_vocab()
    tokenizer.post_processor = processors.RobertaProcessing(
        (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim_offsets=True,
        add_prefix_space=False,
    )  # fmt: skip
    return tokenizer


def sentence_pieces(special: tuple[str, ...], cls: str, sep: str) -> Tokenizer:
    """Unigram with a compiled normalizer, as that of XLM-RoBERTa."""
    tokenizer = Tokenizer(models.Unigram())
    rules = {"ß": "ss", "ﬁ": "fi", "\t": " ", "\n": " ", "②": "2", "²": "2"}
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(base64.b64decode(charsmap(rules))), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    vocabulary = tokenizer.get_vocab()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep], special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])]
    )
    return tokenizer


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    if kind == "wordpiece":
        library, names = (
            word_pieces(BERT, "[CLS]", "[SEP]"),
            dict(zip("pu cs m".replace(" ", ""), BERT, strict=True)),
        )
    elif kind == "mpnet":
        special = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
        library, names = word_pieces(special, "<s>", "</s>"), dict(zip("cpsum", special, strict=True))
    elif kind == "sentencepiece":
        library, names = sentence_pieces(ROBERTA, "<s>", "</s>"), dict(zip("cpsum", ROBERTA, strict=True))
    elif kind == "bytes":
        library, names = byte_pairs(ROBERTA, "<s>", "</s>", None), dict(zip("cpsum", ROBERTA, strict=True))
    else:
        library = byte_pairs(MODERN, "[CLS]", "[SEP]", normalizers.NFC())
        names = dict(zip("ucspm", MODERN, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=library, unk_token=names["u"], pad_token=names["p"], cls_token=names["c"],
        sep_token=names["s"], mask_token=names["m"], model_max_length=40,
    )  # fmt: skip


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random backbone with an MLM head and its tokenizer."""
    kind, config = BACKBONES[request.param]
    folder: Path = tmp_path_factory.mktemp("backbones") / request.param
    tokenizer = tokenizer_of(kind)
    torch.manual_seed(5)
    AutoModelForMaskedLM.from_config(config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bi_encoder(backbone: Path) -> SentenceTransformer:
    return SentenceTransformer(modules=[Transformer(str(backbone)), Pooling(32, "mean"), Normalize()])


def colbert(backbone: Path) -> MultiVectorEncoder:
    modules = [
        Transformer(str(backbone), query_expansion={"strategy": "fixed", "length": 24}, query_length=24),
        Dense(32, 16, bias=False, activation_function=None, module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(string.punctuation)),
        Normalize(module_input_name="token_embeddings"),
    ]
    return MultiVectorEncoder(modules=modules)


def splade(backbone: Path) -> SparseEncoder:
    return SparseEncoder(modules=[Transformer(str(backbone), transformer_task="fill-mask"), SpladePooling()])


def ours(encoder: Encoder, query: bool) -> list[np.ndarray]:
    encoded = encoder.encode_queries(TEXTS) if query else encoder.encode_documents(TEXTS)
    if encoder.config.router == "sparse":
        rows = [np.zeros(encoder.config.backbone.vocabulary, np.float32) for _ in TEXTS]
        for row, text in zip(rows, encoded, strict=True):
            row[text.keys] = text.weights
        return rows
    return [np.asarray(text.vectors if text.semantic is None else text.semantic) for text in encoded]


@pytest.mark.parametrize("layout", [bi_encoder, colbert, splade])
def test_vectors_and_scores_are_those_of_the_library(layout: Any, backbone: Path, tmp_path: Path) -> None:
    torch.manual_seed(6)
    layout(backbone).save_pretrained(str(tmp_path / "foreign"))
    [folder] = import_model(str(tmp_path / "foreign"), tmp_path / "ours", "fp32")
    encoder = Encoder(folder, threads=1)
    model = type(layout(backbone))(str(tmp_path / "foreign"))
    for query in (True, False):
        encode = model.encode_query if query else model.encode_document
        theirs = [np.asarray(text.to_dense() if layout is splade else text) for text in encode(TEXTS)]
        for text, own, other in zip(TEXTS, ours(encoder, query), theirs, strict=True):
            assert own.shape == other.shape, text
            np.testing.assert_allclose(own, other, atol=1e-4, err_msg=text)


def test_int8_is_close(backbone: Path, tmp_path: Path) -> None:
    bi_encoder(backbone).save_pretrained(str(tmp_path / "foreign"))
    folders = import_model(str(tmp_path / "foreign"), tmp_path / "ours", "both")
    exact, rounded = (np.stack(ours(Encoder(folder, threads=1), query=False)) for folder in folders)
    assert ((exact * rounded).sum(axis=1) > 0.99).all()
