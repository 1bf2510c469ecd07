"""The `config.json` of a model folder: shape, router, lengths and τ."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from citadel.encode.model_files import MAX_CONFIG, read_model_file
from citadel.errors import InputError
from citadel.settings import MAX_DIMENSION, ROUTERS

FORMAT = 1
CONFIG_FILE = "config.json"
POOLINGS = ("cls", "mean", "max")
ACTIVATIONS = ("", "tanh")  # of the semantic vector
WITH_TOKEN_VECTORS = ("all_to_all", "dynamic", "static")
WITH_ROUTER_HEAD = ("dynamic", "sparse")
# Written only where they differ from the default: the fingerprint of older models must not change.
ADDED_LATER = (
    "semantic_activation",
    "normalize_semantic",
    "query_prompt",
    "document_prompt",
    "route_cls",
    "skipped_tokens",
    "attend_padding",
    "sparse_pooling",
    "sparse_activation",
    "static_queries",
    "unrouted_query_tokens",
    "document_offset",
    "key_margin",
    "space",
)
BACKBONE_ADDED_LATER = (
    "architecture",
    "relative_buckets",
    "rotary_base",
    "local_rotary_base",
    "local_window",
    "full_every",
)
ARCHITECTURES = ("bert", "mpnet", "modernbert")
SPARSE_POOLINGS = ("max", "sum")
SPARSE_ACTIVATIONS = ("log", "log log")  # log(1 + relu(z)), once or twice
MAX_OFFSET = 4096  # hidden units
USUAL_LENGTH = 3.0  # logarithm of the number of tokens that counts as 0 for the offset of a document
SPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name, or the fingerprint of a model

MAX_SIZES = {
    "vocabulary": 1 << 20,
    "hidden": 1 << 14,
    "layers": 256,
    "heads": 1024,
    "intermediate": 1 << 16,
    "positions": 1 << 16,
}

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """The shape of an encoder: BERT, MPNet (relative positions) or ModernBERT (rotary positions, GeGLU).

    >>> BackboneConfig(hidden=384, layers=12, heads=12, intermediate=1536).head_dimension
    32
    """

    vocabulary: int = 30_522
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 512  # rows of the position table
    position_offset: int = 0  # row of the first token: 0 for BERT, 2 for RoBERTa
    epsilon: float = 1e-12
    activation: str = "gelu"
    architecture: str = "bert"
    relative_buckets: int = 0  # MPNet: classes of distances, each with a bias per head
    rotary_base: float = 0.0  # ModernBERT: of layers with full attention
    local_rotary_base: float = 0.0  # of the others
    local_window: int = 0  # tokens on each side that a token of a local layer attends to
    full_every: int = 0  # layers 0, n, 2n, … have full attention

    def is_local(self, layer: int) -> bool:
        """Whether tokens of a layer attend only to their neighbours.

        >>> shape = BackboneConfig(architecture="modernbert", rotary_base=160_000.0, full_every=3)
        >>> [shape.is_local(layer) for layer in range(4)]
        [False, True, True, False]
        """
        return self.full_every > 0 and layer % self.full_every > 0

    @property
    def head_dimension(self) -> int:
        return self.hidden // self.heads

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text."""
        return self.positions - self.position_offset


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Configuration of a model: backbone, heads, text lengths and routing.

    >>> ModelConfig(router="dynamic").has_router_head
    True
    >>> ModelConfig(router="none", token_dimension=0, semantic_dimension=768).has_token_vectors
    False
    """

    router: str
    backbone: BackboneConfig = BackboneConfig()
    name: str = ""
    token_dimension: int = 32  # 0: no token vectors
    semantic_dimension: int = 128  # 0: no semantic vector
    pooling: str = "cls"
    normalize_pooled: bool = False  # scale the pooled state to length 1 before its projection
    query_keys: int = 1  # K
    document_keys: int = 5  # L
    tau: float = 0.0  # default τ: document weights must be above it
    key_postings: int = 0  # max postings per document and key, by weight; 0: no limit
    query_length: int = 64  # tokens, including special ones
    document_length: int = 512
    query_padding: int = 0  # ColBERT: pad queries with [MASK] to this many tokens
    route_separator: bool = True  # [SEP] has keys; [CLS] never does
    route_punctuation: bool = True
    cls_id: int = 101
    sep_id: int = 102
    pad_id: int = 0
    mask_id: int = 103
    semantic_activation: str = ""  # after the projection of the pooled state
    normalize_semantic: bool = False  # scale the semantic vector to length 1
    query_prompt: tuple[int, ...] = ()  # ids between [CLS] and the text: ColBERT's [Q], "query: "
    document_prompt: tuple[int, ...] = ()
    route_cls: bool = False  # [CLS] is scored
    skipped_tokens: tuple[int, ...] = ()  # ids that are not scored in documents: ColBERT's skip list
    attend_padding: bool = True  # text attends to the [MASK] tokens of query_padding
    sparse_pooling: str = "max"  # over the tokens of a text; "sum": the first SPLADE
    sparse_activation: str = "log"
    static_queries: bool = False  # the weight of a query's token is stored (IDF), and no model is run
    unrouted_query_tokens: tuple[int, ...] = ()  # ids without keys in queries: function words
    # Hidden units of a document's offset, which lowers its semantic score with every query; 0: none.
    document_offset: int = 0
    # Share of the greatest error of an estimated key that documents allow for; below 1, a few keys are lost
    # (encode/key_bounds.py).
    key_margin: float = 1.0
    # Models of one space have the same keys and comparable vectors; "": a space of its own.
    space: str = ""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise InputError(f"invalid model config: {problem}")

    @property
    def has_token_vectors(self) -> bool:
        return self.token_dimension > 0

    @property
    def has_semantic(self) -> bool:
        return self.semantic_dimension > 0

    @property
    def has_router_head(self) -> bool:
        return self.router in WITH_ROUTER_HEAD

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json` into a model folder."""
        defaults = {field.name: field.default for field in fields(self)}
        values = {
            name: value
            for name, value in asdict(self).items()
            if name not in ADDED_LATER or value != defaults[name]
        }
        shape = {field.name: field.default for field in fields(self.backbone)}
        values["backbone"] = {
            name: value
            for name, value in values["backbone"].items()
            if name not in BACKBONE_ADDED_LATER or value != shape[name]
        }
        text = json.dumps({"format": FORMAT, **values}, indent=1) + "\n"
        with open(os.path.join(folder, CONFIG_FILE), "w", encoding="utf-8") as file:
            file.write(text)


