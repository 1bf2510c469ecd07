"""Explanations: why a document matched a query, and which keys a text has."""

from citadel.explain.match import explain_match, explain_vectors
from citadel.explain.result import Alternative, Explanation, Match, Posting, Semantic, Token
from citadel.explain.text import TextExplanation, TextKey, TextToken, explain_text
from citadel.text.snippet import Snippet, Span, snippet

__all__ = [
    "Alternative",
    "Explanation",
    "Match",
    "Posting",
    "Semantic",
    "Snippet",
    "Span",
    "TextExplanation",
    "TextKey",
    "TextToken",
    "Token",
    "explain_match",
    "explain_text",
    "explain_vectors",
    "snippet",
]
