"""The ranks of a job that keep checkpoints together: messages of each, and which of them see the same directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .. import errors
from ..errors import GroupError

T = TypeVar("T")


class Place(NamedTuple):
    """Where a rank's directory is: on which node of how many, and whether this rank looks after it there."""

    node: int
    nodes: int
    leader: bool


class Alone:
    """A process without others."""

    rank, group = 0, None

    def gather(self, say: Callable[[], T]) -> list[T]:
        return [say()]


class Ranks:
    """The ranks of a group, with a group of gloo of their own: messages here never meet those of training."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        members = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        self.group = dist.new_group(members, backend="gloo", use_local_synchronization=True)
        self.rank = dist.get_rank(self.group)

    def gather(self, say: Callable[[], T]) -> list[T]:
        """The data of all ranks, in their order. If one fails to say it, all of them raise that."""
        import torch.distributed as dist

        try:
            mine: Any = (True, say())
        except Exception as err:  # noqa: BLE001 (the others wait for a word)
            failure, mine = err, (False, (type(err).__name__, str(err)))
        said: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(said, mine, group=self.group)
        for rank, (good, word) in enumerate(said):
            if not good:
                raise failure if rank == self.rank else told(rank, *word)
        return [word for _, word in said]


def everybody(group: Any = None) -> Alone | Ranks:
    """The ranks of a group, of all without one, or this process where torch.distributed is not used."""
    import torch.distributed as dist

    return Ranks(group) if dist.is_available() and dist.is_initialized() else Alone()


def told(rank: int, kind: str, text: str) -> errors.Error:
    """The failure of another rank."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.Error):
        return known(f"rank {rank} of the group failed: {text}")
    return GroupError(f"rank {rank} of the group failed: {kind}: {text}")


def place(ranks: Alone | Ranks, directory: str, node_local: bool) -> Place:
    """Finds out who sees the same directory. Where nodes have disks of their own, a node is the ranks that see one."""
    seen = ranks.gather(lambda: _identity(directory))
    if not node_local:
        return Place(0, 1, ranks.rank == 0)
    nodes = list(dict.fromkeys(seen))
    mine = seen[ranks.rank]
    return Place(nodes.index(mine), len(nodes), seen.index(mine) == ranks.rank)


def _identity(directory: str) -> tuple[str, int, int]:
    """Tells directories apart, those of machines that are alike, too."""
    os.makedirs(directory, exist_ok=True)
    found = os.stat(directory)
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read()
    except OSError:
        machine = socket.gethostname()
    return machine, found.st_dev, found.st_ino
