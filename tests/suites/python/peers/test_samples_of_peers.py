"""Samples as the packages that wrote them read them, and torchvision's decoder on hbmfs's threads."""

import io
import os
import subprocess

import hbmfs
import numpy as np
import pytest
import torch
from test_coming_from import run

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tensors")]
SAMPLES = 60


@pytest.fixture
def tensors(monkeypatch):
    monkeypatch.setattr("hbmfs._lib._device.torch_is_imported", lambda: True)


def jpeg(number):
    """An image whose size and colours follow from its number."""
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(number).integers(0, 256, (8 + number % 5, 16, 3), np.uint8))
    image.save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


@pytest.fixture
def mounted(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "mount").mkdir()

    def mount():
        if not os.path.ismount(tmp_path / "mount"):
            subprocess.run([os.environ["HBMFS_BINARY"], "mount", tmp_path / "data", tmp_path / "mount"], check=True, stdout=subprocess.DEVNULL)
        return tmp_path / "mount"

    yield tmp_path / "data", mount
    subprocess.run([os.environ["HBMFS_BINARY"], "umount", "--lazy", tmp_path / "mount"], check=False, stdout=subprocess.DEVNULL)


def test_webdataset_and_decode_jpeg(mounted):
    import webdataset
    from torchvision.io import decode_jpeg

    data, mount = mounted
    with webdataset.ShardWriter(f"{data}/%04d.tar", maxcount=17, verbose=0) as out:
        for i in range(SAMPLES):
            out.write({"__key__": f"{i:05d}" * (1 + 30 * (i % 3)), "jpg": jpeg(i), "cls": i, "txt": "x" * (i % 4)})  # long keys, and empty values
    theirs = list(webdataset.WebDataset(sorted(map(str, data.glob("*.tar"))), shardshuffle=False))
    assert len(theirs) == SAMPLES
    with hbmfs.SampleDataset(mount()) as ds:
        for ours, want in zip(ds, theirs, strict=True):
            assert {name: value.numpy().tobytes() for name, value in ours.items()} == {name: value for name, value in want.items() if name[0] != "_"}
        for batch in hbmfs.SampleStream(ds, 7, ["jpg", "cls"], seed=5, epochs=1, drop_last=False, decode={"jpg": decode_jpeg}):
            for image, label in zip(batch["jpg"], batch["cls"].rows(), strict=True):
                assert torch.equal(image, decode_jpeg(torch.frombuffer(bytearray(theirs[int(label.numpy().tobytes())]["jpg"]), dtype=torch.uint8)))
        nested = ds.gather([3, 1])["jpg"].nested()
        assert nested.is_nested and nested.unbind()[1].numpy().tobytes() == theirs[1]["jpg"]
        loader = torch.utils.data.DataLoader(ds, batch_size=8, collate_fn=list, num_workers=2)
        assert [sample["jpg"].numpy().tobytes() for batch in loader for sample in batch] == [want["jpg"] for want in theirs]


def test_mosaicml(mounted):
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    data, mount = mounted
    with MDSWriter(out=str(data), columns={"jpg": "bytes", "latent": "ndarray:float16:2,3", "any": "ndarray:int64", "number": "int"}, size_limit=8192) as out:
        for i in range(SAMPLES):
            out.write({"jpg": jpeg(i)[: 0 if i % 9 == 0 else None], "latent": np.full((2, 3), i, np.float16), "any": np.arange(i % 5 + 1), "number": i})
    clean_stale_shared_memory()
    theirs = StreamingDataset(local=str(data), shuffle=False, batch_size=1)
    with hbmfs.SampleDataset(mount(), ["jpg", "latent", "number"]) as ds:
        assert len(ds) == len(theirs) == SAMPLES
        for batch in hbmfs.SampleStream(ds, 7, seed=5, epochs=1, drop_last=False):
            for jpg, latent, number in zip(batch["jpg"].rows(), batch["latent"], batch["number"].tolist(), strict=True):
                want = theirs[number]
                assert jpg.numpy().tobytes() == want["jpg"] and np.array_equal(latent.numpy(), want["latent"]) and want["number"] == number
    del theirs
    clean_stale_shared_memory()
    before, after = run("Images and other samples of MosaicML Streaming", local=str(data), mounted=mount())
    assert [jpg.numpy().tobytes() for jpg in after["jpgs"]] == [sample["jpg"] for sample in before["before"]]
    assert np.array_equal(after["latents"].numpy(), np.stack([sample["latent"] for sample in before["before"]]))


def test_the_lines_of_coming_from_of_webdataset(source, mount):
    before, after = run("WebDataset", urls=sorted(map(str, (source / "webdataset").glob("*.tar"))), mounted=mount / "webdataset")
    assert [jpg.numpy().tobytes() for jpg in after["jpgs"]] == [jpg for jpg, _ in before["before"]]


def test_the_lines_of_coming_from_of_images_in_parquet(source, mount, tmp_path):
    files = sorted(map(str, (source / "parquet-images").glob("*.parquet")))
    before, after = run("Images in Parquet of Hugging Face", files=files, cache=str(tmp_path), mounted=mount / "parquet-images", batch_size=9)
    assert [image.numpy().tobytes() for image in after["images"]] == [image["bytes"] for image in before["before"]["image"]]
    assert after["labels"].tolist() == before["before"]["label"]
