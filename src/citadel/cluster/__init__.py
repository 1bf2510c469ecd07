"""Collections beyond one machine: builds on a Ray cluster."""
