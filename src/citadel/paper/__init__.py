"""Reproduce the paper: measure every system, then build its tables and figures."""
