"""Create an index: choose its settings and write the first, empty generation."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from citadel.encode.locate import chosen_model, model_name
from citadel.errors import InputError, UsageError
from citadel.index.failures import resource_errors
from citadel.index.folder_lock import LOCK
from citadel.index.garbage import PREFIXES, unfinished
from citadel.index.manifest import Build, Manifest, generations, newest_manifest, write_manifest
from citadel.index.storage import TEMPORARY, AnyPath, Storage
from citadel.settings import (
    DEFAULT_ANALYSER,
    Field,
    Settings,
    WordSettings,
    long_documents,
    text_settings,
    vector_settings,
)
from citadel.text.analyser import get_analyser
from citadel.text.parse import shorten

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder


def create_index(
    storage: Storage,
    settings: Settings,
    overwrite: bool = False,
    build: Build | None = None,
    graphs: bool = True,
) -> None:
    """Write the first, empty generation; `overwrite` replaces an existing index."""
    with resource_errors(storage.location), contextlib.ExitStack() as stack:
        _refuse_foreign(storage)  # before the lock, which creates a file
        storage.make()
        stack.callback(storage.lock().release)
        numbers = generations(storage)
        if numbers and not overwrite:
            newest_manifest(storage)
            raise UsageError(
                f"{storage.location}: there is an index already; open it, or pass overwrite to replace it"
            )
        number = (numbers[-1] if numbers else 0) + 1
        manifest = Manifest(uuid.uuid4().hex, number, settings, build=build, graphs=graphs)
        storage.remove(manifest.name + TEMPORARY)  # left by a writer that died or ran out of space
        write_manifest(storage, manifest)


def _refuse_foreign(storage: Storage) -> None:
    """Raise InputError when the folder holds files that are not part of an index."""
    names = storage.names()
    foreign = [name for name in names if not name.startswith((".", *PREFIXES)) and not _is_index_file(name)]
    if foreign and not generations(storage):
        raise InputError(
            f"the folder holds {shorten(foreign[0])} and is not an index: name a new or an empty folder",
            storage.location,
        )


def _is_index_file(name: str) -> bool:
    return name == LOCK or unfinished(name)


class NewIndexOptions(NamedTuple):
    """The arguments of `Index.create` that determine the settings."""

    model: AnyPath | None = None
    router: str | None = None
    fields: Mapping[str, Field | Mapping[str, Any] | int] | None = None
    fingerprint: str | None = None
    tau: float | None = None
    codec: str | None = None
    semantic_codec: str | None = None
    analyser: str | None = None
    k1: float | None = None
    b: float | None = None
    threads: int | None = None
    long: str | None = None
    chunk_tokens: int | None = None
    chunk_overlap: int | None = None
    hybrid: bool = False


def new_index_settings(options: NewIndexOptions) -> tuple[Settings, str | None, Encoder | None]:
    """Settings of a new index; with a model also its name and the loaded encoder."""
    bm25_options = _bm25_options(options)
    router, tau, codecs = options.router, options.tau, (options.codec, options.semantic_codec)
    words = _word_settings(bm25_options) if options.hybrid else None
    if (model := text_encoder(options)) is not None:
        encoder = load_encoder(model, tau, options.threads)
        settings = encoder.index_settings(model_name(model), router, tau, *codecs)
        long = (options.long, options.chunk_tokens, options.chunk_overlap)
        split = long_documents(*long, encoder.tokenizer.window)
        return replace(settings, long=split, words=words), model, encoder
    if words is not None:
        raise UsageError("hybrid adds BM25 lists to those of a model: name a model that is not bm25, or none")
    if (options.long, options.chunk_tokens, options.chunk_overlap) != (None, None, None):
        raise UsageError("long, chunk_tokens and chunk_overlap go with a model; bm25 reads whole texts")
    if codecs != (None, None):
        raise UsageError("codec and semantic_codec go with a model: a field of given vectors names its own")
    if options.fields is not None:
        return vector_settings(options.fields, router, options.fingerprint, tau), None, None
    analyser = get_analyser(options.analyser or DEFAULT_ANALYSER)
    return text_settings(analyser.fingerprint, router, tau, **bm25_options), None, None


def text_encoder(options: NewIndexOptions) -> str | None:
    """The model that encodes text, "default" or a path; None for BM25 and for given vectors.

    >>> text_encoder(NewIndexOptions(model="default")), text_encoder(NewIndexOptions(k1=1.2))
    ('default', None)
    """
    if options.fields is not None:
        return None
    return chosen_model(options.model, options.router, {} if options.hybrid else _bm25_options(options))


def _bm25_options(options: NewIndexOptions) -> dict[str, Any]:
    given = {"analyser": options.analyser, "k1": options.k1, "b": options.b}
    return {name: value for name, value in given.items() if value is not None}


def _word_settings(bm25_options: dict[str, Any]) -> WordSettings:
    analyser = get_analyser(bm25_options.get("analyser", DEFAULT_ANALYSER))
    return WordSettings(analyser.fingerprint, **{"analyser": analyser.name} | bm25_options)


def load_encoder(model: AnyPath, tau: float | None, threads: int | None) -> Encoder:
    """Load a model; imported late because it needs onnxruntime."""
    from citadel.encode.encoder import Encoder

    return Encoder(model, threads, tau=tau)
