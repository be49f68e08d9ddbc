"""hbmfs.safe_open beside safetensors 0.9.0rc1, the real package.

How far this goes: its prefetch loads to GPUs only. So what it refuses is compared with what it does before it looks for one; what it would
give is compared with its get_tensor and get_slice.
"""

import hbmfs
import pytest
import safetensors
import safetensors.torch
import torch
from hbmfs.weights import prefetch

NO_GPU = "no CUDA runtime is loaded"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    tensors = {
        "b": torch.arange(24.0).reshape(4, 6), "a": torch.arange(5).bfloat16(), "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 3),
        "z": torch.arange(7), "fp8": torch.arange(12.0).reshape(3, 2, 2).to(torch.float8_e4m3fn),
    }  # fmt: skip
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return path


@pytest.fixture
def both(path):
    return hbmfs.safe_open(path, framework="pt", device="cpu"), safetensors.safe_open(path, framework="pt", device="cpu")


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_the_same_calls():
    theirs = {name for name in dir(safetensors.safe_open) if not name.startswith("_")}
    assert theirs == {name for name in dir(prefetch.SafeOpen) if not name.startswith("_")}
    loader = {name for name in dir(safetensors.PrefetchLoader) if not name.startswith("_")} | {"__len__", "__iter__", "__enter__", "__exit__"}
    assert loader <= set(dir(prefetch.PrefetchLoader))


def test_headers(both):
    ours, theirs = both
    assert ours.keys() == theirs.keys() and ours.offset_keys() == theirs.offset_keys() and ours.metadata() == theirs.metadata()
    for name in theirs.keys():  # noqa: SIM118 (it is no mapping)
        found, expected = ours.get_tensor_meta(name), theirs.get_tensor_meta(name)
        assert (found.dtype, found.shape, found.data_offsets) == (expected.dtype, expected.shape, tuple(expected.data_offsets))
        found, expected = ours.get_slice(name), theirs.get_slice(name)
        assert (found.get_shape(), found.get_dtype()) == (expected.get_shape(), expected.get_dtype())


def test_whole_tensors(both):
    ours, theirs = both
    with ours.prefetch() as loader:
        assert loader.names() == theirs.offset_keys()
        assert {name: bits(tensor) for name, tensor in loader} == {name: bits(tensor) for name, tensor in theirs.get_tensors().items()}
    assert all(bits(ours.get_tensor(name)) == bits(theirs.get_tensor(name)) for name in theirs.keys())  # noqa: SIM118


BOUNDS = [(None, None), (0, 4), (1, 3), (2, 2), (3, 1), (None, 4), (None, 5), (4, None), (5, None), (-2, None), (-4, -1), (-5, None), (0, -4), (0, -5), (-1, -3), (0, 100)]
PLANS = [
    *({"b": slice(*bounds)} for bounds in BOUNDS), *({"b": slice(0, 4, step)} for step in (1, 2, -1, 0)), {"b": slice("a", None)}, {"b": slice(0.5, None)},
    {"b": 3}, {"b": (slice(0, 2),)}, {"scalar": slice(0, 1)}, {"scalar": None}, {"empty": slice(0, 0)}, {"fp8": slice(1, 2)}, {"z": slice(3, None), "a": None},
    {"nothing": None}, {3: None}, {}, ["b"],
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_plans(both, plan):
    """A plan is refused where theirs refuses it, and gives what their slices give."""
    ours, theirs = both
    try:
        theirs.prefetch(plan, device=0)
    except safetensors.SafetensorError as err:
        refused = NO_GPU not in str(err)
    except TypeError:
        refused = True
    if refused:
        with pytest.raises(hbmfs.InvalidError):
            ours.prefetch(plan)
        return
    with ours.prefetch(plan) as loader:
        assert set(loader.names()) == set(plan) and loader.names() == [name for name in theirs.offset_keys() if name in plan]
        found = dict(loader)
    for name, rows in plan.items():
        assert bits(found[name]) == bits(theirs.get_tensor(name) if rows is None else theirs.get_slice(name)[rows])


@pytest.mark.parametrize(
    "index",
    [slice(1, 3), (slice(1, 3), slice(2, 4)), (..., slice(2, 4)), [0, 1], 1, -1, (1, 2), slice(None, None, 2), slice(0, 100), slice(3, 1), slice(-3, None), (slice(None), 0), 9],
    ids=str,
)
def test_slices(both, index):
    ours, theirs = both
    try:
        expected = theirs.get_slice("b")[index]
    except IndexError:
        with pytest.raises(IndexError):
            ours.get_slice("b")[index]
        return
    assert bits(ours.get_slice("b")[index]) == bits(expected)


def test_wrong_calls(both, path):
    """Where theirs raises, ours does. Of files that are missing both say so by FileNotFoundError."""
    ours, theirs = both
    with ours, theirs:
        pass
    for f, error in ((ours, hbmfs.Error), (theirs, safetensors.SafetensorError)):
        for call in (f.keys, f.prefetch, lambda f=f: f.get_tensor("a"), lambda f=f: f.get_slice("a")):
            with pytest.raises(error):
                call()
    for library, error in ((hbmfs, hbmfs.Error), (safetensors, safetensors.SafetensorError)):
        with pytest.raises(FileNotFoundError):
            library.safe_open(path.with_name("nothing"), framework="pt")
        f = library.safe_open(path, framework="pt")
        for call in (
            lambda f=f: f.get_tensor("nothing"), lambda f=f: f.get_slice("nothing"), lambda f=f: f.get_tensor_meta("nothing"),
            lambda f=f: f.prefetch(device="mps"), lambda f=f: f.prefetch(device=-1), lambda library=library: library.safe_open(path, framework="none"),
        ):  # fmt: skip
            with pytest.raises(error):
                call()
        with pytest.raises(TypeError):
            f.prefetch(None, "cuda:0")
