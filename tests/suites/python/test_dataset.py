"""Every token format and view, read by hbmfs and compared with what its own reader found: on the CPU and on a GPU."""

import hashlib
import os

import hbmfs
import numpy as np
import pytest

# Their tokens have no stream as NumPy stores it, see tests/data/testdata/README.md; the pieces' view has another name.
WITHOUT_VIEW = {"mds-zstd", "npy-bigendian", "npy-fortran", "megatron-pieces"}


def streams(expect):
    """(directory below the mount, what is expected there) of each stream of tokens."""
    for name, dataset in expect.items():
        if dataset["dtype"] and name not in WITHOUT_VIEW:
            for split, found in dataset["splits"].items():
                yield os.path.join(name, split) if split else name, np.dtype(dataset["dtype"]), found


def test_every_stream_of_tokens(opened, mount, expect):
    random = np.random.default_rng(1)
    seen = 0
    for where, dtype, found in streams(expect):
        ds = opened(mount / where)
        assert (len(ds), ds.dtype) == (found["tokens"], dtype), where
        everything = opened.numpy(ds.read(0, len(ds)))
        assert hashlib.sha256(everything.tobytes()).hexdigest() == found["tokens_sha256"], where
        length = min(13, len(ds))
        starts = random.integers(0, len(ds) - length + 1, 40)
        want = np.stack([everything[s : s + length] for s in starts])
        assert np.array_equal(opened.numpy(ds.gather(starts, length)), want), where
        if dtype in (np.uint16, np.uint32):
            wide = opened.numpy(ds.gather(starts, length, dtype="int64"))
            assert wide.dtype == np.int64 and np.array_equal(wide, want), where
        if "document_starts" in found:
            assert ds.documents.dtype == np.int64 and ds.documents.tolist() == found["document_starts"], where
        seen += 1
    assert seen >= 20


def test_links_into_a_mount(mount, source, tmp_path):
    """A link stands for what it leads to, as everywhere: to a directory of a mount, and to a split that is no directory."""
    want = np.fromfile(source / "nanogpt/train.bin", np.uint16)
    (tmp_path / "set").symlink_to(mount / "nanogpt")
    (tmp_path / "train").symlink_to(mount / "nanogpt/train")
    for path in (tmp_path / "set/train", tmp_path / "train", tmp_path / "set/train.bin"):
        with hbmfs.open(path, dtype="uint16") as ds:
            assert np.array_equal(ds.read(0, len(ds)), want), path


def test_other_views_and_files(opened, mount, source, expect):
    want = np.fromfile(source / "nanogpt/train.bin", np.uint16)
    views = mount / ".hbmfs/views/nanogpt/train"
    for path, options in [
        (views, {}),
        (views / "tokens.npy", {}),
        (views / "tokens.bin", {}),
        (str(views / "tokens.bin"), {"dtype": np.uint16}),
        (mount / "nanogpt/train.bin", {"dtype": "uint16"}),
        (source / "nanogpt/train.bin", {"dtype": "uint16"}),
    ]:
        ds = opened(path, **options)
        assert np.array_equal(opened.numpy(ds.read(0, len(ds))), want), path
    pieces = opened(mount / ".hbmfs/views/megatron-pieces/document.bin")
    digest = hashlib.sha256(opened.numpy(pieces.read(0, len(pieces))).tobytes()).hexdigest()
    assert digest == expect["megatron-pieces"]["splits"][""]["tokens_sha256"]


def test_npy_versions_outside_of_a_mount(opened, source):
    for name, file in [("npy", "tokens_00000.npy"), ("npy-v2", "tokens.npy"), ("npy-v3", "tokens.npy")]:
        want = np.load(source / name / file)
        ds = opened(source / name / file)
        assert ds.dtype == want.dtype and np.array_equal(opened.numpy(ds.read(0, len(ds))), want)
        assert ds.documents is None


def test_starts_of_every_kind(opened, tokens):
    import torch

    path, data = tokens
    ds = opened(path)
    want = np.stack([data[5:8], data[1:4]])
    for starts in ([5, 1], (5, 1), np.array([5, 1], np.uint16), np.array([9, 5, 9, 1])[1::2], torch.tensor([5, 1]), np.array([5, 1], np.uint64)):
        assert np.array_equal(opened.numpy(ds.gather(starts, 3)), want)
    assert opened.numpy(ds.gather([], 3)).shape == (0, 3)
    assert opened.numpy(ds.gather([5, 1], 0)).shape == (2, 0)
    assert opened.numpy(ds.read(len(ds), 0)).shape == (0,)


def test_types_that_the_library_does_not_widen(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(100, dtype=np.uint64) << np.uint64(33))
    with hbmfs.open(tmp_path / "tokens.npy") as ds:
        wide = ds.gather([3, 1], 4, dtype=np.int64)
        out = np.empty((2, 4), np.int64)
        assert ds.gather([3, 1], 4, dtype="int64", out=out) is out
        assert wide.dtype == np.int64 and np.array_equal(wide, ds.gather([3, 1], 4)) and np.array_equal(out, wide)
        with pytest.raises(hbmfs.DtypeError, match="int64"):
            ds.gather([3], 4, dtype="int32")


def test_out_is_filled_and_given_back(tokens):
    import torch

    path, data = tokens
    want = np.stack([data[7:11], data[2:6]])
    with hbmfs.open(path) as ds:
        for out in (np.zeros((2, 4), np.uint16), torch.zeros((2, 4), dtype=torch.uint16)):
            assert ds.gather([7, 2], 4, out=out) is out
            assert np.array_equal(np.asarray(out), want)
        wide = torch.zeros((2, 4), dtype=torch.int64)
        assert ds.gather([7, 2], 4, out=wide, dtype=torch.int64) is wide
        assert np.array_equal(wide.numpy(), want)


def test_requests_and_queues_keep_their_order(opened, tokens):
    path, data = tokens
    ds = opened(path)
    starts = np.random.default_rng(3).integers(0, len(ds) - 501, (12, 16))
    with ds.queue(4) as queue:
        got = []
        for batch in starts:
            if queue.full:
                got.append(queue.get())
            queue.put(batch, 501)
        got.extend(queue.get() for _ in range(len(queue)))
    for batch, array in zip(starts, got, strict=True):
        assert np.array_equal(opened.numpy(array), np.stack([data[s : s + 501] for s in batch]))


def test_prefetch_is_advice(opened, mount, tokens):
    for path in (mount / "olmo", tokens[0]):
        ds = opened(path)
        ds.prefetch([0, 17, 3], 5)
        ds.prefetch([], 5)
        with pytest.raises(hbmfs.OutOfRangeError):
            ds.prefetch([len(ds)], 1)


def test_many_threads_share_a_dataset(opened, tokens):
    import concurrent.futures

    path, data = tokens
    ds = opened(path)

    def read(seed):
        starts = np.random.default_rng(seed).integers(0, len(ds) - 99, 20)
        return np.array_equal(opened.numpy(ds.gather(starts, 99)), np.stack([data[s : s + 99] for s in starts]))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(40)))
