"""Exclude the fuzzer, which is a program: importing it would start it."""

collect_ignore = ["fuzz_text.py"]
