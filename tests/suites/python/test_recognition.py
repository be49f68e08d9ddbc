"""What hbmfs.open says of files that no header describes: names of types, guesses of the mount, files that tell of others beside them."""

import json
import os
import pickle
import subprocess
import warnings

import hbmfs
import numpy as np
import pytest
import samples_folder
import torch


@pytest.fixture
def mounted(tmp_path):
    """Mounts a directory, and takes the mounts away again."""
    binary, points = os.environ["HBMFS_BINARY"], []

    def make(source, *flags):
        point = tmp_path / f"mount{len(points)}"
        subprocess.run([binary, "mount", "--log-file", str(tmp_path / "log"), *flags, str(source), str(point)], check=True, capture_output=True)
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run([binary, "umount", str(point)], check=True)


# TestParseDTypeTakesTheNamesOfOthers in layout has the same names for the command line.
@pytest.mark.parametrize(
    "dtype",
    ["u16", "uint16", "u2", "<u2", "=u2", "np.uint16", "numpy.uint16", "torch.uint16", "jnp.uint16", np.uint16, np.dtype("<u2"), torch.uint16],
)
def test_a_type_has_the_names_of_the_command_line_and_of_others(tmp_path, dtype):
    path = tmp_path / "train.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    with hbmfs.open(path, dtype=dtype) as dataset:
        assert dataset.dtype == np.uint16
        assert np.array_equal(dataset.read(7, 3), [7, 8, 9])


@pytest.mark.parametrize(
    ("name", "wanted"), [("i64", "int64"), ("u32", "uint32"), ("f32", "float32"), ("int8", "int8"), ("uint8", "uint8"), ("<u8", "uint64"), ("<i8", "int64")]
)
def test_short_names_count_bits_and_numpys_bytes(tmp_path, name, wanted):
    np.zeros(64, np.uint8).tofile(tmp_path / "a.bin")
    with hbmfs.open(tmp_path / "a.bin", dtype=name) as dataset:
        assert dataset.dtype == np.dtype(wanted)


@pytest.mark.parametrize(("dtype", "says"), [("u8", "'uint8' or 'uint64'"), ("i8", "'int8' or 'int64'"), ("u17", "'uint16'"), ("f,", "'uint16'"), (torch.bfloat16, "'uint16'")])
def test_a_name_that_means_two_types_or_none_is_refused(tmp_path, dtype, says):
    np.zeros(64, np.uint8).tofile(tmp_path / "a.bin")
    with pytest.raises(hbmfs.DtypeError, match=says):
        hbmfs.open(tmp_path / "a.bin", dtype=dtype)


def test_a_guessed_type_is_told(source, mounted):
    point = mounted(source / "nanogpt")
    with pytest.warns(UserWarning, match="uint16 by a guess.*--dtype") as heard:
        dataset = hbmfs.open(point / "train")
    assert heard[0].filename == __file__ and dataset.guessed and "uint16 (guessed) tokens" in repr(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = pickle.loads(pickle.dumps(dataset))  # as worker processes get it
        copy.close()
        with hbmfs.open(point / "train", dtype="u16") as sure:
            assert sure.guessed and len(sure) == len(dataset)
        told = mounted(source / "nanogpt", "--dtype", "np.uint16")
        with hbmfs.open(told / "train") as sure:
            assert not sure.guessed and "(guessed)" not in repr(sure)
    dataset.close()
    with pytest.raises(hbmfs.DtypeError, match="by a guess of its mount: mount its source with --dtype uint8"):
        hbmfs.open(point / "train", dtype="uint8")


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        (np.random.default_rng(1).integers(0, 1 << 16, 100_000, np.uint16), "--dtype uint16"),
        (np.random.default_rng(1).integers(0, 32_000, 100_000).astype(np.uint16), "--dtype uint16"),
        (np.random.default_rng(1).integers(0, 4, 100_000).astype(np.uint8), "--dtype uint8"),
        (np.random.default_rng(1).integers(0, 50_257, 100_000), "--dtype int64"),
    ],
    ids=["uniform", "below 32000", "bytes", "int64"],
)
def test_tokens_that_are_not_recognized_are_named(tmp_path, mounted, values, flag):
    (tmp_path / "data").mkdir()
    values.tofile(tmp_path / "data" / "train.bin")
    point = mounted(tmp_path / "data")
    with pytest.raises(hbmfs.NotFoundError, match=f"train.bin: .*{flag}"):
        hbmfs.open(point)
    shown = mounted(tmp_path / "data", flag.split()[0], flag.split()[1])
    with hbmfs.open(shown) as dataset:
        assert not dataset.guessed and np.array_equal(dataset.read(0, len(values)), values)


