"""`citadel demo`: index the documentation of Python's standard library and search it."""

from citadel.demo.passages import passages
from citadel.demo.show import run_demo

__all__ = ["passages", "run_demo"]
