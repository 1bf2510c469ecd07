"""What the arguments of `Index.create` mean: the settings of an index for text, for a model, for given vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from citadel.config import Field, Settings
from citadel.encode.locate import model_name
from citadel.errors import UsageError
from citadel.routing import get_router
from citadel.text.analyser import get_analyser

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder


def model_settings(
    named: str, encoder: Encoder, router: str | None, tau: float | None, codec: str | None, semantic_codec: str | None
) -> Settings:
    """An index whose text goes through a model: fields and router are the model's."""
    config = encoder.config
    if router not in (None, config.router):
        raise UsageError(f"the model's router is {config.router}, not {router}: leave router out")
    _check_tau(tau, config.router)
    lexical = None if config.router == "none" else Field(config.token_dimension, codec or "int8")
    semantic = Field(config.semantic_dimension, semantic_codec or "int8") if config.has_semantic else None
    kept = encoder.tau if config.router == "dynamic" else 0.0
    return Settings(config.router, encoder.fingerprint, lexical, semantic, kept, model=model_name(named))


def _check_tau(tau: float | None, router: str) -> None:
    if tau is not None and not (router == "dynamic" and 0 <= tau < 5.1):
        raise UsageError(f"τ = {tau:g} cannot be used: it is a number from 0 to 5.1, for the dynamic router only")


def text_settings(
    router: str | None, tau: float | None, analyser: str = "english", k1: float = 0.9, b: float = 0.4
) -> Settings:
    """An index of terms, ranked by BM25.

    >>> text_settings(None, None).router
    'bm25'
    """
    _check_tau(tau, "bm25")
    if router not in (None, "bm25"):
        raise UsageError(f"router {router!r} needs vectors: create the index with fields=… and use add_vectors")
    get_router("bm25", k1=k1, b=b)  # refuses parameters out of range
    return Settings("bm25", get_analyser(analyser).fingerprint, analyser=analyser, k1=k1, b=b)


def vector_settings(
    fields: Mapping[str, Field | Mapping[str, Any] | int],
    router: str | None,
    fingerprint: str | None,
    tau: float | None,
) -> Settings:
    """An index of given vectors; `fields` are named lexical and semantic.

    >>> vector_settings({"lexical": 32}, None, "my-model", tau=0.9).lexical
    Field(dimension=32, codec='int8')
    """
    if unknown := set(fields) - {"lexical", "semantic"}:
        raise UsageError(f"unknown field {min(unknown)!r}: an index has a lexical and a semantic field")
    if not fingerprint:
        raise UsageError("an index of given vectors needs fingerprint=…, a name for the model that made them")
    lexical, semantic = (_field(fields[name]) if name in fields else None for name in ("lexical", "semantic"))
    if router is None:
        router = "dynamic" if lexical else "none"
    if router == "bm25" or (router == "none") != (lexical is None):
        raise UsageError(f"router {router!r} does not go with the fields {', '.join(fields) or 'given'}")
    if lexical is not None and (lexical.dimension == 0) != (router == "sparse"):
        raise UsageError(
            f"router {router!r} with a lexical field of dimension {lexical.dimension}: only sparse has dimension 0"
        )
    _check_tau(tau, router)
    return Settings(router, fingerprint, lexical, semantic, tau or 0.0)


def _field(given: Field | Mapping[str, Any] | int) -> Field:
    if isinstance(given, Field):
        return given
    if isinstance(given, int):
        return Field(given)
    try:
        return Field(**given)
    except TypeError as error:
        raise UsageError(f"a field is a dimension or has dimension and codec, not {given!r}") from error
