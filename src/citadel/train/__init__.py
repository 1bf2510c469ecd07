"""From pairs of queries and passages to a trained model."""
