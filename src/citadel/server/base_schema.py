"""Base classes of the request and response models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """Strict parsing: no coercion, unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ResponseModel(BaseModel):
    """Base of all responses. Used for the OpenAPI document only; responses are not validated."""

    model_config = ConfigDict(extra="forbid")


def example(**fields: Any) -> dict[str, Any]:
    """The example of a model in the OpenAPI document.

    >>> example(k=3)
    {'examples': [{'k': 3}]}
    """
    return {"examples": [fields]}
