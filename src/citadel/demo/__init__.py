"""The demonstration: an index of the documentation of the installed Python's own library, and three questions to it."""

from citadel.demo.passages import passages
from citadel.demo.show import run_demo

__all__ = ["passages", "run_demo"]
