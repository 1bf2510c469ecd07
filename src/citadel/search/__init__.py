"""Lists → ranking."""
