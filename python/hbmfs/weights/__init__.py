"""Weights from safetensors files, straight into the memory of a GPU or of the host.

    sd = hbmfs.load_safetensors("/mnt/models/llama", device="cuda:0")
    model.load_state_dict(sd, assign=True)

The path is a file, a directory, or the index of a sharded model (model.safetensors.index.json). A directory with an
index is read by it; the index then says which tensors there are. A directory without is all its *.safetensors files.

A few large allocations hold all tensors, which are views of them, so loading runs at the speed of the link. It
follows that memory is given back when the last tensor of an allocation (4 GiB at most, if no tensor is larger) is
gone, and that torch.save of one tensor of them saves the whole allocation: clone() tensors that are kept or saved alone.

Several GPUs of a host, each with its process and a torch.distributed group of them:

    sd = hbmfs.load_safetensors(path, device=f"cuda:{local_rank}", group=group)

Each rank reads a share of the bytes, once, and NCCL brings the rest over NVLink while the next are read: 64 MiB of each
rank at a time, in place, so that beside the weights an allocation needs at most 512 bytes for each rank. With slices= a
rank gets parts of tensors. Bytes that several ranks want alike are read once, others by the rank that wants them. Where
ranks want other columns of a matrix, each reads whole rows of it, its share, and gives the others their columns: that needs at
most 2 GiB beside the weights.

Tensors that were saved twice are two tensors, as with the safetensors package. On the host, without torch, the arrays
are NumPy's, which has no bfloat16 and no 8-bit floats.
"""

from ._load import Call
from ._safetensors import load_safetensors, outlines

__all__ = ["Call", "load_safetensors", "outlines"]
