"""`citadel score`: a teacher scores the positive and the hard negatives of each query."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from citadel.errors import InputError, UsageError
from citadel.files import write_whole
from citadel.progress import Meter, silent
from citadel.text.parse import find_id, parse_object
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.data_files import checked
from citadel.train.negatives import DIGITS
from citadel.train.ragged import RaggedBuilder, Rows
from citadel.train.source import ErrorLocation, Passages, numbered_lines
from citadel.train.texts import TextStore, rows_or_fail
from citadel.train.tokens import load_tokenizer, tokenize

if TYPE_CHECKING:
    import torch

KINDS = ("cross", "dense")
TOKENS_PER_BATCH = {"cuda": 1 << 16, "cpu": 1 << 12}


class ScoringGroup(NamedTuple):
    """One line to score: a query and its passages, the positive first."""

    query: str
    rows: Rows


class ScoringGroups:
    """All lines to score, on disk."""

    def __init__(self, groups: Iterable[ScoringGroup]) -> None:
        self._queries, rows = TextStore(), RaggedBuilder(np.int64)
        for group in groups:
            self._queries.append(group.query)
            rows.add(group.rows)
        self._rows = rows.done()

    def __len__(self) -> int:
        return len(self._queries)

    def __getitem__(self, part: slice) -> list[ScoringGroup]:
        return [ScoringGroup(self._queries[row], self._rows[row]) for row in range(*part.indices(len(self)))]


class Teacher(Protocol):
    """Scores queries with passages, some lines at a time."""

    lines: int

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[float]]: ...


def score_negatives(
    teacher: str,
    passages: Passages,
    negatives: str,
    out: str | os.PathLike[str],
    kind: str = "cross",
    keep: int = 32,
    part: DataPart | None = None,
    device: str = "auto",
    meter: Meter = silent,
    fuse: float = 0.0,
) -> int:
    """Write a teacher's scores for each line of a mined file; return the number of lines.

    `fuse` is the weight of BM25 in the scores.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of teacher {kind!r}: choose one of {', '.join(KINDS)}")
    if keep < 2:
        raise UsageError(f"--keep {keep} leaves no negative: keep at least 2 passages per query")
    groups = ScoringGroups(read_groups(checked(negatives, "--negatives"), passages, keep))
    judge = find_teacher(teacher, kind, passages, part or DataPart(), device)
    if fuse:
        from citadel.train.bm25_teacher import Bm25, FusedTeacher

        judge = FusedTeacher(judge, Bm25(passages.texts, meter), fuse)
    write_whole(os.fspath(out), scored_lines(judge, groups, passages, meter))
    return len(groups)


def read_groups(file: str, passages: Passages, keep: int) -> Iterator[ScoringGroup]:
    """Read the lines of a mined file, each with the rows of up to `keep` passages."""
    location = ErrorLocation(file)
    for number, line in numbered_lines(file):
        with location.at(number):
            fields = parse_object(line)
            listed = fields.get("negatives")
            if (
                not isinstance(fields.get("query"), str)
                or "positive" not in fields
                or not isinstance(listed, list)
            ):
                raise InputError("query, positive or negatives is missing: name a file of `citadel mine`")
            ids = [find_id({"id": id}) for id in [fields["positive"], *listed[: keep - 1]]]
        yield ScoringGroup(fields["query"], rows_or_fail(passages.ids, ids, [number] * len(ids), file))


def scored_lines(
    teacher: Teacher,
    groups: ScoringGroups | Sequence[ScoringGroup],
    passages: Passages,
    meter: Meter = silent,
) -> Iterator[str]:
    """Yield the lines of the scored file, in the order of the groups."""
    ids = passages.ids.texts
    with meter("Scoring", "queries", len(groups)) as progress:
        for start in range(0, len(groups), teacher.lines):
            chunk = groups[start : start + teacher.lines]
            for group, scores in zip(chunk, teacher.score(chunk), strict=True):
                names = ids.some(group.rows.tolist())
                values = [float(f"{score:.{DIGITS}g}") for score in scores]
                line = {"query": group.query, "positive": names[0], "passages": names, "scores": values}
                yield json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
            progress(start + len(chunk))


def find_teacher(name: str, kind: str, passages: Passages, part: DataPart, device: str) -> Teacher:
    """Load a teacher by name onto a device."""
    try:
        from citadel.model.encoder import find_device
    except ModuleNotFoundError as error:
        raise UsageError(f"scoring needs {error.name}: run `pip install 'citadel-ir[train]'`") from None
    where = find_device(device)
    return (CrossTeacher if kind == "cross" else DenseTeacher)(expand(name), passages.texts, part, where)


