"""hbmfs.megatron.IndexedDataset against megatron-core's own, and a GPTDataset that runs on both."""

import logging
import pickle
import struct
import warnings

import hbmfs
import hbmfs.megatron
import numpy as np
import pytest
import torch

with warnings.catch_warnings():  # megatron-core warns of what is not installed, when it is imported
    warnings.simplefilter("ignore")
    from megatron.core.datasets import indexed_dataset as megatrons
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:megatron")
logging.getLogger("megatron").setLevel(logging.ERROR)


def write(prefix, dtype, documents, modes=None):
    """A dataset by Megatron's own writer: documents are lists of lengths of sequences."""
    random = np.random.default_rng(8)
    top = 1000 if np.dtype(dtype).kind == "f" else min(np.iinfo(dtype).max, 100_000)
    builder = megatrons.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=modes is not None)
    for lengths in documents:
        tokens = torch.from_numpy(random.integers(0, top, sum(lengths)).astype(np.int64))
        builder.add_document(tokens, lengths, modes and modes[: len(lengths)])
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


@pytest.fixture(params=[np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64])
def pair(request, tmp_path):
    prefix = write(tmp_path / "text_document", request.param, [[5, 3], [1], [40, 2, 7], [300]])
    theirs, ours = megatrons.IndexedDataset(prefix), hbmfs.megatron.IndexedDataset(prefix)
    yield theirs, ours
    ours.close()


def same(ours, theirs):
    assert type(ours) is type(theirs) or isinstance(ours, np.ndarray)
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        return all(same(a, b) for a, b in zip(ours, theirs))
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def test_the_interface_gives_the_same(pair):
    theirs, ours = pair
    assert len(ours) == len(theirs) == 7
    for i in [*range(7), -1, np.int64(3), np.int32(0)]:
        assert same(ours[i], theirs[i])
        assert same(ours.get(i), theirs.get(i))
    for offset, length in ((0, None), (7, None), (7, 9), (0, 0), (np.int64(3), np.int32(11))):
        assert same(ours.get(3, offset=offset, length=length), theirs.get(3, offset=offset, length=length))
    for where in (slice(0, 7), slice(None), slice(2, 5), slice(-3, None), slice(6, 100), slice(1, -1, 1)):
        assert same(ours[where], theirs[where])
    for name in ("sequence_lengths", "document_indices"):
        assert same(getattr(ours, name), getattr(theirs, name))
    assert same(ours.get_document_indices(), theirs.get_document_indices())
    for name in ("dtype", "dtype_size", "sequence_count", "document_count"):
        assert getattr(ours.index, name) == getattr(theirs.index, name)
    assert same(ours.index.sequence_pointers, theirs.index.sequence_pointers)
    assert [tuple(ours.index[i]) for i in range(7)] == [tuple(theirs.index[i]) for i in range(7)]
    assert (ours.path_prefix, ours.multimodal, ours.mmap) == (theirs.path_prefix, theirs.multimodal, theirs.mmap)
    for dataset in pair:
        dataset.set_document_indices(np.array([0, 7]))
    assert ours.document_indices.tolist() == theirs.document_indices.tolist() == [0, 7]


def test_a_copy_through_pickle_reads_on(pair):
    theirs, ours = pair
    copy = pickle.loads(pickle.dumps(ours))
    assert same(copy[:], theirs[:])
    copy.close()


def test_a_range_of_no_sequences_is_empty(pair):
    # Megatron's own answer is one empty array, or an IndexError at the end.
    assert pair[1][3:3] == pair[1][7:] == pair[1][5:2] == []


def test_modes(tmp_path):
    prefix = write(tmp_path / "pairs", np.int32, [[5, 3], [1], [4]], modes=[1, 0])
    theirs = megatrons.IndexedDataset(prefix, multimodal=True)
    ours = hbmfs.megatron.IndexedDataset(prefix, multimodal=True)
    assert all(same(ours[i], theirs[i]) and same(ours.get(i, 1), theirs.get(i, 1)) for i in range(4))
    assert same(ours[1:3], theirs[1:3])
    assert ours.sequence_modes.tolist() == theirs.index.sequence_modes.tolist()
    ours.close()


def test_the_golden_datasets_in_a_mount(source, mount):
    views = mount / ".hbmfs" / "views"
    for name, places in (
        ("megatron/corpus_text_document", ["megatron/corpus_text_document", views / "megatron" / "megatron"]),
        ("megatron-merge/a_text_document", ["megatron-merge/a_text_document"]),
    ):
        theirs = megatrons.IndexedDataset(str(source / name))
        for place in places:
            ours = hbmfs.megatron.IndexedDataset(str(mount / place))
            assert len(ours) == len(theirs) > 0
            assert same(ours[:], theirs[:])
            assert same(ours.document_indices, theirs.document_indices)
            ours.close()


# --- GPTDataset -----------------------------------------------------------------------------------------------------


class Tokenizer:
    """What GPTDatasetConfig asks of a tokenizer."""

    def __init__(self):
        self.vocab_size = 65_536
        self.eod = 0
        self.unique_identifiers = {"class": "Tokenizer"}


class OnHbmfs(GPTDataset):
    """A GPTDataset as it is, over our adapter."""

    @staticmethod
    def build_low_level_dataset(dataset_path, config):
        return hbmfs.megatron.IndexedDataset(dataset_path, mmap=config.mmap_bin_files)


def built(cls, prefix, cache, sizes):
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=64,
        blend=([prefix], None),
        split="90,10,0",
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        path_to_cache=str(cache),
        mid_level_dataset_surplus=0.005,
    )
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()


