"""The model card, README.md of a model folder."""

from __future__ import annotations

from citadel.encode.config import ModelConfig

_TITLES = {
    "all_to_all": "every query token against every document token (ColBERT)",
    "dynamic": "tokens under the keys the model activates most (CITADEL)",
    "none": "one vector per text (DPR)",
    "sparse": "weighted keys, no vectors (SPLADE)",
    "static": "tokens under their own ids (COIL)",
}
_UNKNOWN_DATA = "The training data is unknown; describe it in the checkpoint's `card.md` and export again."


def model_card(config: ModelConfig, precision: str, note: str = "") -> str:
    """Render the README.md of a model folder.

    >>> print(model_card(ModelConfig("dynamic", name="mine", tau=0.9), "int8", "Trained on our manuals."))
    # mine
    <BLANKLINE>
    A model for citadel, router `dynamic`: tokens under the keys the model activates most (CITADEL).
    ...
    """
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(config, precision))
    return f"""# {config.name or "a citadel model"}

A model for citadel, router `{config.router}`: {_TITLES[config.router]}.

| | |
| --- | --- |
{rows}

    citadel index CORPUS INDEX --model THIS-FOLDER
    citadel search INDEX "a question"

## Training data

{note.strip() or _UNKNOWN_DATA}
"""


def _rows(config: ModelConfig, precision: str) -> list[tuple[str, str]]:
    shape = config.backbone
    keys = f"{config.query_keys} per query token, {config.document_keys} per document token"
    size = f"{shape.layers} layers × {shape.hidden}, {shape.heads} heads, {shape.vocabulary:,} tokens"
    rows = {
        "backbone": size,
        "precision": precision,
        "token vectors": str(config.token_dimension or "none"),
        "semantic vector": f"{config.semantic_dimension}, {config.pooling} pooling"
        if config.has_semantic
        else "none",
        "keys": keys if config.router == "dynamic" else "",
        "τ": f"{config.tau:g}" if config.router == "dynamic" else "",
        "postings per key and document": f"at most {config.key_postings}" if config.key_postings else "",
        "lengths": f"queries {config.query_length} tokens, documents {config.document_length}",
    }
    return [(name, value) for name, value in rows.items() if value]
