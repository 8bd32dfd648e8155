"""Tensor-parallel ranks get the same bytes, data-parallel ranks different ones, on a 2 x 2 mesh.

    python -m torch.distributed.run --standalone --nproc-per-node 4 examples/mesh.py

The two ranks of a tensor-parallel pair work on the same batch together. With `group=mesh["dp"]` the
feed uses the data-parallel coordinate instead of the global rank. The ranks exchange hashes of
their batches, and rank 0 prints the comparison.
"""

from __future__ import annotations

import hashlib
import sys

import torch
import torch.distributed as dist
from serving import parser, server_at
from torch.distributed.device_mesh import init_device_mesh

from tokenfeed import RemoteBatches

BATCH_SIZE, CONTEXT_LENGTH, BATCH_COUNT = 8, 64, 5


def main() -> int:
    """Read some batches on each rank and compare.  Returns: 0, or 1 if the result is wrong."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_world_size() != 4:
        raise SystemExit("error: a 2 x 2 mesh has 4 ranks; pass --nproc-per-node 4")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    digest = hashlib.sha256()
    with (
        server_at(options.target) as address,
        RemoteBatches(
            address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            dataset=options.dataset,
            order="shuffled",
            group=mesh["dp"],
            num_batches=BATCH_COUNT,
        ) as feed,
    ):
        for x, y in feed:
            digest.update(x.numpy().tobytes() + y.numpy().tobytes())
    is_right = compare(mesh.get_coordinate(), digest.hexdigest())
    dist.destroy_process_group()
    return 0 if is_right else 1


def compare(place: list[int], digest: str) -> bool:
    """Gather every rank's hash.  place: its coordinates, (dp, tp).  Returns: whether the hashes of
    each pair are equal, and those of the two pairs differ.
    """
    found: list[tuple[list[int], str]] = [([], "")] * dist.get_world_size()
    dist.all_gather_object(found, (place, digest))
    pairs: list[set[str]] = [set(), set()]
    for (data_parallel, _), each in found:
        pairs[data_parallel].add(each)
    alike = all(len(pair) == 1 for pair in pairs)
    different = not pairs[0] & pairs[1]
    if dist.get_rank() == 0:
        for rank, ((data_parallel, tensor_parallel), each) in enumerate(found):
            print(f"rank {rank}: dp {data_parallel}, tp {tensor_parallel}, SHA-256 {each[:16]}")
        print(f"the ranks of a tensor-parallel pair got the same bytes: {'yes' if alike else 'NO'}")
        print(f"the data-parallel pairs got different ones: {'yes' if different else 'NO'}")
    return alike and different


if __name__ == "__main__":
    sys.exit(main())
