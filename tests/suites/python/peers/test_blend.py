"""The sources of a mixture as people have them written, and shares beside Megatron's own blending."""

import json
import sys
import warnings

import hbmfs
import numpy as np
import pytest
import torch
from test_megatron import write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.datasets import helpers
    from megatron.core.datasets.utils import get_blend_from_list


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:megatron")


@pytest.fixture
def prefixes(tmp_path):
    return [write(tmp_path / f"{name}_text_document", np.uint16, [[50 * n, 30], [20], [7]]) for n, name in enumerate(("web", "code", "books"), 1)]


def close(sources):
    for dataset, _ in sources.values():
        dataset.close()


@pytest.mark.parametrize("written", [list, " ".join])
def test_the_data_path_of_megatron(prefixes, written):
    words = [word for prefix, weight in zip(prefixes, ("0.7", "30", "2e-1"), strict=True) for word in (weight, prefix)]
    theirs = dict(zip(*get_blend_from_list(words), strict=True))
    found = hbmfs.mixture.sources(written(words))
    assert {name: float(weight) for name, (_, weight) in found.items()} == theirs
    for prefix, (dataset, _) in found.items():
        theirs = hbmfs.megatron.IndexedDataset(prefix)
        assert np.array_equal(dataset.read(0, len(dataset)), np.concatenate(theirs[:])) and dataset.dtype == np.uint16
        theirs.close()
    mix = hbmfs.Mixture(found, 4, 5, documents=True)
    assert next(iter(mix)).shape == (4, 5)
    close(found)


def test_prefixes_without_weights_have_their_sizes(prefixes):
    for some in (prefixes, prefixes[:2], prefixes[:1]):
        found = hbmfs.mixture.sources(some)
        assert [weight for _, weight in found.values()] == [len(dataset) for dataset, _ in found.values()]
        close(found)


def test_files(prefixes, tmp_path):
    given = {"web": {"path": prefixes[0], "weight": 0.7}, "code": {"path": f"{prefixes[1]}.bin", "weight": "1/3"}}
    (tmp_path / "mix.json").write_text(json.dumps(given))
    (tmp_path / "mix.yaml").write_text(f"web: {{path: {prefixes[0]}, weight: 0.7}}\ncode:\n  path: {prefixes[1]}.bin\n  weight: 1/3\n")
    for spec in (given, tmp_path / "mix.json", str(tmp_path / "mix.yaml")):
        found = hbmfs.mixture.sources(spec, dtype="uint16")
        assert list(found) == ["web", "code"] and [weight for _, weight in found.values()] == [0.7, "1/3"]
        next(iter(hbmfs.Mixture(found, 2, 5)))
        close(found)


def test_documents_of_a_bin_are_those_of_its_view(mount, expect):
    with hbmfs.open(mount / "megatron/corpus_text_document.bin", dtype="uint16") as dataset:
        assert dataset.documents.tolist() == expect["megatron"]["splits"][""]["document_starts"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], hbmfs.InvalidError, "empty"),
        ("0.5 /nowhere 0.5 /nowhere", hbmfs.InvalidError, "twice"),
        ("0.5 /nowhere", hbmfs.NotFoundError, "/nowhere"),
        ({"web": "/mnt"}, hbmfs.FormatError, "path and a weight"),
        ({"web": {"path": "/mnt", "wieght": 1}}, hbmfs.FormatError, "path and a weight"),
        ({}, hbmfs.FormatError, "no mapping"),
    ],
)
def test_mistakes(given, error, message):
    with pytest.raises(error, match=message):
        hbmfs.mixture.sources(given)


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.json", "[1]"), ("a.yaml", "a: ["), ("a.yaml", ""), ("a.yml", "a: {weight: 1}")])
def test_damaged_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(hbmfs.FormatError, match=name):
        hbmfs.mixture.sources(tmp_path / name)


def test_yaml_without_pyyaml(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text("web: {path: x}")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(hbmfs.UnavailableError, match="pip install pyyaml.*json"):
        hbmfs.mixture.sources(tmp_path / "a.yaml")


@pytest.mark.parametrize("weights", [[0.7, 0.25, 0.05], [0.123, 0.456, 0.421], [1.0], [0.5, 0.1, 0.1, 0.1, 0.1, 0.06, 0.04]])
def test_shares_beside_megatrons_blended_dataset(weights):
    """Megatron's own index of a blend (helpers_cpp.build_blending_indices) and ours give the same counts to two samples: its
    greedy choice is at most a little more than one from the share, ours less than one."""
    from test_mixture import mixture, sources

    size = 2000
    index, sample = np.empty(size, np.int16), np.empty(size, np.int64)
    helpers.build_blending_indices(index, sample, np.array(weights), len(weights), size, False)
    ours = np.array(sources(batch for batch, _ in zip(mixture([50] * len(weights), weights, 100), range(20), strict=False)))
    for source, weight in enumerate(weights):
        a, b, share = np.cumsum(ours == source), np.cumsum(index == source), weight * np.arange(1, size + 1)
        assert np.abs(a - b).max() <= 2
        assert np.abs(a - share).max() < 1 < 1.1 + np.abs(b - share).max()


@pytest.mark.parametrize("workers", [0, 2])
def test_files_in_the_workers_of_a_loader(tmp_path, workers):
    """Forked workers read by themselves."""
    for i in range(2):
        write(tmp_path / f"{i}", np.uint16, [[n] for n in np.random.default_rng(i).integers(1, 40, 60)])
    with hbmfs.open(tmp_path / "0.bin", dtype="uint16") as a, hbmfs.open(tmp_path / "1.bin", dtype="uint16") as b:

        def streams():
            yield hbmfs.Mixture({"a": (a, 0.7), "b": (b.subset(documents=range(1, 60, 2)), 0.3)}, 4, 16, exhausted="drop", packed=True)
            yield hbmfs.PackedStream(a.subset(documents=range(0, 60, 3)), 2, 16, epochs=2)

        for stream, again in zip(streams(), streams(), strict=True):
            loaded = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=workers)
            found, want = ([np.asarray(batch.tokens).tolist() for batch in batches] for batches in (loaded, again))
            assert found == want and len(want) > 5
