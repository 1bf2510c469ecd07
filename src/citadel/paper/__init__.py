"""The paper's tables and figures: measure every system, then report."""