def load_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Read and check the `config.json` of a model folder.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> ModelConfig(router="static", tau=0.0).save(folder)
    >>> load_config(folder).router
    'static'
    """
    path = os.path.join(folder, CONFIG_FILE)
    if not os.path.lexists(path):
        raise InputError("there is no model here: name a folder made by `citadel export`", path)
    try:
        data = json.loads(read_model_file(path, MAX_CONFIG))
    except RecursionError:
        raise InputError("cannot be read as JSON (nested too deeply): export the model again", path) from None
    except ValueError as error:
        raise InputError(f"cannot be read as JSON ({error}): export the model again", path) from None
    try:
        config = parse_config(data)
        _require_bounded(config)
        return config
    except InputError as error:
        raise InputError(f"{error.reason}; export the model again", path) from None


def parse_config(data: Any) -> ModelConfig:
    """Make a ModelConfig from parsed JSON; an unknown or missing key is an error."""
    if not isinstance(data, dict) or "router" not in data:
        raise InputError("this is not a citadel model's config: it names no router")
    if data.get("format") != FORMAT:
        raise InputError(f"the model has format {data.get('format')!r}, this version reads format {FORMAT}")
    rest = {name: value for name, value in data.items() if name != "format"}
    backbone = make(BackboneConfig, rest.pop("backbone", {}), "backbone.")
    return make(ModelConfig, rest | {"backbone": backbone})


def make(kind: type[Part], given: Any, prefix: str = "") -> Part:
    """Make a dataclass from a mapping; unknown keys and wrong types are errors."""
    if not isinstance(given, Mapping):
        raise InputError(f"{prefix.rstrip('.') or 'the config'} is not a table of names and values")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in known:
            raise InputError(f"unknown key {(prefix + name)[:60]!r}: known are {', '.join(known)}")
        wanted = str(known[name].type)
        if not _fits(value, wanted):
            raise InputError(f"{prefix + name} is {str(value)[:60]!r}, not of type {wanted}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _fits(value: object, wanted: str) -> bool:
    """Whether a value from JSON or TOML has the annotated type."""
    if wanted == "tuple[int, ...]":
        return isinstance(value, list | tuple) and all(_fits(number, "int") for number in value)
    if wanted in ("int", "float", "str", "bool"):
        number = isinstance(value, int) and not isinstance(value, bool)
        return {
            "int": number,
            "float": number or isinstance(value, float),
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
        }[wanted]
    return True  # a nested dataclass, already checked


def _require_bounded(config: ModelConfig) -> None:
    """Reject a stored model with invalid sizes or special tokens; an untrained config may lack them."""
    special = (config.cls_id, config.sep_id)
    if (
        not 0 <= min(special) <= max(special) < config.backbone.vocabulary
        or min(config.pad_id, config.mask_id) < 0
    ):
        raise InputError(
            f"the special tokens must be from 0 to the vocabulary's {config.backbone.vocabulary}"
        )
    for name in ("query_prompt", "document_prompt", "skipped_tokens", "unrouted_query_tokens"):
        ids = getattr(config, name)
        if ids and not 0 <= min(ids) <= max(ids) < config.backbone.vocabulary:
            raise InputError(f"{name} has ids beyond the vocabulary's {config.backbone.vocabulary}")
    for name, limit in MAX_SIZES.items():
        if not 0 < getattr(config.backbone, name) <= limit:
            raise InputError(f"backbone.{name} is {getattr(config.backbone, name)}, not from 1 to {limit:,}")


def _problem(config: ModelConfig) -> str:
    """The first contradiction in a config, or "" if there is none."""
    backbone = config.backbone
    checks = {
        f"the router {config.router!r} is not for models": config.router not in ROUTERS
        or config.router == "bm25",
        f"the pooling {config.pooling!r} is not one of {', '.join(POOLINGS)}": config.pooling not in POOLINGS,
        f"semantic_activation {config.semantic_activation!r} is not tanh or empty": (
            config.semantic_activation not in ACTIVATIONS
        ),
        f"the router {config.router} needs token_dimension from 1 to {MAX_DIMENSION}, others have 0": (
            (config.router in WITH_TOKEN_VECTORS) != (0 < config.token_dimension <= MAX_DIMENSION)
        ),
        f"semantic_dimension is not from 0 to {MAX_DIMENSION}, or is 0 for the router none": (
            not 0 <= config.semantic_dimension <= MAX_DIMENSION
            or (config.router == "none" and not config.semantic_dimension)
        ),
        f"hidden {backbone.hidden} is not divisible by {backbone.heads} heads": (
            backbone.heads < 1 or backbone.hidden < 1 or backbone.hidden % backbone.heads != 0
        ),
        f"the activation {backbone.activation!r} is not gelu or relu": backbone.activation
        not in ("gelu", "relu"),
        f"a length is not from 3 to the backbone's {backbone.longest} tokens": not (
            3 + len(config.query_prompt)
            <= config.query_length
            <= backbone.longest + 2 * config.static_queries  # no model reads [CLS] and [SEP]
            and 3 + len(config.document_prompt) <= config.document_length <= backbone.longest
            and 0 <= config.query_padding <= backbone.longest
        ),
        f"query_keys and document_keys must be from 1 to the vocabulary's {backbone.vocabulary}": not (
            1 <= config.query_keys <= backbone.vocabulary and 1 <= config.document_keys <= backbone.vocabulary
        ),
        f"tau {config.tau} is not from 0 to 5.1": not 0 <= config.tau < 5.1,
        "key_postings must be 0 or more, and is for the dynamic router": (
            config.key_postings < 0 or (config.key_postings > 0 and config.router != "dynamic")
        ),
        f"route_cls is for the routers all_to_all and sparse, not {config.router}": (
            config.route_cls and config.router not in ("all_to_all", "sparse")
        ),
        "attend_padding = false is for the router all_to_all without a semantic vector": (
            not config.attend_padding and (config.router != "all_to_all" or config.has_semantic)
        ),
        f"document_offset {config.document_offset} is not from 0 to {MAX_OFFSET}, or above 0 without a "
        "semantic vector": (
            not 0 <= config.document_offset <= MAX_OFFSET
            or (config.document_offset > 0 and not config.has_semantic)
        ),
        f"key_margin {config.key_margin} is not above 0 and at most 1, or not 1 and for another router than "
        "dynamic": (
            not 0 < config.key_margin <= 1 or (config.key_margin != 1 and config.router != "dynamic")
        ),
        f"the space {config.space[:64]!r} is no name: give up to 64 letters, digits, '.', '_' and '-'": bool(
            config.space and not SPACE.fullmatch(config.space)
        ),
        **_sparse_problems(config),
        **_architecture_problems(backbone),
    }
    return next((problem for problem, failed in checks.items() if failed), "")


def _sparse_problems(config: ModelConfig) -> dict[str, bool]:
    """Contradictions of a sparse model, and whether they are present."""
    special = (config.sparse_pooling, config.sparse_activation, config.static_queries) != (
        "max",
        "log",
        False,
    )
    return {
        f"sparse_pooling {config.sparse_pooling!r} is not max or sum": (
            config.sparse_pooling not in SPARSE_POOLINGS
        ),
        f"sparse_activation {config.sparse_activation!r} is not 'log' or 'log log'": (
            config.sparse_activation not in SPARSE_ACTIVATIONS
        ),
        "sparse_pooling, sparse_activation and static_queries are for the router sparse": (
            special and config.router != "sparse"
        ),
        "static_queries is for a model without a semantic vector": (
            config.static_queries and config.has_semantic
        ),
    }


def _architecture_problems(backbone: BackboneConfig) -> dict[str, bool]:
    """Contradictions of an architecture, and whether they are present."""
    rotary = (backbone.rotary_base, backbone.local_rotary_base, backbone.local_window, backbone.full_every)
    is_modern = backbone.architecture == "modernbert"
    has_local = backbone.full_every > 1
    return {
        f"the architecture {backbone.architecture!r} is not one of {', '.join(ARCHITECTURES)}": (
            backbone.architecture not in ARCHITECTURES
        ),
        "relative_buckets is for mpnet, from 4 to 256 and a multiple of 4": (
            not (4 <= backbone.relative_buckets <= 256 and backbone.relative_buckets % 4 == 0)
            if backbone.architecture == "mpnet"
            else backbone.relative_buckets != 0
        ),
        "rotary_base, local_rotary_base, local_window and full_every are for modernbert": (
            not is_modern and any(rotary)
        ),
        "modernbert needs rotary_base and full_every, and an even head dimension": is_modern
        and (
            not 1 <= backbone.rotary_base <= 1e9 or backbone.full_every < 1 or backbone.head_dimension % 2 > 0
        ),
        "modernbert with full_every above 1 needs local_rotary_base and local_window": is_modern
        and has_local
        and (not 1 <= backbone.local_rotary_base <= 1e9 or backbone.local_window < 1),
    }