class DenseTeacher:
    """A sentence encoder: the cosine of two texts. Passages are encoded on first use and kept."""

    lines = 4096

    def __init__(self, name: str, texts: TextStore, part: DataPart, device: torch.device) -> None:
        from citadel.model.encoder import TorchEncoder, dense_model
        from citadel.train.inputs import Marker

        model, folder = dense_model(name)
        self._tokenizer = load_tokenizer(folder)
        self._encoder = TorchEncoder(model.to(device), Marker(model.config, [], device), model.config.pad_id)
        longest = model.config.backbone.longest
        self._query_length, self._passage_length = (
            min(part.query_length, longest),
            min(part.passage_length, longest),
        )
        self._texts = texts
        self._known = np.zeros(len(texts), bool)  # [P]: whether a passage is encoded
        # Memory is allocated lazily, as rows are written.
        self._vectors = np.zeros((len(texts), model.config.semantic_dimension), np.float32)

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[float]]:
        rows = np.concatenate([group.rows for group in groups])  # [lines · G]
        self._encode_passages(np.unique(rows[~self._known[rows]]))
        texts = [group.query for group in groups]
        queries = self._encode(texts, self._query_length, query=True)  # [lines, s]
        sizes = [len(group.rows) for group in groups]
        scores = np.einsum("ps,ps->p", self._vectors[rows], np.repeat(queries, sizes, axis=0))
        return [part.tolist() for part in np.split(scores, np.cumsum(sizes)[:-1])]

    def _encode_passages(self, rows: Rows) -> None:
        if len(rows):
            self._vectors[rows] = self._encode(self._texts.some(rows.tolist()), self._passage_length)
            self._known[rows] = True

    def _encode(self, texts: list[str], length: int, query: bool = False) -> Any:
        table = tokenize(texts, self._tokenizer, length)
        encoded = self._encoder.encode(table, query=query)
        assert encoded.semantic is not None
        return encoded.semantic.cpu().numpy()


class CrossTeacher:
    """A cross-encoder of transformers: one score for a query and a passage read together."""

    lines = 256

    def __init__(self, name: str, texts: TextStore, part: DataPart, device: torch.device) -> None:
        from citadel.model.load import find_folder

        folder = find_folder(name)
        self._model = _load_cross(str(folder)).to(device).eval()
        self._tokenizer = load_tokenizer(folder)
        self._tokenizer.no_padding()
        longest = int(getattr(self._model.config, "max_position_embeddings", 512))
        self._tokenizer.enable_truncation(
            min(part.query_length + part.passage_length, longest), strategy="longest_first"
        )
        self._texts, self._device = texts, device

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[float]]:
        from citadel.model.encoder import batches

        texts = [(group.query, self._texts[row]) for group in groups for row in group.rows.tolist()]
        encoded = self._tokenizer.encode_batch_fast(texts)
        lengths = np.array([len(each.ids) for each in encoded])
        scores = np.empty(len(texts), np.float32)
        for chosen in batches(lengths, TOKENS_PER_BATCH.get(self._device.type, 1 << 14)):
            scores[chosen] = self._forward([encoded[index] for index in chosen.tolist()])
        ends = np.cumsum([len(group.rows) for group in groups])
        return [part.tolist() for part in np.split(scores, ends[:-1])]

    def _forward(self, encoded: list[Any]) -> Any:
        import torch

        columns = (("input_ids", "ids"), ("attention_mask", "attention_mask"), ("token_type_ids", "type_ids"))
        width = max(len(each.ids) for each in encoded)
        inputs = {}
        for name, column in columns:
            rows = [getattr(each, column) + [0] * (width - len(each.ids)) for each in encoded]
            inputs[name] = torch.tensor(rows, device=self._device)
        if getattr(self._model.config, "type_vocab_size", 0) < 2:
            del inputs["token_type_ids"]
        cuda = self._device.type == "cuda"
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=cuda):
            logits = self._model(**inputs).logits.float()  # [n, labels]
        scores = logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, 0]
        return scores.cpu().numpy()


def _load_cross(folder: str) -> Any:
    try:
        from transformers import AutoModelForSequenceClassification
        from transformers.utils import logging
    except ImportError:
        raise UsageError(
            "a cross-encoder needs transformers: run `pip install 'citadel-ir[train]'`"
        ) from None
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # missing tensors are an error, below
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    load: Callable[..., Any] = AutoModelForSequenceClassification.from_pretrained
    try:
        model, info = load(folder, use_safetensors=True, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise InputError(
            f"cannot be loaded as a cross-encoder ({reason}): name another teacher", folder
        ) from None
    if missing := sorted(info["missing_keys"]):  # transformers would fill them with random numbers
        raise InputError(
            f"is not a trained cross-encoder ({missing[0]} is missing): name another teacher", folder
        )
    if model.config.num_labels > 2:
        raise InputError(
            f"has {model.config.num_labels} outputs: name a teacher with one output, or two (no, yes)", folder
        )
    return model
