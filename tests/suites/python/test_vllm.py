"""The plugin for vLLM, beside a stand-in for the parts of vLLM 0.33.0 that it touches.

vLLM itself needs a GPU's libraries to be imported. The stand-in has the names and the signatures of its loaders, and what
they do with files: vllm/model_executor/model_loader/__init__.py, default_loader.py and ep_weight_filter.py.
"""

import dataclasses
import json
import re
import sys
import tomllib
import types
from pathlib import Path

import hbmfs
import pytest
import safetensors.torch
import torch
from test_group import Ranks
from test_weights import random_model, same


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    safetensors_load_strategy: str | None = None
    device: str | None = "cpu"


class Default:
    """What DefaultModelLoader does."""

    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None = None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None

    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        self.load_config = load_config
        self.local_expert_ids = None

    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
        if self.load_config.load_format != "safetensors":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = Path(model_name_or_path, subfolder or "")
        files = [str(path) for path in folder.glob((allow_patterns_overrides or ["*.safetensors"])[0])]
        index = "model.safetensors.index.json"
        if (folder / index).exists():  # filter_duplicate_safetensors_files
            named = set(json.loads((folder / index).read_text())["weight_map"].values())
            files = [file for file in files if Path(file).name in named]
        found = str(folder), files, not files[0].endswith(".pt"), index
        return found if self.names_the_index else found[:3]

    names_the_index = True  # older ones do not

    def _get_weights_iterator(self, source):
        yield source.prefix + "their own", torch.zeros(1)

    def load_weights(self, model, model_config):
        model.load_weights(self._get_weights_iterator(self.Source(model_config.model, model_config.revision)))
        for source in getattr(model, "secondary_weights", ()):
            model.load_weights(self._get_weights_iterator(source))


class Model:
    """A model that copies what it is given."""

    def __init__(self):
        self.weights = {}

    def load_weights(self, pairs):
        for name, tensor in pairs:
            assert name not in self.weights
            self.weights[name] = tensor.clone()


def stand_in(group=None, size=1):
    """Puts the stand-in where Python finds it, and gives the loaders by load format."""
    loaders, modules = {}, {}
    for name in ("vllm", "vllm.model_executor", "vllm.distributed", "vllm.model_executor.model_loader"):
        modules[name] = types.ModuleType(name)
    for name in ("default_loader", "ep_weight_filter"):
        modules[f"vllm.model_executor.model_loader.{name}"] = types.ModuleType(name)
    package = modules["vllm.model_executor.model_loader"]
    package.register_model_loader = lambda load_format: lambda cls: loaders.setdefault(load_format, cls)
    modules["vllm.model_executor.model_loader.default_loader"].DefaultModelLoader = Default

    def should_skip_weight(name, ids):
        expert = re.search(r"\.experts\.(\d+)\.", name)
        return expert is not None and int(expert[1]) not in ids

    modules["vllm.model_executor.model_loader.ep_weight_filter"].should_skip_weight = should_skip_weight
    modules["vllm.distributed"].get_tp_group = lambda: types.SimpleNamespace(world_size=size, device_group=group)
    sys.modules.update(modules)
    return loaders


@pytest.fixture
def loaders(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    found = stand_in()
    hbmfs.vllm.register()
    yield found
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "vllm":
            del sys.modules[name]


def load(loader, path, model=None):
    model = model or Model()
    loader.load_weights(model, types.SimpleNamespace(model=str(path), revision=None))
    return model.weights


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(2):
        tensors = {f"{number}.{name}": tensor for name, tensor in random_model(number).items()}
        safetensors.torch.save_file(tensors, folder / f"model-{number}.safetensors")
    return folder


def whole(path):
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in safetensors.torch.load_file(file).items()}


@pytest.mark.parametrize("part", [1, 50_000, 1 << 30])
def test_all_weights(loaders, path, monkeypatch, part):
    monkeypatch.setattr(hbmfs.vllm, "PART", part)
    config = LoadConfig("hbmfs")
    same(load(loaders["hbmfs"](config), path), whole(path))
    assert config.load_format == "hbmfs"


