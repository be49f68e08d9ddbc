"""A directory with the fields of samples, as a mount shows them."""

import json

import numpy as np


def write(folder, fields, shards=()):
    """Writes fields: arrays are dense, and lists of arrays, one for each sample, are ragged."""
    folder.mkdir(parents=True)
    listed, samples = [], 0
    for name, values in fields.items():
        samples = len(values)
        if isinstance(values, np.ndarray):
            np.save(folder / f"{name}.npy", values)
            listed.append({"name": name, "file": name, "kind": "dense", "dtype": values.dtype.name, "shape": list(values.shape[1:]), "bytes": values.nbytes})
            continue
        flat = np.concatenate(values) if values else np.empty(0, np.uint8)
        np.save(folder / f"{name}.values.npy", flat)
        np.save(folder / f"{name}.offsets.npy", np.append(0, np.cumsum([len(own) for own in values], dtype=np.int64)).astype(np.int64))
        listed.append({"name": name, "file": name, "kind": "ragged", "dtype": flat.dtype.name, "shape": [], "bytes": flat.nbytes})
    relist(folder, samples=samples, fields=listed, shards=[{"name": own, "samples": n} for own, n in shards])


def relist(folder, **changed):
    """Changes fields.json."""
    path = folder / "fields.json"
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changed}))


def made(samples, seed=0, most=300):
    """Fields of random samples: bytes of any length, also of none; an array of float16; the sample's number."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, most, samples)
    lengths[: samples // 5] = 0
    random.shuffle(lengths)
    return {
        "jpg": [random.integers(0, 256, n, np.uint8) for n in lengths],
        "latent": random.standard_normal((samples, 2, 3)).astype(np.float16),
        "wide": [random.integers(0, 1 << 40, n % 7) for n in lengths],
        "number": np.arange(samples),
    }
