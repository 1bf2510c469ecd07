"""Systems to measure: a text encoder, and the variants in which it is indexed and searched."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from citadel.encode.config import ModelConfig
from citadel.encode.locate import BM25, DEFAULT, find_model
from citadel.encode.pruning import taken
from citadel.encode.session import ONNX_FILE
from citadel.encode.tokenizer import Encoding, Tokenizer
from citadel.errors import InputError, UsageError
from citadel.settings import RESIDUAL_BITS, Field
from citadel.types import RoutedTokens

SWEEP_TAUS, SWEEP_CODECS = (0.5, 0.7, 0.9, 1.1, 1.3, 1.5), ("int8", "fp16", "pq2", "pq1")


class MeasuredEncoder(Protocol):
    """An exported model (`encode.Encoder`) or a checkpoint (`TorchTexts`)."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def device(self) -> str: ...

    def route_documents(self, texts: Sequence[Encoding]) -> list[RoutedTokens]: ...
    def encode_queries(self, texts: Sequence[str]) -> list[RoutedTokens]: ...


class Variant(NamedTuple):
    """One way to index and search texts that are encoded once.

    >>> Variant(tau=0.9).label
    'tau0.9-int8-auto'
    """

    tau: float = 0.0
    codec: str = "int8"
    semantic: str = "auto"

    @property
    def label(self) -> str:
        return f"tau{self.tau:g}-{self.codec}-{self.semantic}"


@dataclass(frozen=True)
class SystemSpec:
    """What to measure: a model and its variants."""

    model: str
    name: str = ""
    taus: tuple[float, ...] = ()  # empty: the model's own
    codecs: tuple[str, ...] = ("int8",)
    semantic: tuple[str, ...] = ("auto",)
    k: int = 100
    engine: str = "auto"
    device: str = "auto"
    threads: int | None = None
    timed: int = 0  # number of queries to time one by one

    @classmethod
    def sweep(cls, model: str, name: str, tau: float, **others: Any) -> SystemSpec:
        """The variants of Figure 4 and Tables 4 and 5: τ, codec and semantic vector varied one at a time.

        >>> SystemSpec.sweep("runs/citadel", "CITADEL", tau=1.05).taus
        (1.05, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)
        """
        return cls(
            model, name, tuple(dict.fromkeys((tau, *SWEEP_TAUS))), SWEEP_CODECS, ("auto", "off"), **others
        )

    def variants(self, config: ModelConfig | None) -> list[Variant]:
        """The default variant first, then each with one setting changed.

        >>> spec = SystemSpec("m", taus=(0.5, 0.9), codecs=("int8", "pq2"))
        >>> [each.label for each in spec.variants(ModelConfig("dynamic", tau=0.9))]
        ['tau0.9-int8-auto', 'tau0.5-int8-auto', 'tau0.9-pq2-auto']
        """
        if config is None:
            return [Variant(codec="tf", semantic="off")]
        taus = self.taus or (config.tau,)
        if self.taus and config.router != "dynamic":
            raise UsageError(
                f"--tau prunes the weights of a dynamic router; this model's router is {config.router}"
            )
        for codec in self.codecs:
            router_of(config, codec)  # refuses residual codecs of other models before anything is encoded
        base = Variant(config.tau if config.tau in taus else taus[0], self.codecs[0], self.semantic[0])
        others = [base._replace(tau=tau) for tau in taus] + [
            base._replace(codec=codec) for codec in self.codecs
        ]
        return list(dict.fromkeys([base, *others, *(base._replace(semantic=mode) for mode in self.semantic)]))


def router_of(config: ModelConfig, codec: str) -> str:
    """Return the router of an index for a model: residual codes need the one of centroids.

    >>> router_of(ModelConfig("all_to_all"), "residual2"), router_of(ModelConfig("all_to_all"), "int8")
    ('centroid', 'all_to_all')
    """
    if codec not in RESIDUAL_BITS:
        return config.router
    if config.router != "all_to_all":
        raise UsageError(f"--codec {codec} compares all tokens; this model's router is {config.router}")
    return "centroid"


def fields_of(config: ModelConfig, codec: str) -> dict[str, Field]:
    """Return the fields of an index for a model.

    >>> fields_of(ModelConfig("sparse", token_dimension=0, semantic_dimension=0), "int8")
    {'lexical': Field(dimension=0, codec='int8')}
    """
    named = {"semantic": Field(config.semantic_dimension, "int8")} if config.has_semantic else {}
    if config.router == "none":
        return named
    return {"lexical": Field(config.token_dimension, codec if config.token_dimension else "int8"), **named}


def load_system(spec: SystemSpec) -> MeasuredEncoder | None:
    """Load the encoder of a model without pruning (τ is applied later); None for bm25."""
    if spec.model == BM25:
        return None
    folder = find_model(spec.model) if spec.model == DEFAULT else spec.model
    if not os.path.isdir(folder):
        raise InputError("no such model: name an exported folder, a checkpoint, default or bm25", spec.model)
    exported = Path(folder, ONNX_FILE).is_file() and importlib.util.find_spec("onnxruntime") is not None
    if exported and spec.engine != "torch":
        from citadel.encode.encoder import Encoder

        return Encoder(folder, spec.threads, tau=0.0)
    try:
        from citadel.model.texts import TorchTexts
    except ModuleNotFoundError as error:
        raise UsageError(f"a checkpoint needs {error.name}: run `pip install 'citadel-ir[train]'`") from None
    return TorchTexts(folder, spec.device, tau=0.0)


def pruned(text: RoutedTokens, tau: float) -> RoutedTokens:
    """Keep the rows of a document with a weight above τ."""
    kept = text.weights > tau
    return text if kept.all() else taken(text, kept)


def described(config: ModelConfig | None, variant: Variant, k: int, engine: str) -> dict[str, Any]:
    """Return the settings of a measurement."""
    router = BM25 if config is None else router_of(config, variant.codec)
    return {"router": router, **variant._asdict(), "semantic_codec": "int8", "k": k, "engine": engine}


def config_dict(config: ModelConfig | None) -> dict[str, Any]:
    """A model's config as a dictionary."""
    return {} if config is None else asdict(config)
