"""The paper's tables and figures from measured files."""
