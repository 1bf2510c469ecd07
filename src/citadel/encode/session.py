"""Run a `model.onnx` with ONNX Runtime on the CPU, one core per run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.fused_rows import fused, library
from citadel.encode.graph_check import check_graph
from citadel.encode.huge_pages import prefer_large_pages
from citadel.encode.key_router import CHOSEN, shorten
from citadel.encode.model_files import MAX_GRAPH, read_model_file
from citadel.encode.onnx_file import OnnxFile
from citadel.errors import InputError, ResourceError
from citadel.forks import no_fork

ONNX_FILE = "model.onnx"
_NO_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate", "out of memory", "cannot allocate memory")
DOCUMENT_SEMANTIC = "document_semantic"  # the semantic vector of a document, if it differs from a query's
MASK = "attention_mask"  # an input if padding is not attended to, and of older graphs, which padded batches


class Session:
    """Runs batches. Thread-safe; each run stays on the core of its caller."""

    def __init__(self, contents: bytes, config: ModelConfig, path: str) -> None:
        check_graph(contents, config, path)
        import onnxruntime

        self._path = path
        file = OnnxFile(contents)
        try:
            faster = fused(file)
            try:
                self._start(onnxruntime, faster or file, config, library() if faster else "")
            except Exception:  # ONNX Runtime's errors have no narrower base class
                if faster is None:
                    raise
                self._start(onnxruntime, file, config, "")
        except Exception as error:
            raise_if_out_of_memory(error, path)
            raise InputError(f"cannot be run ({_first_line(error)}): export the model again", path) from None
        self._names = [output.name for output in self._session.get_outputs()]
        self._inputs = {given.name for given in self._session.get_inputs()}
        results = set(self._names)
        if self._router:
            results = results - {self._router.states} | CHOSEN
        wanted = input_names(config)
        if not wanted <= self._inputs <= wanted | {MASK} or results != output_names(config):
            raise InputError("this is not the graph that config.json describes: export the model again", path)
        prefer_large_pages()

    def _start(self, onnxruntime: Any, file: OnnxFile, config: ModelConfig, operators: str) -> None:
        """Start a session with a graph that may need a library of operators."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # shapes differ between batches
        options.log_severity_level = 4  # errors are raised as exceptions
        if operators:
            options.register_custom_ops_library(operators)
        short = shorten(file, config)
        self._router = short.router if short else None
        graph = short.graph if short else file.contents()
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(
        self,
        inputs: Mapping[str, NDArray[Any]],
        tau: float | None = None,
        routed: NDArray[np.bool_] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a batch of texts of one length; return the outputs by name.

        With τ, keys of a dynamic router whose weights do not exceed it may be missing, and with `routed`
        [n, T] those of other tokens.
        """
        given = dict(inputs)
        if MASK in self._inputs and MASK not in given:
            given[MASK] = np.ones_like(inputs["input_ids"])
        try:
            with no_fork:
                outputs = self._session.run(None, given)
            arrays = dict(zip(self._names, outputs, strict=True))
            if self._router:
                states, length = arrays.pop(self._router.states), inputs["input_ids"].shape[1]
                arrays |= self._router.choose(states, length, tau, routed)
        except Exception as error:
            raise ResourceError(
                f"{self._path}: a batch could not be encoded ({_first_line(error)})"
            ) from None
        return arrays


def input_names(config: ModelConfig) -> set[str]:
    """Names of the inputs of a model's graph.

    >>> sorted(input_names(ModelConfig("sparse", token_dimension=0, semantic_dimension=0)))
    ['input_ids', 'routed_mask']
    """
    names = {"routed_mask": config.router == "sparse", MASK: not config.attend_padding}
    return {"input_ids"} | {name for name, has in names.items() if has}


def output_names(config: ModelConfig) -> set[str]:
    """Names of the outputs of a model's graph.

    >>> sorted(output_names(ModelConfig("dynamic")))
    ['keys', 'semantic', 'vectors', 'weights']
    """
    routing = {"dynamic": CHOSEN, "sparse": {"activations"}}.get(config.router, set())
    heads = {
        "vectors": config.has_token_vectors,
        "semantic": config.has_semantic,
        DOCUMENT_SEMANTIC: config.document_offset > 0,
    }
    return routing | {name for name, has in heads.items() if has}


def read_model(path: str) -> bytes:
    """Read the bytes of a `model.onnx`."""
    return read_model_file(path, MAX_GRAPH)


def raise_if_out_of_memory(error: Exception, path: str) -> None:
    """Raise ResourceError if the error of a native library means out of memory."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        raise ResourceError(
            f"{path}: out of memory while the model is loaded; close other programs"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
