"""Filters on metadata: the language, its meaning for one document, and typed columns for a whole segment."""
