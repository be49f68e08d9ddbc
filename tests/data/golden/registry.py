"""The golden datasets by name, and what their writers share."""

from pathlib import Path

import numpy as np

TESTDATA = Path(__file__).resolve().parent.parent / "testdata"
EOT = 50256  # GPT-2's <|endoftext|>
WHEN = 1_700_000_000  # the time that stands in archives, seconds since 1970

DATASETS = {}


def dataset(name, format, dtype=None, reader=None, **facts):
    """Registers a function that writes one dataset and returns the shards of each split."""

    def register(write):
        DATASETS[name] = (write, {"format": format, "reader": reader or format, "dtype": dtype, **facts})
        return write

    return register


def documents(seed, count, dtype="u2", longest=60, eot=True):
    """Draws documents of frequent and rare tokens, as text has them, each with <|endoftext|> at its end."""
    rng = np.random.default_rng(seed)
    vocabulary = EOT if np.dtype(dtype).itemsize == 2 else 128_000
    for _ in range(count):
        tokens = (vocabulary ** rng.random(rng.integers(2, longest))).astype(dtype)
        yield np.append(tokens, tokens.dtype.type(EOT)) if eot else tokens


def one(*files):
    return {"": list(files)}
