"""Checkpoints whose nodes have disks of their own: which node a rank is on, and how each node gets all that its ranks have.

torch's planner lets one rank write tensors that several have, wherever that rank is. A node that is to load from its own disk needs its own
copy, so each node divides its ranks' tensors among them.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from ..errors import GroupError, InvalidError, UnavailableError


class Node(NamedTuple):
    """The node of a rank, of so many, and whether this rank begins and publishes its part."""

    number: int
    nodes: int
    leader: bool


class Offer(NamedTuple):
    """The items that a rank could write, as they travel to the coordinator with its plan."""

    node: Node
    items: list[WriteItem]


def parse(given: bool | tuple[int, int, bool]) -> Node | None:
    """Which node this is: as the caller says, or torchrun's environment."""
    if given is False:
        return None
    if given is True:
        try:
            node = Node(int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]) == 0)
        except (KeyError, ValueError) as err:
            raise InvalidError(f"node_local=True needs torchrun's environment, which has no {err}: give node_local=(node, nodes, leader)") from None
    else:
        node = Node(*given)
    if not 0 <= node.number < node.nodes:
        raise InvalidError(f"node_local says node {node.number} of {node.nodes}: nodes are counted from 0")
    return node


def divide(plans: list[SavePlan], local: bool) -> list[SavePlan]:
    """Adds to the plans of all ranks the items that their nodes lack. Each item goes to the rank of the node that has least to write."""
    offers = [plan.storage_data if isinstance(plan.storage_data, Offer) else None for plan in plans]
    usable = [getattr(plan, "usable", True) for plan in plans]
    if not local:
        if any(offers):
            raise GroupError("some ranks save with node_local and some without: give all ranks the same")
        return plans
    if not any(usable):
        return plans  # ranks take the plans that they have kept
    if not all(usable):
        raise UnavailableError("only some ranks changed their plans, which node_local cannot divide anew: leave out enable_plan_caching")
    found: list[Offer] = []
    for rank, offer in enumerate(offers):
        if offer is None or offer.node.nodes != plans[0].storage_data.node.nodes:
            raise GroupError(f"rank {rank} has another node_local than rank 0: give all ranks the same number of nodes")
        found.append(offer)
    items = [list(plan.items) for plan in plans]
    for node in {offer.node.number for offer in found}:
        ranks = [rank for rank, offer in enumerate(found) if offer.node.number == node]
        there = {item.index for rank in ranks for item in items[rank]}
        size = {rank: sum(_bytes(item) for item in items[rank]) for rank in ranks}
        offered: dict[Any, list[tuple[int, WriteItem]]] = {}
        for rank in ranks:
            for item in found[rank].items:
                if item.index not in there:
                    offered.setdefault(item.index, []).append((rank, item))
        for choices in offered.values():
            rank, item = min(choices, key=lambda choice: size[choice[0]])
            items[rank].append(item)
            size[rank] += _bytes(item)
    return [dataclasses.replace(plan, items=items[rank], storage_data=_StoragePrefix(f"__{rank}_")) for rank, plan in enumerate(plans)]


def _bytes(item: WriteItem) -> int:
    return (item.tensor_storage_size() or 1) if item.tensor_data is not None else 1
