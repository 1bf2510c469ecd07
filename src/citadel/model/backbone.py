"""The encoder: BERT, MPNet or ModernBERT. Parameters have the same names in checkpoints and ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from citadel.encode.config import BackboneConfig
from citadel.model import packed_attention
from citadel.model.positions import distance_classes, rotations

_LONGEST = 128  # tokens: shorter packed texts take the same kernel
# Without cuDNN, which compiles a plan for each new shape in 0.1 s; texts come in hundreds of shapes.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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


class Surroundings(NamedTuple):
    """What the tokens of a layer know of each other: a bias of attention, and rotations by position."""

    bias: Tensor | None = None  # [n, 1 or heads, T, T]
    rotation: tuple[Tensor, Tensor] | None = None  # cosines and sines, each [T, d/2]
    visible: Tensor | None = None  # [n, T, 1], tokens that see any other, where some may not
    starts: Tensor | None = None  # [texts + 1], int32: where packed texts start; then n is 1
    longest: int = 0  # of them, or more


class Embeddings(nn.Module):
    """Normalised word plus position embeddings; the type embedding is folded into the positions."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        self.word = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        if config.architecture != "modernbert":
            self.position = nn.Parameter(torch.empty(config.positions, config.hidden))
        if config.relative_buckets:
            self.relative = nn.Parameter(torch.empty(config.relative_buckets, config.heads))
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        x = F.embedding(ids, self.word)  # [n, T, h]
        if hasattr(self, "position"):
            x = x + self.position[self.offset : self.offset + ids.shape[1]]
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

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        n, length, hidden = x.shape
        qkv = self.qkv(x).view(n, length, 3, self.heads, -1)
        if around.starts is None:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [n, heads, T, h/heads]
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=around.bias).transpose(1, 2)
        else:
            q, k, v = qkv[0].unbind(1)  # each [N, heads, h/heads]
            mixed = packed_attention.attend(q, k, v, around.starts, around.longest)
        normalized: Tensor = self.norm(x + self.output(mixed.reshape(n, length, hidden)))
        return normalized


