"""Rankers for mining: the engine with BM25 or an exported model, or a torch model with exact search."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.errors import EmptyQueryError, UsageError
from citadel.progress import Meter, silent
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.ragged import Rows
from citadel.train.source import SourceData
from citadel.train.texts import TextStore
from citadel.train.token_cache import cached_tokens
from citadel.train.tokens import check_vocabulary, load_tokenizer, special_tokens

if TYPE_CHECKING:
    from citadel.api import Index
    from citadel.bench.exact import ExactSearch
    from citadel.model.citadel import Citadel
    from citadel.types import Hit

SCORES_PER_BATCH = {"cuda": 1 << 29, "cpu": 1 << 24}
DEPTH_FACTOR = 2  # search DEPTH_FACTOR · k deep, to score more positives


class RankedPassages(NamedTuple):
    """Ranking for one pair: passages, best first, and the score of the positive (−∞ if not ranked)."""

    passages: Rows  # [≤ k]
    scores: NDArray[np.float32]  # [≤ k]
    positive: float


class Ranker(Protocol):
    """Ranks all passages for pairs of a query and its positive."""

    def rank(self, query: Rows, positive: Rows, k: int) -> Iterator[RankedPassages]: ...


class EngineRanker:
    """The index engine, with the collection in a temporary index."""

    def __init__(self, source: SourceData, model: str, threads: int | None = None, meter: Meter = silent):
        from citadel.api import Index

        self._queries = source.queries
        self._folder = tempfile.TemporaryDirectory(prefix="citadel-mine-")
        self._index: Index = Index.create(Path(self._folder.name, "index"), model=model, threads=threads)
        with meter("Indexing", "passages", len(source.passages)) as progress:
            self._index.add(_documents(source.passages.texts, progress))
            self._index.commit()
        self._searcher = self._index.searcher(threads=threads)

    def rank(self, query: Rows, positive: Rows, k: int, step: int = 1024) -> Iterator[RankedPassages]:
        for start in range(0, len(query), step):
            texts = self._queries.some(query[start : start + step].tolist())
            rankings = self._search(texts, DEPTH_FACTOR * k)
            for hits, target in zip(rankings, positive[start : start + step].tolist(), strict=True):
                rows = np.array([int(hit.id) for hit in hits], np.int64)
                scores = np.array([hit.score for hit in hits], np.float32)
                own = float(scores[rows == target].max(initial=-np.inf))
                yield RankedPassages(rows[:k], scores[:k], own)

    def _search(self, texts: Sequence[str], k: int) -> list[Sequence[Hit]]:
        """The hits of each query; none for a query without words."""
        try:
            return [hits for _, hits in self._searcher.search_batch(texts, k)]
        except EmptyQueryError:
            if len(texts) == 1:
                return [[]]
        return [hits for text in texts for hits in self._search([text], k)]

    def close(self) -> None:
        """Remove the temporary index."""
        self._index.close()
        self._folder.cleanup()


class TorchRanker:
    """A torch model: all texts are encoded once, then searched exactly in chunks of queries."""

    def __init__(
        self, source: SourceData, model: Citadel, folder: str, part: DataPart, meter: Meter = silent
    ):
        from citadel.bench.exact import ExactSearch
        from citadel.bench.exact import RoutedRows as Flat
        from citadel.model.encoder import TorchEncoder
        from citadel.train.inputs import Marker

        tokenizer = load_tokenizer(folder)
        check_vocabulary(tokenizer, model.config.backbone.vocabulary, folder)
        self._device = model.embeddings.word.device
        encoder = TorchEncoder(
            model,
            Marker(model.config, punctuation_ids(tokenizer.get_vocab()), self._device),
            special_tokens(tokenizer, folder).pad,
            model.config.tau,
        )
        sides = []
        for noun, texts, length in (
            ("passages", source.passages.texts, min(part.passage_length, model.config.document_length)),
            ("queries", source.queries, min(part.query_length, model.config.query_length)),
        ):
            table = cached_tokens(expand(part.cache), texts, tokenizer, length, meter, noun)
            with meter("Encoding", noun, len(texts)) as progress:
                sides.append(encoder.encode(table, query=noun == "queries", progress=progress))
        floor = model.config.router in ("static", "dynamic")
        self.search: ExactSearch = ExactSearch(Flat(*sides[0]), floor)
        self._queries = sides[1]

    def rank(self, query: Rows, positive: Rows, k: int) -> Iterator[RankedPassages]:
        import torch

        from citadel.bench.exact import RoutedRows as Flat
        from citadel.bench.exact import best

        step = max(1, SCORES_PER_BATCH.get(self._device.type, 1 << 24) // self.search.count)
        for start in range(0, len(query), step):
            chosen = torch.from_numpy(query[start : start + step]).to(self._device)
            answers = torch.from_numpy(positive[start : start + step]).to(self._device)
            scores = self.search.scores(Flat(*self._queries.pick(chosen)))  # [B, N]
            own = scores.gather(1, answers[:, None])[:, 0].tolist()
            values, numbers = (column.cpu().numpy() for column in best(scores, k, self.search.count))
            for row, score in enumerate(own):
                valid = numbers[row] >= 0
                yield RankedPassages(numbers[row][valid], values[row][valid].astype(np.float32), float(score))

    def close(self) -> None:
        """Do nothing: there is no temporary index."""


def find_ranker(
    model: str,
    source: SourceData,
    part: DataPart,
    device: str = "auto",
    threads: int | None = None,
    meter: Meter = silent,
) -> EngineRanker | TorchRanker:
    """Make a ranker for bm25, dense:FOLDER, an exported model or a checkpoint.

    BM25 and, on a CPU, exported models run in the engine; everything else runs in torch.
    """
    if model == "bm25":
        return EngineRanker(source, "bm25", threads, meter)
    model = expand(model)
    dense = model.removeprefix("dense:")
    exported = Path(model, "model.onnx").is_file()
    if dense == model and exported and not _wants_cuda(device):
        return EngineRanker(source, model, threads, meter)
    try:
        from citadel.model.checkpoint import load_model
        from citadel.model.encoder import dense_model, find_device
    except ModuleNotFoundError as error:
        raise UsageError(
            f"mining with {model} needs {error.name}: run `pip install 'citadel-ir[train]'`"
        ) from None
    target = find_device(device)
    loaded, folder = dense_model(dense) if dense != model else (load_model(model), model)
    return TorchRanker(source, loaded.to(target).eval(), folder, part, meter)


def _wants_cuda(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()


def punctuation_ids(vocabulary: dict[str, int]) -> list[int]:
    """Ids of the tokens that consist of punctuation only.

    >>> punctuation_ids({"a": 5, ".": 6, "##,": 7})
    [6, 7]
    """
    from citadel.encode.tokenizer import is_punctuation

    return sorted(id for token, id in vocabulary.items() if is_punctuation(token))


def _documents(texts: TextStore, progress: Callable[[int], Any]) -> Iterator[dict[str, str]]:
    for row in range(len(texts)):
        progress(row)
        yield {"id": str(row), "text": texts[row]}
