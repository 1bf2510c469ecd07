"""One system on one collection, measured: quality, dot products, postings, list sizes, bytes; kept as JSON."""
