"""A dataset in memory with the methods of hbmfs.open's that TokenStream calls, for tests of what cannot be seen from
outside of a real one: what was told to the daemon when, how much was under way, what was cancelled."""

import numpy as np
from hbmfs._lib._memory import Host
from hbmfs.data._queue import Queue


class NumpyDataset:
    """Records every call in `events`, as (what, first offset) pairs; `under_way` counts requests not yet waited for."""

    path = "memory"
    device = "cpu"

    def __init__(self, tokens, documents=None, mounted=True):
        self.mounted = mounted
        self.tokens = np.asarray(tokens)
        self.documents = documents
        self.events = []
        self.told = []
        self.under_way = self.most_under_way = 0

    def __len__(self):
        return len(self.tokens)

    @property
    def dtype(self):
        return self.tokens.dtype

    def place(self):
        return Host()

    def stats(self):
        return {"mounted": self.mounted}

    def prefetch(self, starts, length):
        self.told.extend(np.asarray(starts).tolist())
        self.events.append(("prefetch", len(self.told)))

    def queue(self, depth):
        return Queue(self, depth)

    def begin_gather(self, starts, length, *, out=None, dtype=None):
        assert starts.dtype == np.int64 and starts.ndim == 1
        self.events.append(("begin", starts.tolist()))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        rows = np.stack([self.tokens[s : s + length] for s in starts]) if len(starts) else self.tokens[:0].reshape(0, length)
        assert rows.shape == (len(starts), length), "tokens beyond the end were asked for"
        rows = rows if dtype is None else rows.astype(dtype)
        if out is not None:
            out[...] = rows
            rows = out
        return _Request(self, rows)

    def begin_pieces(self, starts, lengths, shape, *, pad=0, out=None, dtype=None):
        self.events.append(("begin", starts[starts != -1].tolist()))
        self.under_way += 1
        rows = np.empty(shape, self.tokens.dtype if dtype is None else dtype) if out is None else out
        place = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            assert start == -1 or (0 <= start and start + length <= len(self.tokens)), "tokens beyond the end were asked for"
            rows.reshape(-1)[place : place + length] = pad if start == -1 else self.tokens[start : start + length]
            place += length
        assert place == rows.size, "tokens are neither read nor padded"
        return _Request(self, rows)


class _Request:
    def __init__(self, dataset, rows):
        self.dataset, self.rows = dataset, rows

    def wait(self, timeout=None):
        self.dataset.under_way -= 1
        self.dataset.events.append(("wait", len(self.rows)))
        return self.rows

    def cancel(self):
        self.dataset.under_way -= 1
        self.dataset.events.append(("cancel", len(self.rows)))
