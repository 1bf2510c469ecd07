"""A BERT-like encoder in one page. Its weights carry the names that checkpoints and ONNX files carry."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citadel.encode.config import BackboneConfig


class Linear(nn.Linear):
    """A linear layer that works in the precision of its input, so that fp32 weights serve a bf16 forward."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """A layer norm in the precision of its input; its sums are fp32 in any case."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class Embeddings(nn.Module):
    """Word and position, summed and normalised. Texts are of type 0 only, so its row is part of the positions."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        self.word = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        self.position = nn.Parameter(torch.empty(config.positions, config.hidden))
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        place = self.position[self.offset : self.offset + ids.shape[1]]  # [T, h]
        x = F.embedding(ids, self.word) + place  # [n, T, h]
        normalized: Tensor = self.norm(x.to(dtype))
        return normalized


class Attention(nn.Module):
    """Self-attention with one matrix for query, key and value."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.output = Linear(config.hidden, config.hidden)
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        n, length, hidden = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each [n, heads, T, h/heads]
        met = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        normalized: Tensor = self.norm(x + self.output(met.transpose(1, 2).reshape(n, length, hidden)))
        return normalized


class FeedForward(nn.Module):
    """Up, activation, down."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden, config.intermediate)
        self.down = Linear(config.intermediate, config.hidden)
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)
        self.activation = F.gelu if config.activation == "gelu" else F.relu

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = self.norm(x + self.down(self.activation(self.up(x))))
        return normalized


class Layer(nn.Module):
    """One transformer layer, normalised after each half."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = self.feedforward(self.attention(x, bias))
        return out


class Backbone(nn.Module):
    """Token ids to hidden states. Without dropout: a forward is a function of its input, which exact resume needs.

    >>> tiny = BackboneConfig(vocabulary=20, hidden=8, layers=1, heads=2, intermediate=16, positions=16)
    >>> hidden = Backbone(tiny)(torch.tensor([[1, 2, 0]]), torch.tensor([[1, 1, 0]]))
    >>> list(hidden.shape)
    [1, 3, 8]
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        for parameter in (p for p in self.parameters() if p.dim() > 1):
            nn.init.normal_(parameter, std=0.02)

    def freeze(self, layers: int) -> None:
        """Keep the embeddings and the lowest layers as they are.

        >>> tiny = Backbone(BackboneConfig(vocabulary=9, hidden=8, layers=2, heads=2, intermediate=16, positions=16))
        >>> tiny.freeze(1)
        >>> tiny.embeddings.word.requires_grad, [layer.attention.qkv.weight.requires_grad for layer in tiny.layers]
        (False, [False, True])
        """
        if layers:
            for part in (self.embeddings, *self.layers[:layers]):
                part.requires_grad_(False)

    def keep_in(self, dtype: torch.dtype) -> None:
        """Lay the layers' weights out once in the precision of a forward, which casts them otherwise; nothing it says
        changes. For a model that only speaks: what is lost of the weights is lost."""
        self.embeddings.norm.to(dtype)
        self.layers.to(dtype)

    def speed_up(self) -> None:
        """Compile each layer; all layers share one compiled graph, so this takes seconds, not minutes."""
        for layer in self.layers:
            layer.compile()

    def forward(
        self, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32, padded: bool | None = None
    ) -> Tensor:
        x: Tensor = self.embeddings(ids, dtype)  # [n, T, h]
        bias = attention_bias(mask, dtype, padded)
        for layer in self.layers:
            x = layer(x, bias)
        return x


def attention_bias(mask: Tensor, dtype: torch.dtype, padded: bool | None = None) -> Tensor | None:
    """0 where a token may be looked at and the lowest number where not; None where nothing is padded.

    None lets the attention take its fastest kernel. Who knows whether the mask has zeros says so in `padded`; to look
    costs one wait for the device a batch.

    >>> attention_bias(torch.tensor([[1, 1]]), torch.float32) is None
    True
    """
    if padded is None:
        padded = not bool(mask.all())
    if not padded:
        return None
    bias = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask == 0, torch.finfo(dtype).min)  # [n, T]
    return bias[:, None, None, :].expand(-1, 1, mask.shape[1], -1)  # [n, 1, T, T]
