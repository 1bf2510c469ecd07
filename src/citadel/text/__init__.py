"""Text in, documents and tokens out: corpus and query readers, analysers, snippets."""
