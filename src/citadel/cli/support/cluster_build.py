"""`citadel index --cluster`: check the options, read the corpus, and build on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from citadel.cli.support.corpus_feed import is_vectors, real_source, report_skipped
from citadel.cli.support.output import plural, say
from citadel.errors import InputError, UsageError
from citadel.index.root_manifest import MAX_SHARDS, root_generations
from citadel.index.storage import absolute, as_storage
from citadel.progress import Progress
from citadel.settings import EncodeOn
from citadel.text.corpus import Corpus, OnError, read_corpus
from citadel.text.files import STDIN
from citadel.types import Document


class ClusterBuild(NamedTuple):
    """The options of one `citadel index --cluster`."""

    corpus: str
    path: str
    settings: Mapping[str, Any]  # of Index.create
    options: Mapping[str, str]
    format: str | None
    on_error: str
    memory: int
    overwrite: bool
    graph: bool
    cluster: str | None
    shards: int | None
    workers: int | None
    generate_ids: bool
    encode_on: EncodeOn


def build(given: ClusterBuild) -> None:
    """Build a sharded index on a cluster, resume an interrupted build, or report that it is finished."""
    from citadel.cluster.build import build_on_ray, finished_build
    from citadel.cluster.job import Job
    from citadel.cluster.ray_session import ray_session

    address, shards = _check(given)
    numbers = root_generations(as_storage(given.path))
    job = Job(
        absolute(given.path), real_source(given.corpus), shards, given.settings, given.options,
        generation=(numbers[-1] if numbers else 0) + 1, memory=given.memory, graph=given.graph,
        encode_on=given.encode_on,
    )  # fmt: skip
    if numbers and not given.overwrite:
        if finished_build(job) is None:
            raise UsageError(
                f"{given.path}: there is another sharded index; name another folder, or pass --overwrite"
            )
        print(f"{given.path}: already finished: all of {given.corpus} is indexed")
        return
    corpus = read_corpus(
        given.corpus,
        format=given.format,
        on_error=cast(OnError, given.on_error),
        generate_ids=given.generate_ids,
    )
    with ray_session(address) as ray, Progress("Indexing", "documents", corpus.lines.size) as progress:
        built = build_on_ray(
            ray,
            job,
            _documents(corpus),
            given.workers,
            lambda done, old: progress(corpus.lines.consumed_on_disk, done - old),
        )
    if built.reused:
        say(f"{given.path}: resumed: {built.reused:,} of {plural(built.units, 'unit')} were finished")
    size = sum(shard.documents for shard in built.root.shards)
    print(f"{given.path}: {plural(shards, 'shard')}, {plural(size, 'document')}{_counts(built.root.counts)}")


def _documents(corpus: Corpus) -> Iterator[Document]:
    count = 0
    for document, _ in corpus:
        count += 1
        yield document
    report_skipped(corpus)
    if not count:
        raise InputError("the corpus has no documents", corpus.source)


def _counts(counts: Mapping[str, int]) -> str:
    named = (f", {counts[name]:,} {name}" for name in ("replaced", "split", "cut") if counts.get(name))
    return "".join(named)


def _check(given: ClusterBuild) -> tuple[str, int]:
    """The address of the cluster and the number of shards."""
    if given.cluster is None:
        raise UsageError("--shards and --workers go with --cluster; `citadel shard` splits an index")
    if given.shards is None or given.shards > MAX_SHARDS:
        raise UsageError(f"--cluster needs --shards N, from 1 to {MAX_SHARDS}")
    if "," in given.encode_on.device or ":" in given.encode_on.device:
        raise UsageError(
            f"--device {given.encode_on.device} numbers GPUs, but on a cluster Ray gives each encoder one: "
            "write --device cuda"
        )
    if is_vectors(given.corpus):
        raise UsageError("--cluster encodes text: build an index from the .npz file and run `citadel shard`")
    if given.corpus == STDIN:
        raise UsageError("--cluster reads the corpus again to resume: give a file instead of standard input")
    return given.cluster, given.shards
