"""What a feed reads first, by its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import Position
from tokenfeed.wire.request import Request

from ..runtime import arguments
from ..source.datasets import Datasets
from ..source.plane_selection import PlaneSelection
from ..transport.addresses import Targets
from .cursor import Cursor
from .feed_stream import FeedStream
from .lengths import read_lengths, require_uncounted, require_whole_rows
from .mixture.recipe import (
    Definition,
    Mixture,
    dataset_stream,
    lists_by_dataset,
    long_argument,
    read_list,
)
from .options import FeedOptions
from .ranks.agreement import RankAgreement, rank_agreement
from .ranks.coordinates import data_parallel


def first_stream(
    target: Targets,
    batch_size: int,
    context_length: int | Mapping[int | str, int],
    options: FeedOptions,
    open_datasets: Callable[..., Datasets],
) -> tuple[FeedStream, RankAgreement | None]:
    """Return what a feed reads, and what compares the feed with other ranks (None if there is
    nothing to compare). Does no I/O.

    Call this once for each feed, in the order in which feeds are created: the n-th feed of one rank
    is compared with the n-th feed of the others.
    options: all of them, checked.  open_datasets: as `open_source`.  The other arguments, and
    Raises: as for RemoteBatches.
    """
    batch_size = arguments.integer("batch_size", batch_size)
    length, lengths = read_lengths(context_length)
    definition = replace(_definition(length, options), lengths=lengths)
    ranks = data_parallel(options["rank"], options["world_size"], options["group"])
    begin = Position(0, batch_size, ranks.rank, ranks.world_size)
    if lengths:
        _require_changeable(definition, begin, options)
    position = arguments.first_position(options["start_step"], options["start_sample"], begin)
    request = Request(definition.stream, position, num_batches=options["num_batches"])
    planes = PlaneSelection(
        loss_mask=options["loss_mask"] == "apply", document_starts=options["mask_borders"]
    )
    agreement = rank_agreement(ranks, request, target, options["fingerprint"])
    open_own = partial(
        open_datasets,
        target,
        timeouts=options["timeouts"],
        credentials=options["credentials"],
        client_name=arguments.name_of_client(options["client_name"], ranks.rank),
        planes=planes,
    )
    found = FeedStream(
        request,
        rest=request.stream,
        datasets=open_own(
            request,
            fingerprint=arguments.hash_digits("fingerprint", options["fingerprint"]),
            agreement=None if agreement is None else partial(agreement.require_same, definition),
        ),
        cursor=Cursor(position),
        open_datasets=open_own,
        masks=planes.masking,
        definition=definition,
        batch_sizes={length: batch_size},
        pending=lengths,
    )
    return found, agreement


def _require_changeable(definition: Definition, begin: Position, options: FeedOptions) -> None:
    """Raise InvalidRequest unless the arguments of a feed allow several context lengths."""
    length, lengths = definition.stream.context_length, definition.lengths
    for source in definition.stream.sources:
        if source.reads_documents:
            rows = f"rows of {source.order.NAME} are other pieces at each"
            raise InvalidRequest("context_length", f"has several values, but {rows}; pass one")
    require_uncounted(options["num_batches"])
    step, first = options["start_step"], lengths[0].begin.sample(definition.stream.sample_at)
    if begin.batch_first_sample(step) > first:
        problem = f"{step} is behind sample {first}, from which on a step may be other samples"
        raise InvalidRequest("start_step", f"{problem}; pass start_sample=, or load a state")
    every = [length, *(each.context_length for each in lengths)]
    require_whole_rows(every, {length: begin.batch_size})


def _definition(context_length: int, options: FeedOptions) -> Definition:
    """Return the definition, with redactions that are in force from sample 0 on."""
    order, seed, dataset = options["order"], options["seed"], options["dataset"] or ""
    group_tokens, mixture, long = options["group_tokens"], options["mixture"], options["long"]
    if mixture is not None and dataset:
        problem = "is given together with mixture, which has the names"
        raise InvalidRequest("dataset", problem)
    if mixture is not None and options["fingerprint"] is not None:
        problem = "is of one dataset, but a mixture has several; omit it"
        raise InvalidRequest("fingerprint", problem)
    if mixture is not None:
        recipe = mixture if isinstance(mixture, Mixture) else Mixture(mixture)
        long_documents = long_argument(order, long)
        found = recipe.definition(context_length, order, seed, long_documents, group_tokens)
    else:
        stream = dataset_stream(dataset, order, seed, context_length, long, group_tokens)
        found = Definition(stream, order, stream.source.long_documents, is_mixture=False)
    names = [each.dataset for each in found.stream.sources]
    for name, digits in lists_by_dataset(names, options["redactions"]).items():
        found = found.with_redaction(name, 0, read_list("redactions", digits))
    return found
