"""Import models of other libraries: sentence-transformers, PyLate, Stanford ColBERT, SPLADE."""