def test_other_sources(loaders, path):
    model = Model()
    model.secondary_weights = [
        Default.Source(str(path.parent), subfolder="model", prefix="vision."),
        Default.Source(str(path), prefix="old.", allow_patterns_overrides=["*.pt"]),
    ]
    (path / "old.pt").write_bytes(b"")
    expected = whole(path)
    found = load(loaders["hbmfs"](LoadConfig("hbmfs")), path, model)
    assert torch.equal(found.pop("old.their own"), torch.zeros(1))
    same(found, expected | {f"vision.{name}": tensor for name, tensor in expected.items()})


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stale", ["model-0", "model-1", "old"])
def test_the_index_says_which_file_a_tensor_is_from(loaders, path, monkeypatch, stale, named):
    """A copy in another shard, before it or behind it, or in a file of which the index says nothing, is not the model's."""
    monkeypatch.setattr(Default, "names_the_index", named)
    expected = whole(path)
    index = {name: f"model-{name.partition('.')[0]}.safetensors" for name in expected}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (path / "other.safetensors.index.json").write_text("not that of vLLM")
    file = path / f"{stale}.safetensors"
    shard = safetensors.torch.load_file(file) if file.exists() else {}
    safetensors.torch.save_file({name: torch.zeros_like(tensor) for name, tensor in expected.items()} | shard, file)
    same(load(loaders["hbmfs"](LoadConfig("hbmfs")), path), expected)


def test_an_index_that_lies(loaders, path):
    index = dict.fromkeys(safetensors.torch.load_file(path / "model-0.safetensors"), "model-0.safetensors") | {"a": "model-2.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(hbmfs.NotFoundError, match=r"no file .*model-2\.safetensors, though the index of its model says that 'a' is in it"):
        load(loaders["hbmfs"](LoadConfig("hbmfs")), path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | {"a": "model-1.safetensors"}}))
    with pytest.raises(hbmfs.FormatError, match=r"model-1\.safetensors has no tensor 'a'"):
        load(loaders["hbmfs"](LoadConfig("hbmfs")), path)


def test_two_copies_and_no_index(loaders, path):
    (path / "copy.safetensors").write_bytes((path / "model-0.safetensors").read_bytes())
    with pytest.raises(hbmfs.FormatError, match=r"is in .*copy\.safetensors and in .*model-0\.safetensors: write an index"):
        load(loaders["hbmfs"](LoadConfig("hbmfs")), path)


def test_torchao_is_left_to_vllm(loaders, path):
    assert list(load(loaders["hbmfs"](LoadConfig("hbmfs", safetensors_load_strategy="torchao")), path)) == ["their own"]


def test_experts_of_this_rank(loaders, tmp_path):
    tensors = {f"layers.0.experts.{expert}.w": torch.full((3,), float(expert)) for expert in range(8)} | {"layers.0.norm": torch.ones(2)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    loader = loaders["hbmfs"](LoadConfig("hbmfs"))
    loader.local_expert_ids = {2, 3}
    assert set(load(loader, tmp_path)) == {"layers.0.experts.2.w", "layers.0.experts.3.w", "layers.0.norm"}


def rank_of_tensor_parallelism(rank, size, path):
    loaders = stand_in(torch.distributed.group.WORLD, size)
    hbmfs.vllm.register()
    hbmfs.vllm.PART = 100_000
    readers, real = [], hbmfs.vllm.open_reader

    def remember(*arguments):
        readers.append(real(*arguments))
        return Counted(readers[-1])

    hbmfs.vllm.open_reader = remember
    same(load(loaders["hbmfs"](LoadConfig("hbmfs")), path), whole(path))
    return Counted.total


class Counted:
    """A reader whose bytes are counted when it is closed."""

    total = 0

    def __init__(self, reader):
        self._reader = reader

    def __enter__(self):
        return self._reader

    def __exit__(self, *_):
        Counted.total += sum(self._reader.stats()["bytes"].values())
        self._reader.close()


def test_ranks_of_tensor_parallelism_read_each_byte_once(path):
    read = Ranks(2, rank_of_tensor_parallelism, path).wait()
    assert sum(read) == sum(tensor.nbytes for tensor in whole(path).values())
    assert max(read) < 0.8 * sum(read)


def test_vllm_of_another_version(monkeypatch):
    """vLLM goes on without this load format."""
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with pytest.warns(UserWarning, match="no load format of this vLLM"):
        hbmfs.vllm.register()


def test_entry_point():
    project = tomllib.loads((Path(hbmfs.__file__).parents[1] / "pyproject.toml").read_text())
    module, name = project["project"]["entry-points"]["vllm.general_plugins"]["hbmfs"].split(":")
    assert getattr(__import__(module, fromlist=[name]), name) is hbmfs.vllm.register
