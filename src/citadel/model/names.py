"""Tensor names of public backbones and ours, one table per family."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """Tensor names of one family of checkpoints.

    `layer` maps our names to theirs in layer i; a tuple (query, key, value) is concatenated by row.

    >>> FAMILIES["bert"].layer["feedforward.up"]
    'encoder.layer.{i}.intermediate.dense'
    """

    prefix: str
    embeddings: dict[str, str]
    layer: dict[str, str | tuple[str, str, str]]  # the first one is in every layer
    router: dict[str, str]  # the MLM head
    shape: dict[str, str]  # fields of BackboneConfig → keys of the checkpoint's config.json
    position_offset: int = 0
    fixed: dict[str, int | float | str] = field(default_factory=dict)
    needs_biases: bool = True  # False: absent biases are zeros
    final: dict[str, str] = field(default_factory=dict)  # tensors after the layers
    decoder: str = "cls.predictions.decoder.weight"  # of the MLM head, equal to the word embeddings


_BERT_LAYER: dict[str, str | tuple[str, str, str]] = {
    "attention.qkv": (
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    "attention.output": "encoder.layer.{i}.attention.output.dense",
    "attention.norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "feedforward.up": "encoder.layer.{i}.intermediate.dense",
    "feedforward.down": "encoder.layer.{i}.output.dense",
    "feedforward.norm": "encoder.layer.{i}.output.LayerNorm",
}
_BERT_EMBEDDINGS = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.type": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
}
_BERT_SHAPE = {
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
    "epsilon": "layer_norm_eps",
    "activation": "hidden_act",
}
_BERT_HEAD = {
    "router.dense": "cls.predictions.transform.dense",
    "router.norm": "cls.predictions.transform.LayerNorm",
    "router.bias": "cls.predictions.bias",
}
_ROBERTA_HEAD = {
    "router.dense": "lm_head.dense",
    "router.norm": "lm_head.layer_norm",
    "router.bias": "lm_head.bias",
}
_ROBERTA_DECODER = "lm_head.decoder.weight"
_ROBERTA = Family(
    "roberta.",
    _BERT_EMBEDDINGS,
    _BERT_LAYER,
    _ROBERTA_HEAD,
    _BERT_SHAPE,
    position_offset=2,
    decoder=_ROBERTA_DECODER,
)

FAMILIES = {
    "bert": Family("bert.", _BERT_EMBEDDINGS, _BERT_LAYER, _BERT_HEAD, _BERT_SHAPE),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": Family(
        "electra.",
        _BERT_EMBEDDINGS,
        _BERT_LAYER,
        {
            "router.dense": "generator_predictions.dense",
            "router.norm": "generator_predictions.LayerNorm",
            "router.bias": "generator_lm_head.bias",
        },
        _BERT_SHAPE,
        decoder="generator_lm_head.weight",
    ),
    "distilbert": Family(
        "distilbert.",
        {name: theirs for name, theirs in _BERT_EMBEDDINGS.items() if name != "embeddings.type"},
        {
            "attention.qkv": (
                "transformer.layer.{i}.attention.q_lin",
                "transformer.layer.{i}.attention.k_lin",
                "transformer.layer.{i}.attention.v_lin",
            ),
            "attention.output": "transformer.layer.{i}.attention.out_lin",
            "attention.norm": "transformer.layer.{i}.sa_layer_norm",
            "feedforward.up": "transformer.layer.{i}.ffn.lin1",
            "feedforward.down": "transformer.layer.{i}.ffn.lin2",
            "feedforward.norm": "transformer.layer.{i}.output_layer_norm",
        },
        {
            "router.dense": "vocab_transform",
            "router.norm": "vocab_layer_norm",
            "router.bias": "vocab_projector.bias",
        },
        {
            "vocabulary": "vocab_size",
            "hidden": "dim",
            "layers": "n_layers",
            "heads": "n_heads",
            "intermediate": "hidden_dim",
            "positions": "max_position_embeddings",
            "activation": "activation",
        },
        fixed={"epsilon": 1e-12},
        decoder="vocab_projector.weight",
    ),
    "mpnet": Family(
        "mpnet.",
        {name: theirs for name, theirs in _BERT_EMBEDDINGS.items() if name != "embeddings.type"}
        | {"embeddings.relative": "encoder.relative_attention_bias.weight"},
        {
            "attention.output": "encoder.layer.{i}.attention.attn.o",
            "attention.qkv": (
                "encoder.layer.{i}.attention.attn.q",
                "encoder.layer.{i}.attention.attn.k",
                "encoder.layer.{i}.attention.attn.v",
            ),
            "attention.norm": "encoder.layer.{i}.attention.LayerNorm",
            "feedforward.up": "encoder.layer.{i}.intermediate.dense",
            "feedforward.down": "encoder.layer.{i}.output.dense",
            "feedforward.norm": "encoder.layer.{i}.output.LayerNorm",
        },
        _ROBERTA_HEAD,
        {**_BERT_SHAPE, "relative_buckets": "relative_attention_num_buckets"},
        position_offset=2,
        fixed={"architecture": "mpnet"},
        decoder=_ROBERTA_DECODER,
    ),
    "modernbert": Family(
        "model.",
        {"embeddings.word": "embeddings.tok_embeddings.weight", "embeddings.norm": "embeddings.norm"},
        {
            "attention.output": "layers.{i}.attn.Wo",
            "attention.qkv": "layers.{i}.attn.Wqkv",
            "attention.norm": "layers.{i}.attn_norm",  # not in layer 0
            "feedforward.up": "layers.{i}.mlp.Wi",
            "feedforward.down": "layers.{i}.mlp.Wo",
            "feedforward.norm": "layers.{i}.mlp_norm",
        },
        {"router.dense": "head.dense", "router.norm": "head.norm", "router.bias": "decoder.bias"},
        {
            "vocabulary": "vocab_size",
            "hidden": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "intermediate": "intermediate_size",
            "positions": "max_position_embeddings",
            "epsilon": "norm_eps",
            "activation": "hidden_activation",
        },
        fixed={"architecture": "modernbert"},
        needs_biases=False,
        final={"final_norm": "final_norm"},
        decoder="decoder.weight",
    ),
}
