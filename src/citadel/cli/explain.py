"""`citadel explain INDEX QUERY ID`: why a document matched; `--text`: which keys a text has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from citadel.cli.support.options import FusionMethod, Mode, QueryModel, Threads, Weights, parse_mode
from citadel.cli.support.output import print_json, say
from citadel.errors import InputError, UsageError

if TYPE_CHECKING:
    from citadel.explain import Explanation, TextExplanation
    from citadel.explain.hybrid import HybridExplanation
    from citadel.search.index_hybrid import IndexHybrid
    from citadel.search.searcher import Searcher


def explain(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INDEX] [QUERY] [ID]", help="An index, a query in quotes, a document."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Explain this text alone: every token with its keys.")
    ] = None,
    side: Annotated[
        str, typer.Option(metavar="document|query", help="With --text: encode it as a document or a query.")
    ] = "document",
    vectors: Annotated[str | None, typer.Option(metavar="F.npz", help="The query, given as vectors.")] = None,
    mode: Mode = "model",
    fusion: FusionMethod = None,
    weights: Weights = None,
    tau: Annotated[
        float | None, typer.Option(help="Dynamic router: leave out document weights up to this.")
    ] = None,
    semantic: Annotated[
        str, typer.Option(metavar="auto|exact|graph|rerank|off", help="How semantic vectors are used.")
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The model of --text; or the folder of the index's model, if it is not installed.",
        ),
    ] = None,
    query_model: QueryModel = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/reference/explanation.md).")] = False,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write one HTML file; - prints it.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Explain why a document matched a query, or list the keys of a text."""
    if json and html == "-":
        raise UsageError(
            "--json and --html - both print to standard output: name a file for the HTML, or leave one out"
        )
    given, chosen = arguments or [], parse_mode(mode, fusion, weights)
    if mode != "model" and (text is not None or vectors is not None):
        raise UsageError("--mode explains a QUERY: leave it out with --text and --vectors")
    if mode == "hybrid" and html is not None:
        raise UsageError("--html shows one part: write --mode model or --mode bm25")
    if text is not None:
        _text(given, text, side, tau, (model, query_model), threads, json, html)
        return
    if len(given) != (2 if vectors else 3):
        wanted = "INDEX ID --vectors F.npz" if vectors else 'INDEX "QUERY" ID'
        raise UsageError(f"{len(given)} arguments given: explain a match with {wanted}, a text with --text")
    from citadel.api import Index

    with Index.open(given[0], model=model, query_model=query_model, threads=threads) as opened:
        searcher = opened.searcher(**chosen.options(), threads=threads)
        explanation = _match(searcher, given[1:], vectors, semantic, tau)
    _show(explanation, json, html)


def _match(
    searcher: Searcher | IndexHybrid,
    rest: list[str],
    vectors: str | None,
    semantic: str,
    tau: float | None,
) -> Explanation | HybridExplanation:
    from citadel.search.searcher import Searcher
    from citadel.text.parse import check_text

    if vectors is None or not isinstance(searcher, Searcher):
        query = check_text(rest[0], "the query")
        return searcher.explain(query, rest[1], semantic_mode=semantic, tau=tau)
    from citadel.cli.support.vectors import read_vector_queries

    queries = read_vector_queries(vectors)
    if len(queries) != 1:
        raise InputError(f"{len(queries)} queries in this file: give a file with one query", vectors)
    return searcher.explain_vectors(rest[0], **queries[0][1], semantic_mode=semantic, tau=tau)


def _text(
    given: list[str],
    text: str,
    side: str,
    tau: float | None,
    models: tuple[str | None, str | None],
    threads: int | None,
    json: bool,
    html: str | None,
) -> None:
    """Explain a text with the model of an index, a model folder or the default model."""
    from citadel.encode.locate import text_model
    from citadel.text.parse import check_text

    text = check_text(text, "the text")
    model, query_model = models
    if not given:
        model = model or text_model(None)
    if len(given) > 1 or (not given and model is None):
        raise UsageError("--text needs either an INDEX, whose model is used, or --model DIR")
    if given:
        from citadel.api import Index

        with Index.open(given[0], model=model, query_model=query_model, threads=threads) as opened:
            _show(opened.searcher(threads=threads).explain_text(text, tau=tau, side=side), json, html)
        return
    from citadel.encode.encoder import Encoder
    from citadel.explain.text import explain_text

    _show(explain_text(Encoder(model or "", threads), text, tau=tau, side=side), json, html)


def _show(
    explanation: Explanation | TextExplanation | HybridExplanation, json: bool, html: str | None
) -> None:
    """Print an explanation as a table or JSON, or write it as HTML."""
    from citadel.explain.hybrid import HybridExplanation

    if html is not None and not isinstance(explanation, HybridExplanation):
        _write_html(explanation, html)
    if json:
        print_json(explanation.to_json())
    elif html is None:
        from rich.console import Console

        Console(highlight=False).print(_view(explanation))


def _view(explanation: Explanation | TextExplanation | HybridExplanation) -> Any:
    from citadel.cli.support.render_explanation import hybrid_view, match_view, text_view
    from citadel.explain.hybrid import HybridExplanation
    from citadel.explain.result import Explanation

    if isinstance(explanation, HybridExplanation):
        return hybrid_view(explanation)
    return match_view(explanation) if isinstance(explanation, Explanation) else text_view(explanation)


def _write_html(explanation: Explanation | TextExplanation, file: str) -> None:
    from citadel.explain.html import match_html, text_html
    from citadel.explain.result import Explanation
    from citadel.files import write_whole

    page = match_html(explanation) if isinstance(explanation, Explanation) else text_html(explanation)
    if file == "-":
        print(page, end="")
        return
    write_whole(file, [page])
    say(f"wrote {file}")