@pytest.fixture
def corpus(tmp_path):
    random = np.random.default_rng(3)
    documents = [[int(n)] for n in random.integers(1, 400, 120)]
    return write(tmp_path / "corpus_text_document", np.uint16, documents)


@pytest.mark.parametrize("sizes", [[100, 10, 0], [1000, 40, 0]])
def test_a_gpt_dataset_gives_the_same_samples(corpus, tmp_path, sizes):
    theirs = built(GPTDataset, corpus, tmp_path / "theirs", sizes)
    ours = built(OnHbmfs, corpus, tmp_path / "ours", sizes)
    compared = 0
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        assert isinstance(a.datasets[0].dataset if hasattr(a, "datasets") else a.dataset, hbmfs.megatron.IndexedDataset)
        assert len(a) == len(b) > 0
        for i in range(len(a)):
            assert a[i].keys() == b[i].keys()
            assert all(torch.equal(a[i][name], b[i][name]) for name in a[i])
            compared += 1
    assert compared >= sum(sizes)


def test_a_gpt_dataset_in_forked_workers(corpus, tmp_path):
    theirs = built(GPTDataset, corpus, tmp_path / "theirs", [50, 0, 0])[0]
    ours = built(OnHbmfs, corpus, tmp_path / "ours", [50, 0, 0])[0]
    loader = torch.utils.data.DataLoader(ours, batch_size=10, num_workers=2)
    batches = [batch["tokens"] for batch in loader]
    assert len(batches) == len(ours) // 10 + (len(ours) % 10 > 0)
    assert torch.equal(torch.cat(batches), torch.stack([theirs[i]["tokens"] for i in range(len(theirs))]))


# --- bad input ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read(pair):
    _, ours = pair
    with pytest.raises(IndexError):
        ours[7]
    with pytest.raises(TypeError, match="not by str"):
        ours["a"]
    with pytest.raises(ValueError, match="step 1"):
        ours[::2]
    with pytest.raises(IndexError):
        ours.get(6, length=301)
    with pytest.raises(IndexError):
        ours.get(0, offset=-1, length=1)
    with pytest.raises(ValueError, match="multimodal=True"):
        _ = ours.sequence_modes
    ours.close()
    with pytest.raises(hbmfs.ClosedError):
        ours[0]


def test_places_where_nothing_is(tmp_path):
    assert not hbmfs.megatron.IndexedDataset.exists(str(tmp_path / "x"))
    with pytest.raises(FileNotFoundError, match="without its ending"):
        hbmfs.megatron.IndexedDataset(str(tmp_path / "x"))
    prefix = write(tmp_path / "x", np.uint16, [[5]])
    assert hbmfs.megatron.IndexedDataset.exists(prefix)
    with pytest.raises(ValueError, match="mount the object storage"):
        hbmfs.megatron.IndexedDataset(prefix, object_storage_config=object())


def damaged(at, data):
    return lambda index: index[:at] + data + index[at + len(data) :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged(0, b"TNTIDX"), "no Megatron index"),
        (damaged(9, struct.pack("<Q", 2)), "version 2"),
        (damaged(17, b"\x09"), "byte 17 is 9"),
        (damaged(18, struct.pack("<Q", 1 << 61)), "is the copy complete"),
        (damaged(26, struct.pack("<Q", 1 << 63)), "is the copy complete"),
        (damaged(26, struct.pack("<Q", 0)), "last document"),
        (damaged(34 + 12 * 3 + 8 * 2, struct.pack("<q", 2)), "last document"),
        (lambda index: index[:33], "fewer than a Megatron index's header"),
        (lambda index: b"", "0 bytes"),
    ],
)
def test_damaged_indices(tmp_path, damage, message):
    prefix = write(tmp_path / "text", np.uint16, [[5, 3], [4]])
    path = tmp_path / "text.idx"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(hbmfs.FormatError, match=message):
        hbmfs.megatron.IndexedDataset(prefix)


def test_every_truncation_of_an_index_is_refused(tmp_path):
    prefix = write(tmp_path / "text", np.uint16, [[5, 3], [4]])
    whole = (tmp_path / "text.idx").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "text.idx").write_bytes(whole[:size])
        with pytest.raises(hbmfs.FormatError):
            hbmfs.megatron.IndexedDataset(prefix)


def test_pointers_that_lead_astray(tmp_path):
    prefix = write(tmp_path / "text", np.uint16, [[5, 3], [4]])
    path = tmp_path / "text.idx"
    whole = path.read_bytes()
    for pointer, error in ((3, hbmfs.FormatError), (-2, IndexError), (1 << 62, IndexError), (18, IndexError)):
        path.write_bytes(damaged(34 + 4 * 3, struct.pack("<q", pointer))(whole))
        ours = hbmfs.megatron.IndexedDataset(prefix)
        with pytest.raises(error):
            ours[0]
        ours.close()


def test_an_index_with_any_wrong_byte_is_an_error_or_read(tmp_path):
    prefix = write(tmp_path / "text", np.uint16, [[5, 3], [4], [20]])
    path = tmp_path / "text.idx"
    whole = path.read_bytes()
    random = np.random.default_rng(6)
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(damaged(at, bytes([whole[at] ^ (1 << random.integers(8))]))(whole))
        try:
            ours = hbmfs.megatron.IndexedDataset(prefix)
        except hbmfs.Error:
            refused += 1
            continue
        for read in (lambda d: [d[i] for i in range(len(d))], lambda d: d[:], lambda d: d.get(1, 1)):
            try:
                read(ours)
            except hbmfs.Error:
                refused += 1
        ours.close()
    assert refused > 34
