"""How much random tests do: make test does a part, the soak targets, which set HBMFS_TEST_LONG, all."""

import os

LONG = bool(os.environ.get("HBMFS_TEST_LONG"))


def trials(count):
    """The numbers of so many trials, or of the first third of them."""
    return range(count if LONG else (count + 2) // 3)
