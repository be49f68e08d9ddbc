"""A directory of checkpoints, by step: saved behind training, loaded from the newest complete one, and old ones removed.

    with hbmfs.Checkpoints("/ckpt/run-1", keep=3) as ck, ck.on_preemption():
        step = ck.load(state) if ck.latest() is not None else 0
        while step < steps:
            ...
            ck.save(step, state)                # returns when the tensors may change

The state is torch.distributed.checkpoint's: tensors, DTensors, numbers, lists and dicts by name, and objects with state_dict()
and load_state_dict(). Each step is a directory, step-1000, that torch's dcp.load and DCPReader read, too. Without
torch.distributed it is of this process; with it, all ranks of the group make every call, in the same order.

**Complete or not there.** A step appears by one rename when all of its files and their checksums are on the disk. latest() looks
which steps are complete, each time; their numbers decide, not their times, and no file points to one. Leftovers of a killed
writer are no checkpoint, and are removed when a Checkpoints is made. A step that is there is never overwritten.

**Saves.** save() copies the state into pinned memory, which is made once, and a thread writes it from there. Saves are written one
after the other; one that finds no room waits for the one before it. A failure is the exception of its Save: training goes on, and the
steps before are as they were. close() raises a failure that nobody has asked for. When a step is safe, earlier ones beyond `keep` are removed;
later ones, from before somebody went back, are not.

**Nodes with disks of their own.** With node_local=True each node writes the data that its ranks need, part 2 of 4. latest() is the newest
step of which all nodes have their part; ranks that see the same directory are a node. The first rank of each looks after it.

**Checkpoint volumes.** Where the directory is a mount of one (hbmfs checkpoint mount), steps are written past FUSE, and `way` of a Save says so. The
draft of a killed writer is gone at once.

**Preemption.** Within on_preemption(), SIGTERM lets the saves that are staged be written, for at most `deadline` seconds, drops
the others, and passes the signal on: the earlier handler runs, or the process ends (143 for its shell). The
handler runs between two bytecodes of the main thread, so a call that never returns from C holds it up.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .steps import Checkpoints, Save

__all__ = ["Checkpoints", "Save"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import steps  # it needs torch, and save_safetensors does not

    return getattr(steps, name)
