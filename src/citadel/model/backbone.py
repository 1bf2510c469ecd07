"""A BERT-like encoder. Parameters have the same names in checkpoints and ONNX files."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citadel.encode.config import BackboneConfig


class Linear(nn.Linear):
    """Linear layer in the precision of its input: fp32 weights serve a bf16 forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """Layer norm in the precision of its input; sums are always fp32."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )


class Embeddings(nn.Module):
    """Normalised word plus position embeddings; the type embedding is folded into the positions."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        self.word = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        self.position = nn.Parameter(torch.empty(config.positions, config.hidden))
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        positions = self.position[self.offset : self.offset + ids.shape[1]]  # [T, h]
        x = F.embedding(ids, self.word) + positions  # [n, T, h]
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
        qkv = self.qkv(x).view(n, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [n, heads, T, h/heads]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        normalized: Tensor = self.norm(x + self.output(mixed.transpose(1, 2).reshape(n, length, hidden)))
        return normalized


class FeedForward(nn.Module):
    """Feed-forward block: up projection, activation, down projection."""

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
    """One post-norm transformer layer."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = self.feedforward(self.attention(x, bias))
        return out


class Backbone(nn.Module):
    """Token ids to hidden states. There is no dropout, so that a resumed run is exact.

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
        """Freeze the embeddings and the lowest layers.

        >>> tiny = Backbone(BackboneConfig(9, hidden=8, layers=2, heads=2, intermediate=16, positions=16))
        >>> tiny.freeze(1)
        >>> [layer.attention.qkv.weight.requires_grad for layer in tiny.layers]
        [False, True]
        """
        if layers:
            for part in (self.embeddings, *self.layers[:layers]):
                part.requires_grad_(False)

    def keep_in(self, dtype: torch.dtype) -> None:
        """Convert the weights once to the precision of the forward pass, for inference only.

        Outputs do not change, because the forward pass would cast them anyway; the fp32 weights are lost.
        """
        self.embeddings.norm.to(dtype)
        self.layers.to(dtype)

    def speed_up(self) -> None:
        """Compile the layers; they share one compiled graph, so this takes seconds."""
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
    """Additive attention mask: 0 for tokens, the lowest number for padding; None if nothing is padded.

    None selects the fastest attention kernel. `padded` says whether the mask has zeros; finding out costs one
    device synchronisation per batch.

    >>> attention_bias(torch.tensor([[1, 1]]), torch.float32) is None
    True
    """
    if padded is None:
        padded = not bool(mask.all())
    if not padded:
        return None
    bias = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask == 0, torch.finfo(dtype).min)  # [n, T]
    return bias[:, None, None, :].expand(-1, 1, mask.shape[1], -1)  # [n, 1, T, T]
