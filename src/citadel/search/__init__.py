"""Search: plans, engines and hits; `engine.py` is the map."""
