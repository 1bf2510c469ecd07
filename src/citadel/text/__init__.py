"""Corpus and query readers, analysers and snippets."""
