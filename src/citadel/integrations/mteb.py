"""mteb: `CitadelSearch`, a model whose `index` and `search` are those of an index."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from citadel import __version__
from citadel.api import Index
from citadel.encode.locate import find_model
from citadel.errors import EmptyQueryError, UsageError
from citadel.index.create import NewIndexOptions, text_encoder
from citadel.integrations import MissingPackageError
from citadel.search.searcher import Searcher
from citadel.types import Document, Hit

try:
    from mteb.models.model_meta import ModelMeta
except ImportError as error:
    raise MissingPackageError("mteb", error) from None

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata

_ID = "mteb_id"  # metadata field for filters of reranking tasks


class CitadelSearch:
    """A retrieval model for `mteb.evaluate`: each task's corpus becomes an index.

    Indexes lie in `folder`, one per task, split and subset, or in temporary folders. `options` are those of
    `Index.create`: `model="bm25"`, or the folder of a model; the default is the installed model.

    >>> CitadelSearch(model="bm25").mteb_model_meta.name
    'citadel/bm25'
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self._folder, self._options = folder, options
        self._index: Index | None = None
        self._meta = _describe(options)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's card for results of mteb."""
        return self._meta

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Index a corpus with `id`, `text` and perhaps `title`, in place of an earlier one of its task."""
        if self._index is not None:
            self._index.close()
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="citadel-mteb-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        name = re.sub(r"[^\w.-]", "_", f"{task_metadata.name}-{hf_split}-{hf_subset}")
        self._index = Index.create(os.path.join(self._folder, name), overwrite=True, **self._options)
        self._index.add(map(_document, corpus))
        self._index.commit()

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, list[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Scores of the best documents by query; of reranking tasks those among `top_ranked`."""
        if self._index is None:
            raise UsageError("there is no index yet: call index with the corpus first")
        searcher = self._index.searcher()
        texts = {str(row["id"]): _query(row) for row in queries}
        if top_ranked is None:
            ranked = _search_all(searcher, texts, top_k)
        else:
            ranked = _search_among(searcher, texts, top_ranked, top_k)
        return {id: {hit.id: hit.score for hit in hits} for id, hits in ranked}


def _search_all(searcher: Searcher, texts: Mapping[str, str], k: int) -> Iterator[tuple[str, Sequence[Hit]]]:
    try:
        yield from searcher.search_batch(texts, k)
    except EmptyQueryError:  # a query of the task has no words: the others still count
        for id, text in texts.items():
            yield id, _search_one(searcher, text, k)


def _search_among(
    searcher: Searcher, texts: Mapping[str, str], candidates: Mapping[str, list[str]], k: int
) -> Iterator[tuple[str, Sequence[Hit]]]:
    for id, text in texts.items():
        yield id, _search_one(searcher, text, k, filter={_ID: {"$in": list(candidates.get(id, []))}})


def _search_one(searcher: Searcher, text: str, k: int, **options: Any) -> Sequence[Hit]:
    try:
        return searcher.search(text, k, **options)
    except EmptyQueryError:
        return []


def _document(row: Mapping[str, Any]) -> Document:
    id = str(row["id"])
    return Document(id, row.get("text") or "", row.get("title") or "", {_ID: id})


def _query(row: Mapping[str, Any]) -> str:
    """The text of a query with its instruction; the turns of a conversation are joined as mteb joins them."""
    text = row["text"]
    if not isinstance(text, str):
        turns = (turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text)
        text = "; ".join(turns)
    return f"{text} {row.get('instruction') or ''}".strip()


def _describe(options: Mapping[str, Any]) -> ModelMeta:
    chosen = {name: value for name, value in options.items() if name in NewIndexOptions._fields}
    model = text_encoder(NewIndexOptions(**chosen))
    is_bm25 = model is None
    name = "bm25" if model is None else os.path.basename(find_model(model))
    return ModelMeta(
        loader=None,
        name=f"citadel/{name}",
        revision=__version__,
        release_date=None,
        languages=None,
        n_parameters=None,
        memory_usage_mb=None,
        max_tokens=None,
        embed_dim=None,
        license=None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=[] if is_bm25 else ["ONNX"],
        similarity_fn_name=None,
        use_instructions=False,
        training_datasets=None,
        model_type=["sparse"] if is_bm25 else ["late-interaction"],
        experiment_kwargs={key: str(value) for key, value in options.items() if key != "model"} or None,
    )
