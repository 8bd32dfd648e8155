"""An adapter for Megatron Bridge: a feed that its configuration accepts as a dataset.

    config.dataset = FeedProvider(
        target="host:50051", micro_batch_size=config.train.micro_batch_size, seq_length=4096
    )

Bridge saves and restores the position of the feed for each data-parallel rank. Bridge refuses to
resume with a larger data-parallel size than the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.bridge.data.base import DatasetProvider
from megatron.core import num_microbatches_calculator, parallel_state

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RichBatch
from ..transport.addresses import Targets
from .megatron_batch import lm_arrays, require_endless, require_options


@dataclass(kw_only=True)
class FeedProvider(DatasetProvider):  # type: ignore[misc]
    """A feed as the dataset of a ConfigContainer.

    target: means what it does for RemoteBatches.
    micro_batch_size: is the number of rows in a rank's batch.
    seq_length: is the context length.
    options: has other arguments of RemoteBatches, except device, rank, world_size, group and
    num_batches.
    valid, test: have the arguments in which the feeds for validation and test differ from the
    training feed, such as {"dataset": "val"}; with None there is no such feed.
    documents: says whether attention stays within documents; then it must be known of each dataset
    where its documents begin, and a batch has one row.
    """

    target: Targets
    micro_batch_size: int
    seq_length: int
    options: Mapping[str, Any] = field(default_factory=dict)
    valid: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    documents: bool = False
    dataloader_type: str = "external"

    def build_datasets(self, context: Any) -> tuple[FeedBatches | None, ...]:
        """Return the iterators of the three splits; does no I/O.

        context: is what Bridge passes; the data-parallel ranks are taken from its process groups.
        Raises: InvalidRequest if documents cannot be kept apart, if micro_batch_size is not that of
        the training, if a feed would end, or if Bridge could not save the position of the feed; and
        the errors of RemoteBatches.
        """
        groups = context.pg_collection
        virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1
        for name, size, size_max, problem in (
            ("virtual_pipeline_model_parallel_size", virtual, 1, "has no saved position of data"),
            ("micro_batch_size", self.micro_batch_size, 1, "is no form of documents"),
            ("context_parallel_size", groups.cp.size(), 1, "cannot split documents of any length"),
            ("pipeline_model_parallel_size", groups.pp.size(), 2, "has stages without documents"),
        ):
            if size > size_max and (self.documents or name.startswith("virtual")):
                raise InvalidRequest(name, f"above {size_max} {problem} in Bridge; it is {size}")
        training_size = num_microbatches_calculator.get_micro_batch_size()
        if training_size != self.micro_batch_size:
            problem = f"{self.micro_batch_size} is not {training_size}, that of config.train"
            raise InvalidRequest("micro_batch_size", problem)
        starts = ("start_sample", "start_step")
        require_options(self.options, self.valid or {}, self.test or {}, others=starts)
        return (
            self._batches(groups.dp, {}),
            None if self.valid is None else self._batches(groups.dp, self.valid),
            None if self.test is None else self._batches(groups.dp, self.test),
        )

    def _batches(self, group: Any, own: Mapping[str, Any]) -> FeedBatches:
        sizes = self.micro_batch_size, self.seq_length
        options = {**self.options, **own}
        feed = RemoteBatches(self.target, *sizes, group=group, **options)
        return FeedBatches(require_endless(feed), documents=self.documents)


class FeedBatches(Iterator[dict[str, Any]]):
    """Iterates over a feed's batches in the form that Megatron Bridge expects, and saves and
    restores the feed's position.
    """

    def __init__(self, feed: RemoteBatches, *, documents: bool) -> None:
        """feed: must not be read by anything else. documents: means what it does for
        FeedProvider.
        """
        self.feed = feed
        self._documents = documents
        self._batches = feed.batches()

    def __next__(self) -> dict[str, Any]:
        """Return the arrays of lm_arrays; with documents also cu_seqlens_q and cu_seqlens_kv,
        int32[documents + 1], and max_seqlen_q and max_seqlen_kv, int32[1].

        Raises: as for iterating a feed.
        """
        batch: RichBatch = next(self._batches)
        found = lm_arrays(batch, restarts=self._documents)
        if self._documents:
            longest = torch.tensor([batch.max_seqlen], dtype=torch.int32)
            for side in ("q", "kv"):
                found |= {f"cu_seqlens_{side}": batch.cu_seqlens, f"max_seqlen_{side}": longest}
        return found

    def save_state(self) -> dict[str, Any]:
        """Return, as plain values, the position after the batch that was last delivered."""
        return self.feed.state_dict()

    def restore_state(self, state: dict[str, Any]) -> None:
        """Resume from the state of any rank. Raises: the errors of `load_state_dict` of
        RemoteBatches.
        """
        self.feed.load_state_dict(state)
