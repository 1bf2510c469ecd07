"""The fuzzer is a program, not a test: importing it would start it."""

collect_ignore = ["fuzz_text.py"]
