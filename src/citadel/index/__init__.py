"""The index: postings and documents in durable files, with one writer and many readers."""
