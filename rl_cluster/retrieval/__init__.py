"""Corpus, word search, vector search, and the index on disk that joins them."""
