"""`citadel add INDEX CORPUS`: add documents in one commit."""

from __future__ import annotations

from citadel.cli.support.options import (
    BatchTokens,
    CorpusFile,
    EncodeDevice,
    Fingerprint,
    Format,
    GenerateIds,
    IndexFolder,
    Memory,
    Model,
    OnError,
    Precision,
    Threads,
    parse_size,
)
from citadel.cli.support.output import plural
from citadel.settings import EncodeOn


def add(
    index: IndexFolder,
    corpus: CorpusFile,
    on_error: OnError = "fail",
    format: Format = None,
    generate_ids: GenerateIds = False,
    fingerprint: Fingerprint = None,
    model: Model = None,
    memory: Memory = "1GiB",
    threads: Threads = None,
    device: EncodeDevice = "cpu",
    precision: Precision = "bf16",
    batch_tokens: BatchTokens = None,
) -> None:
    """Add documents to an index, in one commit. A document replaces the one with the same id."""
    from citadel.api import Index
    from citadel.cli.support.corpus_feed import open_feed, report_skipped, report_truncated
    from citadel.errors import FingerprintError
    from citadel.progress import Progress

    with Index.open(index, memory=parse_size(memory), model=model, threads=threads) as opened:
        if fingerprint is not None and fingerprint != opened.settings.fingerprint:
            raise FingerprintError(
                f"vectors of {fingerprint!r} do not fit an index of {opened.settings.fingerprint!r}", index
            )
        encode_on = EncodeOn(device, precision, batch_tokens)
        feed = open_feed(
            corpus, format, on_error, memory=opened.memory, generate_ids=generate_ids, encode_on=encode_on
        )
        try:
            before, counted = len(opened), opened.counts
            with Progress("Adding", "documents") as progress:
                feed.add(opened, lambda size: False, progress)
                report_skipped(feed)
                feed.require_documents(0)
                opened.commit()
        finally:
            feed.close()
        names = ("replaced", "split", "cut")
        replaced, split, cut = (opened.counts.get(name, 0) - counted.get(name, 0) for name in names)
        report_truncated(opened, cut)
        counts = {"replaced": replaced, "skipped": feed.skipped, "split": split, "cut": cut}
        rest = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
        added = plural(len(opened) - before + replaced, "document")
        print(f"{index}: {added} added{rest}; {len(opened):,} in total")
