"""The copier for fastsafetensors, driven by fastsafetensors itself, and by the weight iterators of vLLM and SGLang.

How far this goes: fastsafetensors 0.5.0 is the real package, on the CPU. Of vLLM 0.33.0 and SGLang 0.5.23 the plugin systems, the weight
iterators and vLLM's default loader are the files of their packages. The modules that these import of their engines are mocks. The iterators
name a GPU, for which the CPU stands. No engine runs, and no GPU.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from unittest.mock import MagicMock

import hbmfs
import hbmfs.fastsafetensors as ours
import pytest
import safetensors.torch
import torch
from fastsafetensors import BudgetInfeasibleError, SafeTensorsFileLoader, SingleGroup, live_allocation_count
from fastsafetensors.copier import registry
from fastsafetensors.copier.base import CopierInterface
from fastsafetensors.frameworks import get_framework_op
from fastsafetensors.loader import BaseSafeTensorsFileLoader
from fastsafetensors.parallel_loader import ParallelLoader, PipelineParallel
from fastsafetensors.st_types import Device
from hbmfs._lib import _transfer
from hbmfs.integrations import _on_request
from test_group import Ranks

SHAPES = ((3,), (33, 129), (), (0, 4), (70_001,))
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.int16, torch.uint16, torch.float16,
    torch.bfloat16, torch.int32, torch.uint32, torch.float32, torch.float64, torch.int64, torch.uint64,
]  # fmt: skip


def model(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        for i, shape in enumerate(SHAPES):
            bits = torch.randint(0, 2 if dtype == torch.bool else 256, (torch.Size(shape).numel() * dtype.itemsize,), generator=generator, dtype=torch.uint8)
            tensors[f"{seed}.{number}.{i}"] = bits.view(dtype).view(shape)
    return tensors


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    for number in range(3):
        safetensors.torch.save_file(model(number), tmp_path / "model" / f"model-{number}.safetensors", {"format": "pt"})
    return tmp_path / "model"


@pytest.fixture
def files(folder):
    return [str(path) for path in sorted(folder.glob("*.safetensors"))]


@pytest.fixture
def expected(files):
    return whole(files)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Reads so small that each file has many, and the registry as it was before."""
    monkeypatch.setattr(ours, "REQUEST", 50_000)
    for name in ("_copier_registry", "_copier_class_registry"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


@pytest.fixture(autouse=True)
def freed(request):
    """All memory of fastsafetensors is given back, but where SGLang's iterator keeps each file's, with any copier."""
    before = live_allocation_count()
    yield
    if "sglang" not in request.node.name:
        assert live_allocation_count() == before


@pytest.fixture
def built(monkeypatch):
    """The copiers that were made, each with what it was told."""
    made, real = [], ours.HBMFSCopier.__init__

    def init(self, *arguments):
        real(self, *arguments)
        made.append(self)

    monkeypatch.setattr(ours.HBMFSCopier, "__init__", init)
    return made


def whole(files):
    return {name: tensor for file in files for name, tensor in safetensors.torch.load_file(file).items()}


def pipeline(files, **options):
    return PipelineParallel(SingleGroup(), BaseSafeTensorsFileLoader(SingleGroup(), Device.from_str("cpu"), "hbmfs"), files, use_tqdm_on_load=False, **options)


def loaded(loader):
    try:
        return dict(loader.iterate_weights())
    finally:
        loader.close()


OPTIONS = {
    "whole files": {}, "one after the other": {"queue_size": -1}, "three ahead": {"queue_size": 1}, "no overlap": {"overlap_io": False},
    "chunks": {"max_batch_bytes": 600_000}, "chunks of one size": {"max_batch_bytes": 600_000, "use_chunk_budget_as_allocation_size": True},
    "chunks, no overlap": {"max_batch_bytes": 600_000, "overlap_io": False}, "a budget": {"device_memory_budget": (64 << 20) + 12_000_000},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_by_name(files, expected, built, options):
    loader = pipeline(files, **options)
    assert loader.loader.copier_class is ours.HBMFSCopier
    same(loaded(loader), expected)
    assert len(built) >= len(files) and all(copier._file is None for copier in built)


def test_reads_begin_in_the_order_of_the_files(files, expected, monkeypatch):
    """A few at a time, so that the first tensors come first and the device has no pause between two files."""
    monkeypatch.setattr(ours, "REQUEST", 100_000)
    monkeypatch.setattr(ours, "AHEAD", 250_000)
    begun, under_way, most = [], [], []
    begin, end = ours.HBMFSCopier.begin, ours.HBMFSCopier.end

    def began(self, read):
        begun.append((files.index(self.metadata.src), read.start))
        under_way.append(read)
        most.append(sum(one.size for one in under_way))
        return begin(self, read)

    def ended(self, request):
        end(self, request)
        under_way.pop(0)

    monkeypatch.setattr(ours.HBMFSCopier, "begin", began)
    monkeypatch.setattr(ours.HBMFSCopier, "end", ended)
    same(loaded(pipeline(files, queue_size=1)), expected)
    assert begun == sorted(begun) and len(begun) > 2 * len(files) and 150_000 < max(most) <= 250_000 and not under_way


def test_reads_wait_for_the_work_on_a_stream_until_there_is_memory(files, expected, monkeypatch):
    """They do not wait for work that the consumer adds while the file is opened, which may wait for other ranks."""
    done = []
    for owner, name in ((type(get_framework_op("pytorch")), "alloc_tensor_memory"), (ours.HBMFSCopier, "_stream_until_now"), (hbmfs.Reader, "open_file")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments, real=real, name=name: done.append(name) or real(*arguments))
    same(loaded(pipeline(files)), expected)
    assert done == ["alloc_tensor_memory", "_stream_until_now", "open_file"] * len(files)


def test_files_of_a_mount(folder, expected, tmp_path, built):
    point = tmp_path / "mount"
    point.mkdir()
    subprocess.run([os.environ["HBMFS_BINARY"], "mount", folder, point], check=True, stdout=subprocess.DEVNULL)
    try:
        mounted, real = [], ours.HBMFSCopier._begin

        def begin(self, *arguments):
            mounted.append(self._file.stats()["mounted"])
            real(self, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ours.HBMFSCopier, "_begin", begin)
            for options in ({}, {"max_batch_bytes": 600_000}):
                same(loaded(pipeline([str(path) for path in sorted(point.glob("*.safetensors"))], **options)), expected)
        assert len(mounted) == len(built) and all(mounted)
    finally:
        subprocess.run([os.environ["HBMFS_BINARY"], "umount", point], check=True)


def test_a_filter_reads_what_it_keeps(files, expected):
    kept = {name: tensor for name, tensor in expected.items() if name.endswith(".1")}
    read, real = [], hbmfs.File.read_into
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hbmfs.File, "read_into", lambda self, pointer, at, size, *more: read.append(size) or real(self, pointer, at, size, *more))
        for options in ({}, {"max_batch_bytes": 600_000}, {"overlap_io": False}):
            same(loaded(pipeline(files, tensor_filter=lambda name: name in kept, **options)), kept)
    assert sum(read) == 3 * sum(tensor.nbytes for tensor in kept.values())


def test_tensors_live_on_after_their_loader(files, expected):
    loader = BaseSafeTensorsFileLoader(SingleGroup(), Device.from_str("cpu"), "hbmfs")
    loader.add_filenames({0: files})
    buffer = loader.copy_files_to_device(allow_inflight=True)
    found = {name: buffer.get_tensor(name) for name in loader.get_keys()}
    buffer.close()
    loader.close()
    same(found, expected)
    del found


def test_the_planner_hears_what_the_device_needs(files):
    told = ours.HBMFSCopier.chunk_transient_multiplier(files), ours.HBMFSCopier.chunk_device_overhead(files), ours.HBMFSCopier.fixed_device_overhead(files)
    assert told == (1, 0, 64 << 20)
    with pytest.raises(BudgetInfeasibleError, match="HBMFSCopier"):
        pipeline(files, device_memory_budget=(64 << 20) + 1_000_000)


def test_a_tensor_that_was_not_read(files):
    loader = BaseSafeTensorsFileLoader(SingleGroup(), Device.from_str("cpu"), "hbmfs")
    loader.add_filenames({0: files[:1]})
    metadata, _ = loader.meta[files[0]]
    copier = loader.copier_constructor(metadata, loader.device, loader.framework)
    copier.set_byte_ranges(metadata.select_byte_ranges(lambda name: name == "0.0.1"))
    buffer = copier.submit_io(True, 1 << 30)
    copier.wait_tensor("0.0.1")
    with pytest.raises(hbmfs.InvalidError, match=r"'0\.0\.4' of .* was filtered out"):
        copier.wait_tensor("0.0.4")
    copier.finish_io()
    loader.framework.free_tensor_memory(buffer, loader.device)
    copier = loader.copier_constructor(metadata, loader.device, loader.framework)
    copier.set_chunk([(metadata.header_length, metadata.header_length + 3)], {"0.0.0"})
    buffer = copier.submit_io(True, 1 << 30)
    with pytest.raises(hbmfs.InvalidError, match="is not in this chunk"):
        copier.wait_tensor("0.0.1")
    copier.finish_io()
    loader.framework.free_tensor_memory(buffer, loader.device)
    with pytest.raises(hbmfs.InvalidError, match="max_copy_block_size is 0"):
        copier.submit_io(True, 0)
    with pytest.raises(ValueError, match="beyond the end"):
        copier.set_byte_ranges([(metadata.header_length, 1 << 40)])
    loader.close()


@pytest.mark.parametrize("options", [{}, {"overlap_io": False}, {"max_batch_bytes": 600_000}], ids=str)
def test_a_read_that_fails_names_the_file(files, built, options, monkeypatch):
    """The error is that of hbmfs, nothing is under way any more, and the next load works."""
    real = hbmfs.Request.wait

    def wait(self, *arguments):
        real(self, *arguments)
        if self._owner is not None and self._owner.path == files[1]:
            raise hbmfs.ReadError(f"{files[1]} cannot be read at byte 7: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(hbmfs.Request, "wait", wait)
        with pytest.raises(hbmfs.ReadError, match=re.escape(files[1])):
            loaded(pipeline(files, **options))
    assert all(copier._file is None and copier._begun == copier._ended for copier in built)
    same(loaded(pipeline(files, **options)), whole(files))


def test_a_file_that_changed_since_its_header_was_read(files):
    loader = BaseSafeTensorsFileLoader(SingleGroup(), Device.from_str("cpu"), "hbmfs")
    loader.add_filenames({0: files})
    with open(files[1], "ab") as file:
        file.write(b"more")
    with pytest.raises(hbmfs.FormatError, match=r"model-1\.safetensors changed"):
        loader.copy_files_to_device()
    loader.close()


def test_no_memory(files, monkeypatch):
    monkeypatch.setattr("fastsafetensors.frameworks._torch.cpu_malloc", lambda size: 0)
    monkeypatch.setattr("fastsafetensors.frameworks._torch.cpu_free", lambda at: None)
    with pytest.raises(hbmfs.OutOfMemoryError, match="bytes left for .*model-0"):
        loaded(pipeline(files))


def test_other_frameworks_are_refused():
    with pytest.raises(hbmfs.UnavailableError, match="is for paddle: choose another"):
        registry.create_copier_constructor("hbmfs", Device.from_str("cpu"), framework=types.SimpleNamespace(get_name=lambda: "paddle"))
    with pytest.raises(hbmfs.InvalidError, match="no path"):
        registry.create_copier_constructor("hbmfs", Device.from_str("cpu"), framework=get_framework_op("pytorch"), method="gds")


def test_another_fastsafetensors(monkeypatch):
    """Older ones have no classes in their registry. An engine goes on, with a warning."""
    monkeypatch.setenv(_on_request.VARIABLE, "1")
    monkeypatch.delitem(sys.modules, "hbmfs.integrations.fastsafetensors")
    monkeypatch.delattr(hbmfs.integrations, "fastsafetensors")
    monkeypatch.delattr("fastsafetensors.copier.base.validated_chunk_allocation_size")
    with pytest.warns(UserWarning, match=r"HBMFS_FASTSAFETENSORS=1 has no effect: .* 0\.5 or later: .*validated_chunk_allocation_size"):
        _on_request.replace_copiers("vllm")
    monkeypatch.setitem(sys.modules, "fastsafetensors.copier.base", None)
    with pytest.warns(UserWarning, match="pip install"):
        _on_request.replace_copiers("vllm")


def test_all_that_a_copier_has_to_have():
    ours_has = dict(inspect.getmembers(ours.HBMFSCopier, callable))
    for name, theirs in inspect.getmembers(CopierInterface, callable):
        if not name.startswith("_"):
            assert ours_has[name] is not theirs, name
            assert list(inspect.signature(ours_has[name]).parameters) == list(inspect.signature(theirs).parameters), name


def shared(rank, size, files):
    """Each rank reads its files, and fastsafetensors broadcasts them."""
    copiers, real = [], ours.HBMFSCopier.submit_io
    ours.HBMFSCopier.submit_io = lambda self, *arguments: copiers.append(self.metadata.src) or real(self, *arguments)
    group = torch.distributed.group.WORLD
    loader = BaseSafeTensorsFileLoader(group, Device.from_str("cpu"), "hbmfs")
    same(loaded(PipelineParallel(group, loader, files, use_tqdm_on_load=False)), whole(files))
    return copiers


# The engines' own code.

VLLM = {
    "vllm.envs", "vllm.logger", "vllm.logging_utils", "vllm.plugins", "vllm.utils.import_utils", "vllm.model_executor.model_loader.base_loader",
    "vllm.model_executor.model_loader.default_loader", "vllm.model_executor.model_loader.ep_weight_filter", "vllm.model_executor.model_loader.weight_utils",
}  # fmt: skip
SGLANG = {"sglang.srt.environ", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry", "sglang.srt.model_loader.weight_utils"}


class Engine(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds some modules of a package in its files, and mocks for all others."""

    def __init__(self, package, real):
        self.package, self.real = package, real
        self.root = Path(importlib.util.find_spec(package).submodule_search_locations[0])

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.package:
            return None
        file = self.root.joinpath(*name.split(".")[1:])
        if any(inner.startswith(f"{name}.") for inner in self.real) and name not in self.real:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(file)]
            return spec
        if not any(name == inner or (name.startswith(f"{inner}.") and (self.root / f"{file}.py").exists()) for inner in self.real):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if (file / "__init__.py").exists():
            return importlib.util.spec_from_file_location(name, file / "__init__.py", submodule_search_locations=[str(file)])
        return importlib.util.spec_from_file_location(name, file.with_suffix(".py"))

    def create_module(self, spec):
        return None if spec.submodule_search_locations else Mock(spec.name)

    def exec_module(self, module):
        pass


class Mock(types.ModuleType):
    """A module that has whatever is asked for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        value.__or__ = value.__ror__ = lambda *_: object
        setattr(self, name, value)
        return value


class Torch(types.SimpleNamespace):
    """torch, for which every device is the CPU."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, name):
        assert name.startswith("cuda:")
        return torch.device("cpu")


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Gives a package's modules, and this package's entry points, as where it is installed."""

    def take(package, real):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        finder = Engine(package, real)
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        points = tomllib.loads((Path(hbmfs.__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
        information = tmp_path / "site" / "hbmfs-0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hbmfs\nVersion: 0\n")
        (information / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in of.items()) for group, of in points.items()))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return importlib.import_module

    yield take
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "sglang")]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:GDS device node")
@pytest.mark.parametrize("asked", ["1", ""])
def test_vllm(engine, files, folder, expected, built, monkeypatch, asked, caplog):
    """vLLM loads its plugins, and its default loader reads by its own iterator for fastsafetensors."""
    monkeypatch.setenv("VLLM_PLUGINS", "hbmfs")
    monkeypatch.setenv(_on_request.VARIABLE, asked)
    load = engine("vllm", VLLM)
    formats = {}
    load("vllm.model_executor.model_loader").register_model_loader = lambda name: lambda cls: formats.setdefault(name, cls)
    load("vllm.distributed").get_tp_group.return_value.world_size = 1
    logging.getLogger("vllm").setLevel(logging.INFO)
    with caplog.at_level(logging.INFO), monkeypatch.context() as patch:
        patch.setattr(logging.getLogger("vllm"), "propagate", True)
        load("vllm.plugins").load_general_plugins()
    said = [record.getMessage() for record in caplog.records if record.name == "vllm.hbmfs"]
    assert len(said) == (1 if asked else 0) and all("nogds and gds" in line for line in said)
    assert list(formats) == ["hbmfs"]
    utils = load("vllm.model_executor.model_loader.weight_utils")
    assert Path(utils.__file__) == Engine("vllm", VLLM).root / "model_executor/model_loader/weight_utils.py"
    utils.torch = Torch(distributed=torch.distributed)
    utils.enable_tqdm = lambda *_: False
    same(dict(utils.fastsafetensors_weights_iterator(files[::-1], False)), expected)
    assert len(built) == (3 if asked else 0)

    default = load("vllm.model_executor.model_loader.default_loader").DefaultModelLoader
    options = {"use_tqdm_on_load": False, "model_loader_extra_config": {}, "safetensors_load_strategy": None}
    loader = default(types.SimpleNamespace(load_format="fastsafetensors", **options))
    same(dict(loader.get_all_weights(types.SimpleNamespace(model=str(folder), revision=None), torch.nn.Module())), expected)
    assert len(built) == (6 if asked else 0)


def test_vllm_stops_early(engine, files, built, monkeypatch):
    monkeypatch.setenv(_on_request.VARIABLE, "1")
    utils = engine("vllm", VLLM)("vllm.model_executor.model_loader.weight_utils")
    utils.torch, utils.enable_tqdm = Torch(distributed=torch.distributed), lambda *_: False
    _on_request.replace_copiers("vllm")
    weights = utils.fastsafetensors_weights_iterator(files, False)
    next(weights)
    weights.close()
    assert built and all(copier._file is None for copier in built)


@pytest.mark.filterwarnings("ignore:GDS device node")
@pytest.mark.parametrize(("asked", "gds"), [("1", True), ("1", False), ("", True)])
def test_sglang(engine, files, expected, built, monkeypatch, asked, gds, caplog):
    """SGLang loads its plugins, and reads by its own iterator. It keeps the memory of each file, with any copier."""
    monkeypatch.setenv("SGLANG_PLUGINS", "hbmfs")
    monkeypatch.setenv(_on_request.VARIABLE, asked)
    before = live_allocation_count()
    load = engine("sglang", SGLANG)
    with caplog.at_level(logging.INFO):
        load("sglang.srt.plugins").load_plugins()
    assert sum(record.name == "sglang.hbmfs" for record in caplog.records) == len(asked)
    utils = load("sglang.srt.model_loader.weight_utils")
    utils.torch = Torch(distributed=torch.distributed)
    same(dict(utils.fastsafetensors_weights_iterator(files, enable_gds=gds)), expected)
    assert len(built) == (len(files) if asked else 0)
    assert live_allocation_count() == before + len(files)


@pytest.mark.parametrize("loader", [ParallelLoader, SafeTensorsFileLoader])
def test_nothing_is_replaced_unless_it_is_asked_for(loader, files, monkeypatch):
    monkeypatch.delenv(_on_request.VARIABLE, raising=False)
    _on_request.sglang()
    assert registry.get_copier_class("nogds") is not ours.HBMFSCopier
    monkeypatch.setenv(_on_request.VARIABLE, "yes")
    with pytest.warns(UserWarning, match="'yes', which means nothing"):
        _on_request.sglang()
    assert registry.get_copier_class("nogds") is not ours.HBMFSCopier
    ours.replace()
    made = loader(SingleGroup(), *([files] if loader is ParallelLoader else []), device="cpu")
    assert getattr(made, "loader", made).copier_class is ours.HBMFSCopier
    made.close()


def test_ranks_share_the_files(tmp_path):
    """In dtypes that gloo can send."""
    files = [str(tmp_path / f"model-{number}.safetensors") for number in range(3)]
    for number, file in enumerate(files):
        tensors = {name: tensor for name, tensor in model(number).items() if tensor.dtype in (torch.float32, torch.uint8, torch.int64) and tensor.numel()}
        safetensors.torch.save_file(tensors, file)
    assert Ranks(2, shared, files).wait() == [[files[0], files[2]], [files[1]]]
