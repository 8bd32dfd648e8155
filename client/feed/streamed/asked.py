"""The arguments of a feed -> the stream that it asks for; does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

from ...runtime import arguments
from ...stream.wanted_planes import LOSS_MASKS, LossMask, WantedPlanes
from ...transport.addresses import Targets
from ...transport.timeouts import Timeouts
from ..cursor import Cursor
from ..mixture.recipe import Mixture, long_argument
from ..mixture.schedule import Schedule
from ..ranks.agreement import RankAgreement, rank_agreement
from ..ranks.coordinates import DataParallel, Group, data_parallel
from ..redactions import Planned, planned_for
from .dataset import StreamedDataset
from .feed_stream import FeedStream


class AskedStream(NamedTuple):
    """What a feed was asked for.

    schedule, redactions: of a mixture.  planes: to request.
    """

    request: StreamRequest
    ranks: DataParallel
    planes: WantedPlanes
    schedule: Schedule | None
    redactions: Planned

    @property
    def end_sample(self) -> int:
        """Where the feed ends: at 2^63 without num_batches."""
        count = self.request.num_batches
        return SAMPLE_END if count is None else self.request.position.batch_first_sample(count)

    def agreement(self, target: Targets) -> RankAgreement | None:
        """Return what compares the ranks, if they can be compared.  target: of the feed."""
        max_epochs = self.schedule.max_epochs if self.schedule else None
        return rank_agreement(self.ranks, self.request, target, max_epochs)

    def stream(
        self, source: StreamedDataset, open_dataset: Callable[[StreamRequest], StreamedDataset]
    ) -> FeedStream:
        """Return the stream.  source, open_dataset: as for FeedStream."""
        return FeedStream(
            self.request,
            source,
            Cursor(self.request.position),
            open_dataset,
            self.planes.kinds,
            self.schedule,
            self.redactions,
            own_redactions=self.redactions,
        )


def asked_stream(
    batch_size: int,
    context_length: int,
    *,
    seed: int,
    dataset: str | None,
    mixture: Mixture | Mapping[str, float] | None,
    fingerprint: str | None,
    order: str,
    long: str | None,
    ranks: DataParallel,
    loss_mask: LossMask,
    mask_borders: bool,
    start_step: int,
    start_sample: int | None,
    num_batches: int | None,
) -> AskedStream:
    """Check the arguments of a feed, and return what it is asked for.

    ranks: as of `asked_ranks`.  The other arguments, and Raises: as for RemoteBatches.
    """
    batch_size = arguments.integer("batch_size", batch_size)
    num_batches = arguments.optional_integer("num_batches", num_batches)
    order = orders.latest(arguments.text("order", order)).NAME
    long_documents = long_argument(order, long)
    seed = arguments.integer("seed", seed)
    context_length = arguments.integer("context_length", context_length)
    dataset = arguments.text("dataset", dataset)
    schedule: Schedule | None = None
    redactions: Planned = ()
    if mixture is None:
        spec = StreamSpec.of_dataset(
            dataset, orders.find(order), seed, context_length, (), long_documents
        )
    else:
        mixture = _asked_mixture(mixture, dataset, fingerprint)
        schedule = mixture.schedule(context_length, order, seed, long_documents)
        redactions = mixture.planned_redactions(context_length)
        spec = planned_for(schedule.spec(), redactions)
    # Checks every range. Later requests differ from this one only by their position.
    request = StreamRequest(
        spec,
        arguments.first_position(
            start_step, start_sample, Position(0, batch_size, ranks.rank, ranks.world_size)
        ),
        num_batches,
    )
    planes = WantedPlanes(
        loss_mask=arguments.one_of("loss_mask", loss_mask, LOSS_MASKS) == "apply",
        document_starts=arguments.flag("mask_borders", mask_borders),
    )
    return AskedStream(request, ranks, planes, schedule, redactions)


def asked_ranks(rank: int | None, world_size: int | None, group: Group | None) -> DataParallel:
    """Return the data-parallel coordinates.  The arguments, and Raises: as for RemoteBatches."""
    return data_parallel(
        arguments.optional_integer("rank", rank),
        arguments.optional_integer("world_size", world_size),
        group,
    )


def asked_prefetch(prefetch_bytes: int) -> int:
    """Return the memory for prefetched rows.  Raises: InvalidRequest."""
    prefetch_bytes = arguments.integer("prefetch_bytes", prefetch_bytes)
    require_range("prefetch_bytes", prefetch_bytes, 0, 1 << 63)
    return prefetch_bytes


def require_timeouts(timeouts: object) -> None:
    """Raise InvalidRequest unless these are timeouts."""
    if not isinstance(timeouts, Timeouts):
        problem = f"{timeouts!r} is not valid; pass tokenfeed.Timeouts(...)"
        raise InvalidRequest("timeouts", problem)


def _asked_mixture(
    mixture: Mixture | Mapping[str, float], dataset: str, fingerprint: str | None
) -> Mixture:
    """Return a mixture.  Raises: InvalidRequest if an argument of one dataset is given with it."""
    if dataset:
        problem = "is given together with mixture, which has the names"
        raise InvalidRequest("dataset", problem)
    if fingerprint is not None:
        problem = "is of one dataset, but a mixture has several; omit it"
        raise InvalidRequest("fingerprint", problem)
    return mixture if isinstance(mixture, Mixture) else Mixture(mixture)
