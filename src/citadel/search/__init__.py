"""Search: query plans, engines and hits; see `engine.py` for an overview."""
