"""Fit how much the semantic score of a document is lowered, so that boilerplate does not win short queries.

The vector of a text without a topic ("See also", "Page 3") is close to every query of one or two words. The
weights of the model stay as they are: the vectors of passages, short queries and boilerplate are computed
once, and the offset learns from them. In a collection of similar passages boilerplate shall score less than
nearly all of them, while passages keep their scores, short ones too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.model.citadel import Citadel, DocumentOffset
from citadel.model.encoder import TOKENS_PER_BATCH, batches, pad
from citadel.progress import Meter, silent
from citadel.train.config_tables import OffsetPart
from citadel.train.data import Data
from citadel.train.inputs import Marker
from citadel.train.short_texts import ShortTexts, Tokens
from citadel.train.stubs import draw_stub

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_STREAM = 2  # random stream of the seed, distinct from those of batches
_NEAR = 8192  # passages, of which the nearest to one of them are a collection
_QUERIES = 128  # per step
_OTHERS = 0.5  # share of the queries that are from passages outside the collection
_TEXTS = 256  # per step and kind
_SHORT = 24  # tokens of a short passage at most
_FRAGMENT_QUANTILE = 0.8  # unlike boilerplate, a fragment may be about the query


class Vectors(NamedTuple):
    """Semantic vectors of texts, without offset."""

    semantic: Tensor  # [n, s]
    lengths: Tensor  # [n, 1], in tokens

    def some(self, rows: Tensor) -> Vectors:
        """Select texts."""
        return Vectors(self.semantic[rows], self.lengths[rows])


@dataclass(frozen=True)
class Texts:
    """Texts that an offset is fitted on; query i is of one or two words of passage i."""

    passages: Vectors
    queries: Tensor  # [P, s]
    stubs: Vectors
    fragments: Vectors
    titles: Vectors  # the queries of the training pairs, as documents

    @property
    def short(self) -> Vectors:
        """The passages of few tokens."""
        return self.passages.some(torch.nonzero(self.passages.lengths[:, 0] <= _SHORT)[:, 0])


def fit_offset(
    model: Citadel,
    data: Data,
    marker: Marker,
    tokenizer: Tokenizer,
    part: OffsetPart,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    meter: Meter = silent,
) -> dict[str, float]:
    """Fit the offset of a model; return the mean offset of each kind of text and the terms of the loss."""
    assert model.offset is not None
    model.eval()
    texts = _texts(model, data, marker, tokenizer, part, np.random.default_rng((seed, _STREAM)), dtype, meter)
    mean = texts.queries.mean(0)  # [s]
    model.offset.direction.data.copy_(mean / (mean @ mean))  # all queries have a product near 1 with it
    generator = torch.Generator().manual_seed(seed)
    model.offset.start(generator)
    terms = fit(model.offset, texts, part, generator, meter)
    with torch.no_grad():
        kinds = {"passages": texts.passages, "titles": texts.titles, "stubs": texts.stubs}
        return terms | {
            f"offset of {kind}": float(model.offset.amount(*some).mean()) for kind, some in kinds.items()
        }


def fit(
    offset: DocumentOffset, texts: Texts, part: OffsetPart, generator: torch.Generator, meter: Meter = silent
) -> dict[str, float]:
    """Take the steps; return the terms of the loss, as means over the last tenth of them."""
    learned = [offset.inner.weight, offset.inner.bias, offset.length, offset.outer.weight, offset.outer.bias]
    for parameter in learned:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(learned, lr=part.lr, weight_decay=part.weight_decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, part.steps)
    short, sums, last = texts.short, dict[str, float](), part.steps - part.steps // 10
    with meter("Fitting the offset", "steps", part.steps) as progress:
        for step in range(part.steps):
            terms = _terms(offset, texts, short, part, generator)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(torch.stack(list(terms.values())).sum())
            optimizer.step()
            schedule.step()
            if step >= min(last, part.steps - 1):
                sums = {name: sums.get(name, 0.0) + float(term.detach()) for name, term in terms.items()}
            progress(step + 1)
    for parameter in learned:
        parameter.requires_grad_(False)
    return {name: value / max(1, part.steps - last) for name, value in sums.items()}


def _terms(
    offset: DocumentOffset, texts: Texts, short: Vectors, part: OffsetPart, generator: torch.Generator
) -> dict[str, Tensor]:
    """Terms of the loss for one collection, its queries, and texts that do not belong to it."""

    def draw(some: Vectors, count: int = _TEXTS) -> Vectors:
        return some.some(_rows(len(some.lengths), count, generator).to(some.lengths.device))

    rows = _collection(texts.passages.semantic, part.neighbours, generator)
    collection = texts.passages.some(rows)
    queries = texts.queries[_queries_of(rows, len(texts.queries), generator)]  # [B, s]
    scores = queries @ offset(*collection).T  # [B, D]

    def excess(some: Vectors, quantile: float, margin: float = 0.0) -> Tensor:
        limit = torch.quantile(scores, quantile, dim=1, keepdim=True) - margin  # [B, 1]
        return F.relu(queries @ offset(*some).T - limit).mean()

    def amount(some: Vectors) -> Tensor:
        return offset.amount(*some).square().mean()

    terms = {
        "stubs": excess(draw(texts.stubs), part.quantile, part.margin),
        "fragments": part.fragments * excess(draw(texts.fragments), _FRAGMENT_QUANTILE),
        "kept": part.keep * amount(collection),
        "kept titles": part.keep_titles * amount(draw(texts.titles)),
    }
    if len(short.lengths):
        terms["kept short"] = part.keep * amount(draw(short))
    return terms


def _queries_of(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows of queries: from a collection, and from other passages."""
    others = _rows(count, round(_QUERIES * _OTHERS), generator).to(rows.device)
    own = rows[_rows(len(rows), _QUERIES - len(others), generator).to(rows.device)]
    return torch.cat([own, others])


