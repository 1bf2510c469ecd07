"""Tables of a training config: keys, defaults and allowed values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from citadel.encode.config import MAX_SIZES, BackboneConfig, ModelConfig, make
from citadel.errors import InputError

FORMATS = ("pairs", "msmarco", "tevatron", "beir")
PRESETS: dict[str, dict[str, Any]] = {
    "": {},
    "paper": {"alpha": 1e-2, "beta": 1e-5, "l1": "vocabulary", "l1_sides": "both", "balance": "argmax"},
    "released": {
        "alpha": 1e-2,
        "beta": 1e-4,
        "l1": "top-k",
        "l1_sides": "passages",
        "balance": "top-k",
        "distill_router": True,
        "distill_semantic": False,
    },
}
_TOKENIZER_KEYS = {"cls_id", "sep_id", "pad_id", "mask_id"}
# Lengths are checked once the backbone is known.
_ANY_BACKBONE = BackboneConfig(positions=MAX_SIZES["positions"])


@dataclass(frozen=True, slots=True)
class ModelPart:
    """[model]: the backbone and the settings of the model on it.

    >>> ModelPart("bert-base-uncased", {"router": "dynamic", "tau": 0.9}).config(BackboneConfig()).tau
    0.9
    """

    backbone: str
    settings: Mapping[str, Any]  # of ModelConfig
    route_function_words: bool = True  # in queries

    def config(self, backbone: BackboneConfig, **special: Any) -> ModelConfig:
        """Build the model config for a backbone; `special` has defaults for name and special token ids.

        Lengths are limited to the positions of the backbone.
        """
        whole = make(ModelConfig, {**special, **self.settings, "backbone": _ANY_BACKBONE}, "model.")
        query, document = (
            min(length, backbone.longest) for length in (whole.query_length, whole.document_length)
        )
        return replace(whole, backbone=backbone, query_length=query, document_length=document)

    def __post_init__(self) -> None:
        if not self.backbone:
            raise InputError("model.backbone is missing: name a folder or a model on the Hugging Face Hub")
        if "router" not in self.settings:
            raise InputError("model.router is missing: choose none, all_to_all, static, dynamic or sparse")
        if "backbone" in self.settings or "name" in self.settings:
            raise InputError("unknown key model.name: write the name at the top of the file")
        self.config(_ANY_BACKBONE)

    @property
    def router(self) -> str:
        return str(self.settings["router"])

    def effective(self) -> dict[str, Any]:
        """All values, given or default."""
        values = asdict(self.config(_ANY_BACKBONE))
        hidden = {"backbone", "name"} | (_TOKENIZER_KEYS - set(self.settings))
        own: dict[str, Any] = {"backbone": self.backbone}
        if not self.route_function_words:  # the fingerprint of other runs must not change
            own["route_function_words"] = False
        return own | {name: value for name, value in values.items() if name not in hidden}


@dataclass(frozen=True, slots=True)
class DataPart:
    """[data]: files of queries, passages, negatives and teacher scores, and how batches are drawn.

    >>> DataPart(folder="data", kinds={"heading": 0.3}).group
    8
    """

    format: str = "pairs"
    folder: str = ""
    passages: str = ""
    pairs: str = ""
    collection: str = ""
    queries: str = ""
    qrels: str = ""
    triples: str = ""
    negatives: str = ""  # JSONL of `citadel mine`
    scores: str = ""  # JSONL of `citadel score`
    group: int = 8  # G: passages per query, including the positive
    query_length: int = 32  # tokens, including special ones
    passage_length: int = 128
    kinds: Mapping[str, float] = field(default_factory=dict)  # kind of query → weight; 0 leaves it out
    sources: Mapping[str, float] = field(default_factory=dict)  # source of the positive → weight
    crops: float = 0.0  # share of queries replaced by a sentence of their positive
    # Mined passages that score above the positive − margin count as false negatives.
    margin: float = -math.inf
    held_out: bool = True
    max_pairs: int = 0
    cache: str = ""  # folder of the data cache; "": no cache

    def __post_init__(self) -> None:
        one_of("data.format", self.format, FORMATS)
        _weights("data.kinds", self.kinds)
        _weights("data.sources", self.sources)
        within("data.group", self.group, 1, 1 << 16)
        within("data.query_length", self.query_length, 3, 1 << 20)
        within("data.passage_length", self.passage_length, 3, 1 << 20)
        within("data.crops", self.crops, 0, 1)
        within("data.max_pairs", self.max_pairs, 0, math.inf)


@dataclass(frozen=True, slots=True)
class LossPart:
    """[loss]: weights of the loss terms; `preset` sets defaults.

    >>> LossPart(distillation="kl").soft_label
    1.0
    """

    preset: str = ""
    alpha: float = 1e-2  # of load balancing
    beta: float = 1e-5  # of L1
    l1: str = "vocabulary"
    l1_sides: str = "both"
    balance: str = "argmax"
    router_contrastive: float = 1.0
    hard_label: float = 1.0
    soft_label: float = 1.0
    distillation: str = "none"
    teacher: str = ""  # sentence encoder that scores every passage of each batch
    teachers: Mapping[str, float] = field(default_factory=dict)  # further encoders → factor of their cosine
    bm25: float = 0.0  # factor of BM25 over tokens in the teacher's logits
    anchor: float = 0.0  # weight of KL between the semantic score and the teacher
    teacher_temperature: float = 1.0  # teacher scores are divided by it
    temperature: float = 1.0  # student scores are divided by it
    distill_router: bool = False
    distill_semantic: bool = True  # include the semantic score in distillation
    flops_query: float = 0.0
    flops_passage: float = 0.0
    prune: float = 0.0  # share of the steps over which pruning rises to τ; 0: none
    ramp: float = 0.0  # share of the steps over which regularisers ramp up
    ramp_power: int = 1

    def __post_init__(self) -> None:
        one_of("loss.preset", self.preset, tuple(PRESETS))
        one_of("loss.l1", self.l1, ("vocabulary", "top-k"))
        one_of("loss.l1_sides", self.l1_sides, ("both", "passages"))
        one_of("loss.balance", self.balance, ("argmax", "top-k"))
        one_of("loss.distillation", self.distillation, ("none", "kl", "margin-mse"))
        above("loss.temperature", self.temperature)
        above("loss.teacher_temperature", self.teacher_temperature)
        within("loss.ramp", self.ramp, 0, 1)
        within("loss.prune", self.prune, 0, 1)
        within("loss.ramp_power", self.ramp_power, 1, 8)
        if self.teacher and self.distillation == "none" and not self.anchor:
            raise InputError("loss.teacher is not used: set loss.distillation to 'kl', or loss.anchor")
        _weights("loss.teachers", self.teachers)
        if not self.teacher and (self.bm25 or self.anchor or self.teachers):
            reason = "loss.bm25, loss.anchor and loss.teachers need loss.teacher"
            raise InputError(f"{reason}: name the folder of a sentence encoder")
        if self.teacher in self.teachers:
            raise InputError(
                f"loss.teachers names loss.teacher again: {self.teacher!r}; give other sentence encoders"
            )
        weights = (
            "alpha",
            "beta",
            "router_contrastive",
            "hard_label",
            "soft_label",
            "flops_query",
            "flops_passage",
        )
        for name in (*weights, "bm25", "anchor"):
            within(f"loss.{name}", getattr(self, name), 0, math.inf)


@dataclass(frozen=True, slots=True)
class OffsetPart:
    """[offset]: the fit of `model.document_offset` after training; see `train/offset.py`.

    >>> OffsetPart(steps=2000).on
    True
    """

    steps: int = 0  # 0: off
    passages: int = 32_768
    stubs: int = 8192  # texts of boilerplate to draw
    neighbours: int = 512  # passages of a collection
    quantile: float = 0.02  # boilerplate shall score below this quantile of a collection …
    margin: float = 1.0  # … minus this
    keep: float = 1.0  # weight of the squared offsets of passages, and of short ones
    keep_titles: float = 0.02  # the same for titles and other short texts about something
    fragments: float = 6.0  # weight of single words and first words of other passages
    lr: float = 3e-3
    weight_decay: float = 0.3

    @property
    def on(self) -> bool:
        return self.steps > 0

    def __post_init__(self) -> None:
        for name in ("steps", "margin", "keep", "keep_titles", "fragments", "weight_decay"):
            within(f"offset.{name}", getattr(self, name), 0, math.inf)
        for name in ("passages", "stubs", "neighbours"):
            within(f"offset.{name}", getattr(self, name), 1, math.inf)
        within("offset.quantile", self.quantile, 0, 1)
        above("offset.lr", self.lr)


@dataclass(frozen=True, slots=True)
class RouterPart:
    """[router]: initialisation of the heads, which keeps the router from collapsing.

    >>> RouterPart(semantic_start="zero")
    Traceback (most recent call last):
    citadel.errors.InputError: router.semantic_start is 'zero': choose one of 'random', 'identity', 'pca'
    """

    warm_up_steps: int = 0  # of masked-token prediction, the head alone
    warm_up_lr: float = 1e-3
    warm_up_batch: int = 256
    warm_up_masked: float = 0.15  # share of tokens to predict behind [MASK] …
    warm_up_shown: float = 0.05  # … and visible; more of them start keys closer to the token itself
    active_keys: int = 8  # initial number of active keys per token; 0: no shift
    semantic_start: str = "random"
    semantic_scale: float = 1.0
    token_start: str = "random"  # noqa: S105 - an option, not a secret
    token_scale: float = 1.0

    def __post_init__(self) -> None:
        one_of("router.semantic_start", self.semantic_start, ("random", "identity", "pca"))
        one_of("router.token_start", self.token_start, ("random", "pca"))
        within("router.warm_up_steps", self.warm_up_steps, 0, math.inf)
        within("router.warm_up_batch", self.warm_up_batch, 1, math.inf)
        within("router.active_keys", self.active_keys, 0, 1 << 16)
        above("router.warm_up_lr", self.warm_up_lr)
        for name in ("warm_up_masked", "warm_up_shown"):
            within(f"router.{name}", getattr(self, name), 0, 1)
        if not 0 < self.warm_up_masked + self.warm_up_shown <= 1:
            raise InputError("router.warm_up_masked + router.warm_up_shown must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class OptimizerPart:
    """[optimizer]: AdamW, its schedule and its batches.

    >>> OptimizerPart(epochs=2.0, batch=4).total_steps(examples=10)
    5
    """

    lr: float = 2e-5
    head_lr: float = 0.0  # 0: as lr
    semantic_lr: float = 0.0  # 0: as head_lr
    weight_decay: float = 0.01
    clip: float = 1.0
    warm_up: float = 0.1  # share of the steps, or their number from 1 up
    steps: int = 0
    epochs: float = 0.0
    batch: int = 128  # queries per forward pass, over all processes
    accumulate: int = 1  # forward passes per step
    cache: int = 0  # gradient caching: passages per micro-batch; 0: off
    average: float = 0.0  # share of the last steps whose weights are averaged
    frozen: int = 0  # number of frozen layers from the bottom, with the embeddings

    def __post_init__(self) -> None:
        if (self.steps > 0 and self.epochs > 0) or self.steps < 0 or self.epochs < 0:
            raise InputError("optimizer.steps and optimizer.epochs: give one of them, above 0")
        above("optimizer.lr", self.lr)
        for name in ("head_lr", "semantic_lr", "weight_decay", "average"):
            within(f"optimizer.{name}", getattr(self, name), 0, 1)
        for name, low in (
            ("clip", 0),
            ("warm_up", 0),
            ("batch", 1),
            ("accumulate", 1),
            ("cache", 0),
            ("frozen", 0),
        ):
            within(f"optimizer.{name}", getattr(self, name), low, math.inf)

    def total_steps(self, examples: int) -> int:
        """Number of steps for an epoch of this many examples."""
        if not self.epochs:
            return self.steps
        return max(1, math.ceil(self.epochs * examples / (self.batch * self.accumulate)))

    def rate(self, name: str) -> float:
        """Peak learning rate of a tensor, by its name.

        >>> part = OptimizerPart(steps=1, lr=2e-5, head_lr=2e-4, semantic_lr=1e-5)
        >>> [part.rate(name) for name in ("layers.0.attention.qkv.weight", "router.bias", "semantic.weight")]
        [2e-05, 0.0002, 1e-05]
        """
        heads = self.head_lr or self.lr
        if name.startswith("semantic."):
            return self.semantic_lr or heads
        return heads if name.startswith(("token.", "router.")) else self.lr

    def warm_up_steps(self, total: int) -> int:
        """Number of warm-up steps of the learning rate."""
        return round(self.warm_up * total) if self.warm_up < 1 else int(self.warm_up)


@dataclass(frozen=True, slots=True)
class RunPart:
    """[run]: logging, evaluation, checkpoints and device.

    >>> RunPart().precision
    'auto'
    """

    log_every: int = 50
    evaluate_every: int = 0
    evaluate_queries: int = 0  # 0: all held-out queries
    evaluate_passages: int = 0  # searched, besides the positives; 0: all
    evaluate_at_end: bool = True
    checkpoint_every: int = 0
    precision: str = "auto"  # bf16 on CUDA, else fp32
    compile: bool = False
    packed: bool = False  # encode without padding, on a GPU
    groups: int = 4  # passages are encoded in this many groups by length, to reduce padding
    device: str = "auto"

    def __post_init__(self) -> None:
        one_of("run.precision", self.precision, ("auto", "bf16", "fp32"))
        every = ("log_every", "evaluate_every", "evaluate_queries", "evaluate_passages", "checkpoint_every")
        for name in every:
            within(f"run.{name}", getattr(self, name), 0, math.inf)
        within("run.groups", self.groups, 1, 1 << 10)


def one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    """Raise unless a value is one of the options."""
    if value not in options:
        raise InputError(
            f"{name} is {value!r}: choose one of {', '.join(repr(option) for option in options)}"
        )


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise unless a number is within the limits."""
    if not low <= value <= high:
        limit = f"from {low} to {high}" if math.isfinite(high) else f"of {low} or more"
        raise InputError(f"{name} is {value}: give a number {limit}")


def above(name: str, value: float) -> None:
    """Raise unless a number is above 0 and finite."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value}: give a number above 0")


def _weights(name: str, table: object) -> None:
    if not isinstance(table, Mapping):
        raise InputError(f"{name} is {table!r}, not a table of names and weights")
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InputError(f"{name}.{key} is {value!r}: give a weight of 0 or more")
