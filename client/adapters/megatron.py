"""An adapter for Megatron-LM, which takes its batches with --dataloader-type external.

    train_valid_test_datasets_provider = datasets_provider("host:50051", order="packed", seed=1337)

The position of the feed is args.consumed_train_samples, which Megatron saves and restores. So a run
resumes at exactly the next row, even if the data-parallel size has changed, and with a batch size
that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from megatron.core import mpu
from megatron.training import get_args

from tokenfeed.errors import InvalidRequest

from ..batches.remote import RemoteBatches, RemoteOptions, RichBatch
from ..feed.options import takes
from ..transport.addresses import Targets
from .megatron_batch import lm_arrays, require_endless, require_options

Splits = tuple[Iterator[dict[str, torch.Tensor]] | None, ...]

_REFUSED = {
    "create_attention_mask_in_dataloader": "would have other tensor-parallel ranks wait for a mask "
    "that a feed does not make; pass --no-create-attention-mask-in-dataloader",
    "reset_attention_mask": "needs such a mask; pass --dataloader-inter-document-masking",
    "eod_mask_loss": "is done by datasets of Megatron; pass mask_borders=True to the feed",
    "sft": "needs documents of padded lengths; pass --dataloader-inter-document-masking",
    "hybrid_context_parallel": "needs documents that are assigned to ranks by their lengths",
    "full_validation": "needs datasets with a length; pass --eval-iters",
}
"""Arguments of Megatron that a feed cannot fulfil, and what to do."""


@takes(RemoteOptions)
def datasets_provider(
    target: Targets,
    *,
    valid: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[..., Splits]:
    """Return the train_valid_test_datasets_provider that `pretrain` takes.

    The provider returns three iterators, with None for a split that is not given. The provider
    takes batch size, context length and the data-parallel rank from Megatron. On a rank that never
    reads its iterators the feed has no thread and no connection. With
    --dataloader-inter-document-masking attention stays within documents.
    target means what it does for RemoteBatches.
    valid and test are mappings with the arguments in which the feeds for validation and test differ
    from the training feed, such as {"dataset": "val"}. options are arguments of RemoteBatches,
    except device, rank, world_size, group, start_sample, start_step and num_batches.
    Raises: InvalidRequest for these. The provider raises InvalidRequest for a mixture with
    max_epochs, and if the arguments of Megatron ask for something that a feed cannot do (such as
    document masking together with context parallelism); and the errors of RemoteBatches.
    """

    def provider(sample_counts: Any, vp_stage: int | None = None) -> Splits:
        args = get_args()
        _require_supported(args)
        if valid is None and args.eval_iters:
            problem = "asks for evaluations, and no feed is given for them; pass --eval-iters 0, or"
            raise InvalidRequest("eval_iters", f"{problem} valid={{'dataset': ...}}")
        eval_size = getattr(args, "eval_micro_batch_size", args.micro_batch_size)

        def split(batch_size: int, first_sample: int, own: Mapping[str, Any]) -> Iterator[Any]:
            feed = RemoteBatches(
                target,
                batch_size,
                args.seq_length,
                start_sample=first_sample,
                rank=mpu.get_data_parallel_rank(),
                world_size=mpu.get_data_parallel_world_size(),
                **{**options, **own},
            )
            return (_arrays(batch, args) for batch in require_endless(feed).batches())

        # As Megatron, which compares checkpoints on the same rows.
        first_valid = 0 if getattr(args, "skip_train", False) else args.consumed_valid_samples
        return (
            split(args.micro_batch_size, args.consumed_train_samples, {}),
            None if valid is None else split(eval_size, first_valid, valid),
            None if test is None else split(eval_size, 0, test),
        )

    require_options(options, valid or {}, test or {})
    provider.is_distributed = True  # type: ignore[attr-defined]
    return provider


def _require_supported(args: Any) -> None:
    """Raise InvalidRequest if the arguments of Megatron ask for something that a feed cannot do."""
    for name, problem in _REFUSED.items():
        if getattr(args, name, False):
            raise InvalidRequest(name, problem)
    if args.context_parallel_size > 1 and _masks_documents(args):
        raise InvalidRequest(
            "context_parallel_size",
            f"{args.context_parallel_size} splits rows without regard to documents, so attention "
            "would not stay within them: leave out --dataloader-inter-document-masking, or "
            "context parallelism",
        )


def _masks_documents(args: Any) -> bool:
    return bool(getattr(args, "dataloader_inter_document_masking", False))  # since Megatron 0.19


def _arrays(batch: RichBatch, args: Any) -> dict[str, torch.Tensor]:
    """Return the arrays that pretrain_gpt.py expects from an iterator: those of lm_arrays; with
    masking also cu_seqlens, int32[B, n], filled up with T, and max_seqlen, int32[B].
    """
    masks = _masks_documents(args)
    found = lm_arrays(batch, restarts=masks or getattr(args, "reset_position_ids", False))
    if masks:
        found["cu_seqlens"] = batch.cu_seqlens_rows()
        found["max_seqlen"] = torch.tensor(batch.doc_lens()[1], dtype=torch.int32)
    return found