class RotaryAttention(nn.Module):
    """Self-attention with rotated queries and keys; the norm comes first (ModernBERT)."""

    def __init__(self, config: BackboneConfig, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.output = Linear(config.hidden, config.hidden)
        if layer:  # the first layer follows the norm of the embeddings
            self.norm = LayerNorm(config.hidden, eps=config.epsilon)

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        n, length, hidden = x.shape
        inner = self.norm(x) if hasattr(self, "norm") else x
        qkv = self.qkv(inner).view(n, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [n, heads, T, h/heads]
        assert around.rotation is not None
        q, k = (_rotated(part, *around.rotation) for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=around.bias)
        joined = mixed.transpose(1, 2).reshape(n, length, hidden)
        attended: Tensor = x + self.output(joined if around.visible is None else joined * around.visible)
        return attended


class GatedFeedForward(nn.Module):
    """Feed-forward block with a gate (GeGLU); the norm comes first (ModernBERT)."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden, 2 * config.intermediate)
        self.down = Linear(config.intermediate, config.hidden)
        self.norm = LayerNorm(config.hidden, eps=config.epsilon)
        self.activation = F.gelu if config.activation == "gelu" else F.relu

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(self.norm(x)).chunk(2, -1)
        out: Tensor = x + self.down(self.activation(value) * gate)
        return out


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

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        out: Tensor = self.feedforward(self.attention(x, around))
        return out


class ModernLayer(nn.Module):
    """One pre-norm transformer layer of ModernBERT."""

    def __init__(self, config: BackboneConfig, layer: int) -> None:
        super().__init__()
        self.attention = RotaryAttention(config, layer)
        self.feedforward = GatedFeedForward(config)

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        out: Tensor = self.feedforward(self.attention(x, around))
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
        self.shape = config
        self.packs = False  # whether texts are encoded without padding, on a GPU that can
        self.embeddings = Embeddings(config)
        is_modern = config.architecture == "modernbert"
        self.layers = nn.ModuleList(
            ModernLayer(config, layer) if is_modern else Layer(config) for layer in range(config.layers)
        )
        self.final_norm = LayerNorm(config.hidden, eps=config.epsilon) if is_modern else None
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
        if self.final_norm is not None:
            self.final_norm.to(dtype)

    def speed_up(self, compiled: bool = True, packed: bool = False) -> None:
        """Compile the layers; they share one graph for texts of all lengths, so this takes seconds.

        `packed` leaves padding out of the layers, on a GPU that can.
        """
        self.packs = packed and self.can_pack
        for layer in self.layers if compiled else ():
            layer.compile(dynamic=True)

    def forward(
        self, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32, padded: bool | None = None
    ) -> Tensor:
        x: Tensor = self.embeddings(ids, dtype)  # [n, T, h]
        if self.packs and packed_attention.can_attend(x.device, dtype):
            return self._packed(x, mask)
        around = self._surroundings(attention_bias(mask, dtype, padded), x)
        with sdpa_kernel(_ATTENTION):
            for number, layer in enumerate(self.layers):
                x = layer(x, around[self.shape.is_local(number)])
        return x if self.final_norm is None else self.final_norm(x)

    @property
    def can_pack(self) -> bool:
        """Whether the architecture can encode texts without padding."""
        return not self.shape.relative_buckets and all(isinstance(layer, Layer) for layer in self.layers)

    def _packed(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run the layers on tokens alone; padding gets 0. Finding the tokens costs one synchronisation."""
        rows = mask.flatten().nonzero().squeeze(1)  # [N]
        starts = F.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        around = Surroundings(starts=starts, longest=max(mask.shape[1], _LONGEST))
        packed = x.flatten(0, 1).index_select(0, rows)[None]  # [1, N, h]
        for layer in self.layers:
            packed = layer(packed, around)
        flat = packed.new_zeros(mask.numel(), packed.shape[-1])
        return flat.index_copy(0, rows, packed[0]).view(*mask.shape, -1)

    def _surroundings(self, bias: Tensor | None, x: Tensor) -> Sequence[Surroundings]:
        """Those of layers with full attention, and of local layers."""
        shape, length = self.shape, x.shape[1]
        if shape.relative_buckets:
            classes = _classes(shape.positions, shape.relative_buckets, x.device)
            position = torch.arange(length, device=x.device)
            distances = position - position[:, None] + (shape.positions - 1)  # [T, T]
            relative = self.embeddings.relative[classes[distances]].permute(2, 0, 1)[None].to(x.dtype)
            bias = relative if bias is None else bias + relative  # [n, heads, T, T]
        if shape.architecture != "modernbert":
            return (Surroundings(bias), Surroundings(bias))
        full, local = (_turns(shape, kind, x.device) for kind in (False, True))
        full, local = ((cosines[:length], sines[:length]) for cosines, sines in (full, local))
        window = _window(length, shape.local_window, x)
        if bias is None:
            return (Surroundings(bias, full), Surroundings(window, local))
        near = torch.minimum(bias, window)
        visible = (near > torch.finfo(x.dtype).min / 2).any(-1)[:, 0, :, None]  # [n, T, 1]
        return (Surroundings(bias, full), Surroundings(near, local, visible))


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


@cache
def _classes(positions: int, buckets: int, device: torch.device) -> Tensor:
    return torch.from_numpy(distance_classes(positions, buckets)).to(device)


@cache
def _turns(shape: BackboneConfig, local: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    if local and not shape.local_window:
        local = False  # there is no such layer
    cosines, sines = rotations(shape, local)
    return torch.from_numpy(cosines).to(device), torch.from_numpy(sines).to(device)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the halves of x against each other; in at least fp32, because angles need the precision."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1).to(x.dtype)


def _window(length: int, size: int, x: Tensor) -> Tensor:
    """Additive mask [1, 1, T, T]: 0 for tokens at most `size` apart."""
    position = torch.arange(length, device=x.device)
    far = (position - position[:, None]).abs() > size
    return torch.zeros(1, 1, length, length, dtype=x.dtype, device=x.device).masked_fill_(
        far, torch.finfo(x.dtype).min
    )
