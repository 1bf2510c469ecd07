"""System names in tables, from the name of a folder or config."""

from __future__ import annotations

NAMES = {
    "bm25": "BM25",
    "splade": "SPLADE",
    "coil-tok": "COIL-tok",
    "coil-full": "COIL-full",
    "colbert": "ColBERT",
    "citadel-tok": "CITADEL-tok",
    "citadel": "CITADEL",
    "citadel-plus": "CITADEL+",
    "citadel-plus-noreg": "CITADEL+ w/o reg.",
    "splade-v2": "SPLADE-v2",
    "colbert-v2": "ColBERT-v2",
    "colbert-plaid": "ColBERT-PLAID",
    "cocondenser": "coCondenser",
}


def system_name(folder: str) -> str:
    """The paper's name of a model folder.

    >>> system_name("citadel-plus"), system_name("dpr-128"), system_name("mine")
    ('CITADEL+', 'DPR-128', 'mine')
    """
    return NAMES.get(folder.lower(), folder.upper() if folder.lower().startswith("dpr-") else folder)