def _collection(passages: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Rows of the passages nearest to one of them, among some: what a collection of one topic looks like."""
    some = _rows(len(passages), _NEAR, generator).to(passages.device)
    near = passages[some] @ passages[some[0]]
    return some[near.topk(min(size, len(some))).indices]


def _rows(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Distinct random rows, in random order."""
    return torch.randperm(count, generator=generator)[:size]


def _texts(
    model: Citadel,
    data: Data,
    marker: Marker,
    tokenizer: Tokenizer,
    part: OffsetPart,
    rng: np.random.Generator,
    dtype: torch.dtype,
    meter: Meter,
) -> Texts:
    """Draw the texts and encode them."""

    def sample(count: int) -> list[int]:
        return [int(row) for row in rng.permutation(count)[: part.passages]]

    passages = [data.passages[row] for row in sample(len(data.passages))]
    words = ShortTexts(tokenizer, passages)
    queries = [words.query(passage, rng) for passage in passages]
    fragments = [words.fragment(passage, rng) for passage in passages]
    titles = [data.queries[row] for row in sample(len(data.queries))]
    drawn = sorted({draw_stub(rng) for _ in range(part.stubs)})
    stubs = [np.array(each.ids) for each in tokenizer.encode_batch(drawn)]
    encode = partial(_encode, model, marker, data.special.pad, dtype)
    total = sum(map(len, (passages, queries, fragments, titles, stubs)))
    with meter("Encoding for the offset", "texts", total) as progress:
        done = 0

        def vectors(texts: list[Tokens], query: bool = False) -> Vectors:
            nonlocal done
            encoded = encode(texts, query, lambda count: progress(done + count))
            done += len(texts)
            return encoded

        return Texts(
            vectors(passages),
            vectors(queries, True).semantic,
            vectors(stubs),
            vectors(fragments),
            vectors(titles),
        )


@torch.no_grad()
def _encode(
    model: Citadel,
    marker: Marker,
    pad_id: int,
    dtype: torch.dtype,
    texts: list[Tokens],
    query: bool,
    progress: Callable[[int], Any],
) -> Vectors:
    """Semantic vectors of texts given as token ids, without the offset of documents."""
    device = model.embeddings.word.device
    lengths = np.array([len(text) for text in texts], np.int64)
    semantic = torch.empty(len(texts), model.config.semantic_dimension, device=device)
    done = 0
    for chosen in batches(lengths, TOKENS_PER_BATCH.get(device.type, 1 << 14)):
        inputs = marker(*pad([texts[row] for row in chosen.tolist()], pad_id), query)
        hidden = model(inputs.ids, inputs.mask, dtype)
        vectors = model.semantic_vector(hidden, inputs.mask, query=True)  # a document's would have its offset
        assert vectors is not None
        semantic[torch.from_numpy(chosen).to(device)] = vectors.float()
        done += len(chosen)
        progress(done)
    return Vectors(semantic, torch.from_numpy(lengths)[:, None].to(device))
