"""The arguments of a feed -> the stream that it asks for; does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

from ...runtime import arguments
from ...stream.wanted_planes import WantedPlanes
from ...transport.addresses import Targets
from ..cursor import Cursor
from ..mixture.recipe import Mixture, long_argument
from ..mixture.schedule import Schedule
from ..options import FeedOptions
from ..ranks.agreement import RankAgreement, rank_agreement
from ..ranks.coordinates import DataParallel, data_parallel
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


def asked_stream(batch_size: int, context_length: int, options: FeedOptions) -> AskedStream:
    """Return what a feed is asked for.

    options: all of them, checked.  The other arguments, and Raises: as for RemoteBatches.
    """
    batch_size = arguments.integer("batch_size", batch_size)
    context_length = arguments.integer("context_length", context_length)
    order, seed, dataset = options["order"], options["seed"], options["dataset"] or ""
    long_documents = long_argument(order, options["long"])
    ranks = data_parallel(options["rank"], options["world_size"], options["group"])
    mixture = options["mixture"]
    schedule: Schedule | None = None
    redactions: Planned = ()
    if mixture is None:
        spec = StreamSpec.of_dataset(
            dataset, orders.find(order), seed, context_length, (), long_documents
        )
    else:
        mixture = _asked_mixture(mixture, dataset, options["fingerprint"])
        schedule = mixture.schedule(context_length, order, seed, long_documents)
        redactions = mixture.planned_redactions(context_length)
        spec = planned_for(schedule.spec(), redactions)
    # Checks every range. Later requests differ from this one only by their position.
    request = StreamRequest(
        spec,
        arguments.first_position(
            options["start_step"],
            options["start_sample"],
            Position(0, batch_size, ranks.rank, ranks.world_size),
        ),
        options["num_batches"],
    )
    planes = WantedPlanes(
        loss_mask=options["loss_mask"] == "apply", document_starts=options["mask_borders"]
    )
    return AskedStream(request, ranks, planes, schedule, redactions)


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
