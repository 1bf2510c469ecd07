"""Write ColBERT, SPLADE and DPR models as folders that sentence-transformers loads."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Library
from tokenizers import processors
from torch import Tensor

from citadel.encode.config import ModelConfig
from citadel.encode.tokenizer import TOKENIZER_FILE, Tokenizer
from citadel.errors import InputError
from citadel.model.backbone_format import backbone_config, backbone_tensors
from citadel.model.checkpoint import WEIGHTS, load_model
from citadel.model.export import CARD
from citadel.model.importer.source import MODULES, ROUTES, SETTINGS
from citadel.model.importer.tokens import PROBES

ROUTERS = ("all_to_all", "none", "sparse")
_LIBRARY = "sentence_transformers."
_IDENTITY, _TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
_CLASSES = {
    "Transformer": "base.modules.transformer",
    "Dense": "base.modules.dense",
    "Normalize": "base.modules.normalize",
    "Router": "base.modules.router",
    "Pooling": "sentence_transformer.modules.pooling",
    "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask",
    "SpladePooling": "sparse_encoder.modules.splade_pooling",
    "SparseStaticEmbedding": "sparse_encoder.modules.sparse_static_embedding",
}
_TYPES = {"all_to_all": "MultiVectorEncoder", "none": "SentenceTransformer", "sparse": "SparseEncoder"}
_BOTH = ("query", "document")


@dataclass
class _Part:
    """A module: its class, its config and its tensors."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def export_sentence_transformers(
    checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], overwrite: bool = False
) -> Path:
    """Write a checkpoint or model folder in the layout of sentence-transformers, atomically, in fp32."""
    target = Path(out)
    if target.exists() and not overwrite:
        raise InputError("already exists: name another folder, or pass --overwrite", str(target))
    if target.exists() and not (target / MODULES).is_file():
        raise InputError("holds something other than a model: name another folder", str(target))
    model = load_model(checkpoint)
    writer = _Writer(Path(checkpoint), model.config, model.state_dict())
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        temporary.mkdir(parents=True)
        writer.write(temporary)
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return target


