"""Benchmarks: latency by stage, synthetic indexes of any size, random queries."""
