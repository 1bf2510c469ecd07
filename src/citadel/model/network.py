"""Write the model as an ONNX graph: backbone, heads and routing, with the checkpoint's tensor names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from citadel.encode.config import USUAL_LENGTH, ModelConfig
from citadel.encode.session import DOCUMENT_SEMANTIC
from citadel.model.calibrate import router_span
from citadel.model.graph import Graph
from citadel.model.matrices import Matrices
from citadel.model.positions import distance_classes, rotations
from citadel.types import Floats

State = Mapping[str, Floats]


def build(config: ModelConfig, state: State, matrices: Matrices) -> ModelProto:
    """Build the graph of a model: token ids in; keys, weights, vectors and semantic vector out."""
    return Network(config, state, matrices).build()


class Network:
    """Writer of one graph."""

    def __init__(self, config: ModelConfig, state: State, matrices: Matrices) -> None:
        self._config, self._state, self._matrices = config, state, matrices
        self._graph = Graph()
        # Number of tokens without a key at the end of a text.
        self._ends = 0 if config.route_separator or config.query_padding else 1

    def build(self) -> ModelProto:
        """Build the graph."""
        graph, config = self._graph, self._config
        x = self._embed(graph.input("input_ids", ["n", "T"]))  # [n, T, h]
        x = self._layers(x)
        if config.has_token_vectors:
            graph.node("Identity", self._head(x, "token"), name="vectors")
            graph.output("vectors", ["n", "T", config.token_dimension])
        if config.has_semantic:
            semantic = graph.node("Identity", self._semantic(self._pool(x)), name="semantic")
            graph.output("semantic", ["n", config.semantic_dimension])
            if config.document_offset:
                self._document_semantic(semantic)
        if config.has_router_head:
            self._route(x)
        return graph.model()

    def _embed(self, ids: str) -> str:
        """norm(word + position); the type embedding is folded into the positions."""
        graph, backbone = self._graph, self._config.backbone
        word = self._matrices.rows(graph, ids, "embeddings.word", self._state["embeddings.word"])
        self._length = graph.node("Shape", ids, start=1, end=2)  # [1]
        if backbone.architecture == "modernbert":
            return self._norm(word, "embeddings.norm")
        positions = graph.initialiser("embeddings.position", self._state["embeddings.position"])
        start = backbone.position_offset
        end = graph.node("Add", self._length, graph.shape(start)) if start else self._length
        x = graph.node("Add", word, graph.node("Slice", positions, graph.shape(start), end, graph.shape(0)))
        return self._norm(x, "embeddings.norm")

    def _layers(self, x: str) -> str:
        """All layers: [n, T, h] → [n, T, h]."""
        shape = self._config.backbone
        self._attended = "" if self._config.attend_padding else self._mask()
        self._bias = {False: self._relative() if shape.relative_buckets else ""}
        if any(map(shape.is_local, range(shape.layers))):
            self._bias[True] = self._window()
            self._visible = self._sees_text() if self._attended else ""
        for layer in range(shape.layers):
            is_modern = shape.architecture == "modernbert"
            x = self._modern_layer(x, layer) if is_modern else self._layer(x, f"layers.{layer}.")
        return self._norm(x, "final_norm") if shape.architecture == "modernbert" else x

    def _modern_layer(self, x: str, layer: int) -> str:
        """Norm before each block, and a feed-forward block with a gate (GeGLU)."""
        graph, name = self._graph, f"layers.{layer}."
        inner = self._norm(x, name + "attention.norm") if layer else x
        attended = self._linear(self._rotary_attention(inner, layer), name + "attention.output")
        x = graph.node("Add", attended, x)
        wide = self._linear(self._norm(x, name + "feedforward.norm"), name + "feedforward.up")
        value, gate = graph.nodes("Split", wide, axis=-1, num_outputs=2, count=2)
        active = graph.node("Mul", self._active(value), gate)
        return graph.node("Add", self._linear(active, name + "feedforward.down"), x)

    def _rotary_attention(self, x: str, layer: int) -> str:
        """Attention whose queries and keys are rotated by their positions."""
        graph, shape = self._graph, self._config.backbone
        local = shape.is_local(layer)
        name = "rotations.local" if local else "rotations"
        turns = [
            graph.initialiser(f"{name}.{part}", values)
            for part, values in zip(("cosines", "sines"), rotations(shape, local), strict=True)
        ]
        joined = self._linear(x, f"layers.{layer}.attention.qkv")  # [n, T, 3h]
        query, key, value = graph.nodes("Split", joined, axis=-1, num_outputs=3, count=3)
        query, key = (graph.node("ms.RotaryEmbedding", part, graph.shape(0), *turns) for part in (query, key))
        mixed = self._attend(query, key, value, "", self._bias[local])
        return graph.node("Mul", mixed, self._visible) if local and self._attended else mixed

    def _relative(self) -> str:
        """Bias of each head by the distance of two tokens [1, heads, T, T]."""
        graph, shape = self._graph, self._config.backbone
        distances = self._distances(np.arange(shape.positions, dtype=np.int64))
        row = graph.node("Add", distances, graph.shape(shape.positions - 1))
        classes = graph.initialiser(
            "relative.classes", distance_classes(shape.positions, shape.relative_buckets)
        )
        table = graph.node("Transpose", self._tensor("embeddings.relative"), perm=[1, 0])  # [heads, classes]
        bias = graph.node("Gather", table, graph.node("Gather", classes, row), axis=1)  # [heads, T, T]
        return graph.node("Unsqueeze", bias, graph.shape(0))

    def _window(self) -> str:
        """Bias that hides tokens outside the window [1, 1, T, T]: 0 inside, -10⁹ or less outside."""
        graph, shape = self._graph, self._config.backbone
        distances = graph.node("Abs", self._distances(np.arange(shape.positions, dtype=np.float32)))
        beyond = graph.node("Relu", graph.node("Sub", distances, graph.number(float(shape.local_window))))
        return graph.node("Unsqueeze", graph.node("Mul", beyond, graph.number(-1e9)), graph.shape(0, 1))

    def _sees_text(self) -> str:
        """1 for tokens whose window reaches the text, which comes before the padding, else 0 [n, T, 1]."""
        graph, shape = self._graph, self._config.backbone
        counted = graph.node("Cast", self._attended, to=TensorProto.FLOAT)
        length = graph.node("ReduceSum", counted, graph.shape(1), keepdims=1)  # [n, 1]
        end = graph.node("Add", length, graph.number(float(shape.local_window)))
        stored = graph.initialiser("positions.float32", np.arange(shape.positions, dtype=np.float32))
        row = graph.node("Slice", stored, graph.shape(0), self._length, graph.shape(0))  # [T]
        left = graph.node("Sub", end, row)  # [n, T]
        beyond = graph.node("Relu", graph.node("Sub", left, graph.number(1.0)))
        return graph.node("Unsqueeze", graph.node("Sub", graph.node("Relu", left), beyond), graph.shape(2))

    def _distances(self, positions: NDArray[Any]) -> str:
        """j - i for all pairs of tokens [T, T]."""
        graph = self._graph
        stored = graph.initialiser(f"positions.{positions.dtype}", positions)
        row = graph.node("Slice", stored, graph.shape(0), self._length, graph.shape(0))  # [T]
        return graph.node("Sub", row, graph.node("Unsqueeze", row, graph.shape(1)))

    def _active(self, x: str) -> str:
        return self._graph.node("Gelu" if self._config.backbone.activation == "gelu" else "Relu", x)

    def _attend(self, query: str, key: str, value: str, bias: str, positions: str) -> str:
        """Attention over the heads; `positions` is added to the products of queries and keys."""
        shape = self._config.backbone
        inputs = [query, key, value, bias, self._attended, positions]
        while not inputs[-1]:
            inputs.pop()
        scale = 1 / math.sqrt(shape.head_dimension)
        return self._graph.node("ms.MultiHeadAttention", *inputs, num_heads=shape.heads, scale=scale)

    def _layer(self, x: str, name: str) -> str:
        """Attention and feed-forward, each followed by residual and norm."""
        graph = self._graph
        attended = self._linear(self._attention(x, name), name + "attention.output")
        x = self._norm(graph.node("Add", attended, x), name + "attention.norm")
        inner = self._linear(x, name + "feedforward.up")
        down = self._linear(self._active(inner), name + "feedforward.down")
        return self._norm(graph.node("Add", down, x), name + "feedforward.norm")

    def _attention(self, x: str, name: str) -> str:
        joined = self._product(x, name + "attention.qkv")  # [n, T, 3h]
        query, key, value = self._graph.nodes("Split", joined, axis=-1, num_outputs=3, count=3)
        return self._attend(query, key, value, self._tensor(name + "attention.qkv.bias"), self._bias[False])

    def _mask(self) -> str:
        """The tokens that others attend to [n, T], as attention reads them."""
        return self._graph.node("Cast", self._graph.input("attention_mask", ["n", "T"]), to=TensorProto.INT32)

    def _semantic(self, pooled: str) -> str:
        """The semantic vector [n, s]."""
        x = self._head(pooled, "semantic")
        if self._config.semantic_activation == "tanh":
            x = self._graph.node("Tanh", x)
        return self._unit(x) if self._config.normalize_semantic else x

    def _document_semantic(self, semantic: str) -> None:
        """The semantic vector of a document, less its offset [n, s]."""
        graph = self._graph
        tokens = graph.node("Cast", self._length, to=TensorProto.FLOAT)
        length = graph.node("Sub", graph.node("Log", tokens), graph.number(USUAL_LENGTH))  # [1]
        by_length = graph.node("Mul", length, self._tensor("offset.length"))  # [units]
        inner = graph.node("Relu", graph.node("Add", self._head(semantic, "offset.inner"), by_length))
        offset = graph.node("Softplus", self._head(inner, "offset.outer"))  # [n, 1]
        moved = graph.node("Mul", offset, self._tensor("offset.direction"))  # [n, s]
        graph.node("Sub", semantic, moved, name=DOCUMENT_SEMANTIC)
        graph.output(DOCUMENT_SEMANTIC, ["n", self._config.semantic_dimension])

    def _unit(self, x: str) -> str:
        """Scale rows to length 1; a row of zeros stays."""
        length = self._graph.node("ReduceL2", x, self._graph.shape(-1), keepdims=1)
        return self._graph.node("Div", x, self._graph.node("Max", length, self._graph.number(1e-12)))

    def _pool(self, x: str) -> str:
        """The state of [CLS], or the mean or maximum over the text [n, h]."""
        graph = self._graph
        if self._config.pooling == "cls":
            pooled = graph.node("Gather", x, graph.initialiser("first", np.array(0, np.int64)), axis=1)
        elif self._config.pooling == "max":
            pooled = graph.node("ReduceMax", x, graph.shape(1), keepdims=0)
        else:
            pooled = graph.node("Div", self._sum(x), graph.node("Cast", self._length, to=TensorProto.FLOAT))
        return self._unit(pooled) if self._config.normalize_pooled else pooled

    def _sum(self, x: str) -> str:
        """[n, T, h] → [n, h] as a product: the summation order of ReduceMean depends on the batch size."""
        graph = self._graph
        one = numpy_helper.from_array(np.ones(1, np.float32))
        size = graph.node("Concat", graph.shape(1, 1), self._length, axis=0)
        ones = graph.node("ConstantOfShape", size, value=one)  # [1, 1, T]
        return graph.node("Squeeze", graph.node("MatMul", ones, x), graph.shape(1))

    def _route(self, x: str) -> None:
        """The MLM head, then the top keys of each token, or the maximum per key."""
        graph, config = self._graph, self._config
        if config.router != "sparse":
            x = self._between(x)
        dense = graph.node("Gelu", self._linear(x, "router.dense"))
        x = self._norm(dense, "router.norm")
        bias, word = self._tensor("router.bias"), self._state["embeddings.word"]
        logits = self._matrices.logits(
            graph, x, "embeddings.word", word, bias, router_span(config, self._state)
        )
        if config.router == "sparse":
            self._pool_keys(logits)
        else:
            self._top_keys(logits)

    def _between(self, x: str) -> str:
        """The states without [CLS], and without a final [SEP] that has no key; an empty text keeps one state.

        `encode/key_router.py`, which may replace the product, writes its keys to the same positions.
        """
        graph = self._graph
        shorter = graph.node("Sub", self._length, graph.shape(self._ends))
        self._stop = graph.node("Max", shorter, graph.shape(2))  # [1]
        return graph.node("Slice", x, graph.shape(1), self._stop, graph.shape(1))

    def _around(self, x: str, name: str) -> str:
        """Pad with zeros for the tokens that `_between` dropped: [n, t, L] → [n, T, L]."""
        graph = self._graph
        behind = graph.node("Sub", self._length, self._stop)
        return graph.node(
            "Pad", x, graph.node("Concat", graph.shape(0, 1, 0, 0), behind, graph.shape(0), axis=0), name=name
        )

    def _top_keys(self, logits: str) -> None:
        """Top-L of z, which has the order of φ where φ > 0; φ is then computed for L values instead of V."""
        graph, config = self._graph, self._config
        num_keys = min(max(config.query_keys, config.document_keys), config.backbone.vocabulary)
        best, keys = graph.nodes("TopK", logits, graph.shape(num_keys), count=2, axis=-1)  # [n, t, L]
        self._around(keys, "keys")
        self._around(self._activate(best), "weights")
        graph.output("keys", ["n", "T", num_keys], TensorProto.INT64)
        graph.output("weights", ["n", "T", num_keys])

    def _pool_keys(self, logits: str) -> None:
        """Φ = max (or sum) over the routed tokens of φ."""
        graph, config = self._graph, self._config
        routed = graph.node("Cast", graph.input("routed_mask", ["n", "T"]), to=TensorProto.BOOL)
        column = graph.node("Unsqueeze", routed, graph.shape(2))  # [n, T, 1]
        masked = graph.node("Where", column, logits, graph.number(0.0))
        if config.sparse_pooling == "max":
            self._activate(graph.node("ReduceMax", masked, graph.shape(1), keepdims=0), "activations")
        else:
            graph.node("Identity", self._sum(self._activate(masked)), name="activations")
        graph.output("activations", ["n", config.backbone.vocabulary])
        if config.static_queries:
            self._tensor("query.weight")  # read by encode/encoder.py

    def _activate(self, logits: str, name: str = "") -> str:
        """φ = log(1 + relu(z)) (Eq. 9), in double: fp32 results depend on the position in a SIMD vector."""
        graph = self._graph
        wide = graph.node("Cast", graph.node("Relu", logits), to=TensorProto.DOUBLE)
        one = graph.initialiser("one", np.array(1, np.float64))
        wide = graph.node("Log", graph.node("Add", wide, one))
        if self._config.sparse_activation == "log log":
            wide = graph.node("Log", graph.node("Add", wide, one))
        return graph.node("Cast", wide, to=TensorProto.FLOAT, name=name)

    def _product(self, x: str, name: str) -> str:
        return self._matrices.product(self._graph, x, name + ".weight", self._state[name + ".weight"])

    def _linear(self, x: str, name: str) -> str:
        return self._graph.node("Add", self._product(x, name), self._tensor(name + ".bias"))

    def _head(self, x: str, name: str) -> str:
        """A projection whose result leaves the graph; small, so it stays fp32."""
        turned = self._graph.node("Transpose", self._tensor(name + ".weight"), perm=[1, 0])
        return self._graph.node("Add", self._graph.node("MatMul", x, turned), self._tensor(name + ".bias"))

    def _norm(self, x: str, name: str) -> str:
        parts = (self._tensor(name + end) for end in (".weight", ".bias"))
        return self._graph.node(
            "LayerNormalization", x, *parts, axis=-1, epsilon=self._config.backbone.epsilon
        )

    def _tensor(self, name: str) -> str:
        """A tensor of the checkpoint as it is."""
        return self._graph.initialiser(name, self._state[name])