def test_megatrons_index_says_the_type(source, mount, tmp_path):
    for folder in (source / "megatron", mount / "megatron"):
        path = next(folder.glob("*.bin"))
        with hbmfs.open(path) as dataset, hbmfs.open(path.with_suffix("")) as prefix, hbmfs.open(path.with_suffix(".idx")) as index:
            assert not dataset.guessed and len(dataset) == len(prefix) == len(index)
            assert np.array_equal(dataset.read(0, len(dataset)), np.fromfile(source / "megatron" / path.name, dataset.dtype))
        with pytest.raises(hbmfs.DtypeError, match="leave dtype= out"):
            hbmfs.open(path, dtype="float64")
    cut = tmp_path / path.name
    cut.write_bytes(path.read_bytes()[:-2])
    path.with_suffix(".idx").read_bytes()
    cut.with_suffix(".idx").write_bytes(path.with_suffix(".idx").read_bytes())
    with pytest.raises(hbmfs.FormatError, match="is the copy complete"):
        hbmfs.open(cut)


def test_the_manifest_of_pack_says_the_type(tmp_path):
    values = np.arange(1000, dtype=np.uint32) % 70
    values.tofile(tmp_path / "train.bin")
    (tmp_path / "hbmfs-manifest.json").write_text(json.dumps({"format": "nanogpt", "dtype": "u32", "files": [{"name": "train.bin", "size": 4000}]}))
    with hbmfs.open(tmp_path / "train.bin") as dataset:
        assert dataset.dtype == np.uint32 and len(dataset) == 1000
    with hbmfs.nanogpt.batches(tmp_path, 8, 4, "cpu") as get_batch:
        assert int(get_batch("train")[0].max()) < 70, "the tokens were read as another type"
    with pytest.raises(hbmfs.DtypeError):
        hbmfs.open(tmp_path / "train.bin", dtype="uint16")


@pytest.mark.parametrize("what", [hbmfs.open, hbmfs.load_safetensors])
def test_an_address_is_mounted_first(what):
    for address in ("s3://bucket/a b", "https://host/data/"):
        with pytest.raises(hbmfs.InvalidError, match="mount it first, by `hbmfs mount .*bucket|mount it first, by `hbmfs mount https://host"):
            what(address)
    with pytest.raises(hbmfs.InvalidError, match="ftp://bucket/data is an address that hbmfs does not read"):
        what("ftp://bucket/data")


def test_several_sets_of_a_directory(tmp_path):
    """Shards of one directory whose fields differ are sets of their own, and none of them stands for all."""
    views = tmp_path / ".hbmfs" / "views"
    samples_folder.write(views / "fields", {"number": np.arange(5)})
    samples_folder.write(views / "arrow" / "fields", {"number": np.arange(3), "other": np.arange(3)})
    with pytest.raises(hbmfs.InvalidError, match=r"2 sets of samples \(\., arrow\): name one, as in '.*/\.hbmfs/views/fields'"):
        hbmfs.SampleDataset(tmp_path)
    for path, samples in ((views / "fields", 5), (tmp_path / "arrow", 3)):
        with hbmfs.SampleDataset(path) as data:
            assert len(data) == samples
