"""Routed tokens → lists: durable files, one writer, many readers."""