class _Writer:
    """Writer of one folder."""

    def __init__(self, source: Path, config: ModelConfig, state: dict[str, Tensor]) -> None:
        self._source, self._config, self._state = source, config, state
        self._where = str(source)
        self._tokenizer = Tokenizer(source, config)
        self._library = Library.from_file(str(source / TOKENIZER_FILE))
        self._library.no_truncation()
        self._library.no_padding()
        self._require_expressible()
        names = ("cls", "sep", "pad", "mask")
        self._special = {name: self._token(getattr(config, f"{name}_id")) for name in names}
        self._library.add_special_tokens(list(dict.fromkeys(self._special.values())))

    def _require_expressible(self) -> None:
        config = self._config
        if config.router not in ROUTERS:
            raise InputError(
                f"sentence-transformers has no models with the router {config.router}: only "
                f"{', '.join(ROUTERS)} can be exported to it",
                self._where,
            )
        if config.router != "none" and config.has_semantic:
            raise InputError(
                "sentence-transformers has no models with keys and a semantic vector", self._where
            )
        if 0 < config.query_length < config.query_padding:
            raise InputError(
                f"queries of {config.query_length} tokens that are padded to {config.query_padding} cannot "
                "be exported: sentence-transformers reads as many as it pads to",
                self._where,
            )

    def write(self, folder: Path) -> None:
        """Write all files."""
        config = self._config
        prompts = {
            "query": self._prompt(config.query_prompt),
            "document": self._prompt(config.document_prompt),
        }
        if config.static_queries:
            self._write_routes(folder)
        else:
            parts = [_Part("Transformer", {}, {}), *self._parts()]
            self._write_backbone(folder)
            paths = ["", *(f"{number}_{part.kind}" for number, part in enumerate(parts[1:], 1))]
            for path, part in zip(paths[1:], parts[1:], strict=True):
                _write_part(folder / path, part)
            _write_modules(folder, [part.kind for part in parts], paths)
        similarity = "cosine" if config.normalize_semantic else "dot"
        settings = {
            "__version__": {"sentence_transformers": "6.0.0"},
            "model_type": _TYPES[config.router],
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "maxsim" if config.router == "all_to_all" else similarity,
        }
        _write_json(folder / SETTINGS, settings)
        (folder / "README.md").write_text(self._card(), encoding="utf-8")

    def _card(self) -> str:
        path = self._source / CARD
        note = path.read_text(encoding="utf-8") if path.is_file() else ""
        return (
            f"# {self._config.name or 'a citadel model'}\n\nExported from citadel.\n\n{note}".strip() + "\n"
        )

    def _write_backbone(self, folder: Path) -> None:
        """The Transformer module: weights, config, tokenizer and lengths."""
        config = self._config
        head = config.router == "sparse"
        tensors = backbone_tensors(config.backbone, self._state, head, self._where)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        _write_json(folder / "config.json", backbone_config(config, head, self._where))
        self._write_tokenizer(folder, config.backbone.longest)
        own: dict[str, Any] = {
            "transformer_task": "fill-mask" if head else "feature-extraction",
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "logits" if head else "last_hidden_state"}
            },
            "module_output_name": "token_embeddings",
            "document_length": config.document_length,
        }
        if not config.static_queries:
            own["query_length"] = config.query_length
        if config.query_padding:
            own["query_expansion"] = {
                "strategy": "fixed" if config.query_length == config.query_padding else "min",
                "attend": config.attend_padding,
                "token": self._special["mask"],
                "length": config.query_padding,
            }
        _write_json(folder / "sentence_bert_config.json", own)

    def _write_routes(self, folder: Path) -> None:
        """A Router: stored weights for queries, the model for documents."""
        queries = _Part("SparseStaticEmbedding", {"frozen": False}, {"weight": self._state["query.weight"]})
        documents = [_Part("Transformer", {}, {}), *self._parts()]
        names = [f"document_{number}_{part.kind}" for number, part in enumerate(documents)]
        for name, part in zip(names, documents, strict=True):
            if part.kind == "Transformer":
                (folder / name).mkdir()
                self._write_backbone(folder / name)
            else:
                _write_part(folder / name, part)
        first = f"query_0_{queries.kind}"
        _write_part(folder / first, queries)
        self._write_tokenizer(folder / first, self._config.query_length - 2)
        routes = {
            "types": {name: _class(part.kind) for name, part in zip(names, documents, strict=True)}
            | {first: _class(queries.kind)},
            "structure": {"query": [first], "document": names},
            "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
        }
        _write_json(folder / ROUTES, routes)
        _write_modules(folder, ["Router"], [""])

    def _write_tokenizer(self, folder: Path, longest: int) -> None:
        special, config = self._special, self._config
        self._library.post_processor = processors.TemplateProcessing(
            single=[special["cls"], "$A", special["sep"]],
            pair=[special["cls"], "$A", special["sep"], "$B", special["sep"]],
            special_tokens=[(special["cls"], config.cls_id), (special["sep"], config.sep_id)],
        )
        self._library.save(str(folder / TOKENIZER_FILE))
        unknown = getattr(self._library.model, "unk_token", None)
        settings: dict[str, Any] = {f"{name}_token": token for name, token in special.items()}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
        _write_json(folder / "tokenizer_config.json", settings | ({"unk_token": unknown} if unknown else {}))

    def _parts(self) -> list[_Part]:
        """The modules after the Transformer."""
        config = self._config
        if config.router == "none":
            return self._dense_parts()
        if config.router == "sparse":
            activation = "relu" if config.sparse_activation == "log" else "log1p_relu"
            pooling = {"pooling_strategy": config.sparse_pooling, "activation_function": activation}
            return [*self._masks(), _Part("SpladePooling", pooling, {})]
        masks = self._masks() or [_mask([], ["document"])]
        return [*self._projection("token", "", "token_embeddings"), *masks, _normalize("token_embeddings")]

    def _dense_parts(self) -> list[_Part]:
        config = self._config
        pooling = {
            "embedding_dimension": config.backbone.hidden,
            "pooling_mode": config.pooling,
            "include_prompt": True,
        }
        parts = [_Part("Pooling", pooling, {})]
        parts += [_normalize("sentence_embedding")] if config.normalize_pooled else []
        parts += self._projection("semantic", config.semantic_activation, "sentence_embedding")
        return parts + ([_normalize("sentence_embedding")] if config.normalize_semantic else [])

    def _projection(self, name: str, activation: str, feature: str) -> list[_Part]:
        """A Dense module, or none if the projection is the identity."""
        weight, bias = self._state[f"{name}.weight"], self._state[f"{name}.bias"]
        is_square = weight.shape[0] == weight.shape[1]
        if not activation and is_square and torch.equal(weight, torch.eye(len(weight))) and not bias.any():
            return []
        config = {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": _TANH if activation else _IDENTITY,
            "module_input_name": feature,
            "module_output_name": feature,
        }
        return [_Part("Dense", config, {"linear.weight": weight, "linear.bias": bias})]

    def _masks(self) -> list[_Part]:
        """Modules that hide the tokens which have no vectors or keys, in queries, documents or both."""
        documents = {*self._tokenizer.unrouted(query=False)}
        # Stored weights count no special tokens by themselves.
        queries = documents if self._config.static_queries else {*self._tokenizer.unrouted(query=True)}
        parts = [(queries & documents, [*_BOTH]), (queries - documents, ["query"])]
        parts.append((documents - queries, ["document"]))
        return [_mask([self._token(i) for i in sorted(ids)], tasks) for ids, tasks in parts if ids]

    def _token(self, number: int) -> str:
        token = self._library.id_to_token(number)
        if token is None:
            raise InputError(f"the tokenizer has no token {number}: export the model again", self._where)
        return str(token)

    def _prompt(self, ids: tuple[int, ...]) -> str:
        """The text that a tokenizer reads as these ids, whatever follows."""
        if not ids:
            return ""
        plain = f"{self._library.decode(list(ids), skip_special_tokens=False)} "
        if self._reads_as(plain, ids):
            return plain
        names = [self._token(number) for number in ids]
        self._library.add_special_tokens(names)  # a marker such as [unused0] becomes one token
        marked = "".join(names) + " "
        if self._reads_as(marked, ids):
            return marked
        raise InputError(
            f"the prompt {plain[:60]!r} cannot be written as text: export it from the source", self._where
        )

    def _reads_as(self, text: str, ids: tuple[int, ...]) -> bool:
        def encoded(part: str) -> list[int]:
            return list(self._library.encode(part, add_special_tokens=False).ids)

        return all(encoded(text + probe) == [*ids, *encoded(probe)] for probe in PROBES)


def _mask(words: list[str], tasks: list[str]) -> _Part:
    return _Part(
        "MultiVectorMask", {"skiplist_words": words, "skiplist_tasks": tasks, "keep_only_token_ids": None}, {}
    )


def _normalize(feature: str) -> _Part:
    return _Part("Normalize", {"module_input_name": feature, "module_output_name": feature}, {})


def _class(kind: str) -> str:
    return f"{_LIBRARY}{_CLASSES[kind]}.{kind}"


def _write_part(folder: Path, part: _Part) -> None:
    folder.mkdir()
    _write_json(folder / "config.json", part.config)
    if part.tensors:
        tensors = {name: tensor.contiguous() for name, tensor in part.tensors.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _write_modules(folder: Path, kinds: list[str], paths: list[str]) -> None:
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _class(kind)}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    _write_json(folder / MODULES, modules)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
