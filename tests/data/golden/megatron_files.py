"""Megatron, as Megatron-Core and GPT-NeoX write it."""

import struct

import numpy as np
from registry import dataset, documents, one


def write_megatron(prefix, docs, dtype, modes=None):
    """docs is a list of documents, each a list of sequences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type, multimodal=modes is not None)
    for i, sequences in enumerate(docs):
        builder.add_document(
            torch.from_numpy(np.concatenate(sequences).astype("i8" if np.dtype(dtype).kind != "f" else "f8")),
            [len(sequence) for sequence in sequences],
            modes[i] if modes else None,
        )
    builder.finalize(f"{prefix}.idx")


@dataset("megatron", "megatron", "uint16")
def megatron(out):
    docs = [[doc] for doc in documents(1, 12)]
    docs.insert(5, [*documents(2, 3)])  # a document of three sequences
    write_megatron(out / "corpus_text_document", docs, "u2")
    return one("corpus_text_document.bin")


@dataset("megatron-merge", "megatron", "int32")
def megatron_merge(out):
    write_megatron(out / "a_text_document", [[doc] for doc in documents(3, 7, "i4")], "i4")
    write_megatron(out / "b_text_document", [[*documents(4, 2, "i4")], [*documents(5, 1, "i4")]], "i4")
    return one("a_text_document.bin", "b_text_document.bin")


@dataset("megatron-multimodal", "megatron", "int32", multimodal=True)
def megatron_multimodal(out):
    docs = [[*documents(6 + i, 2, "i4", eot=False)] for i in range(4)]
    write_megatron(out / "pairs", docs, "i4", modes=[[0, 1]] * 4)
    return one("pairs.bin")


def scores(seed):
    return [np.random.default_rng(seed).standard_normal(n) for n in (5, 3, 8)]


@dataset("megatron-float-core", "megatron", "float64")
def megatron_float_core(out):
    write_megatron(out / "scores_document", [[doc] for doc in scores(11)], "f8")
    return one("scores_document.bin")


@dataset("megatron-float-neox", "megatron", "float32", reader="megatron-neox")
def megatron_float_neox(out):
    """By struct, as GPT-NeoX's MMapIndexedDataset.Index.writer does: NeoX has no package on an index."""
    docs = [doc.astype("f4") for doc in scores(12)]
    lengths = [len(doc) for doc in docs]
    pointers = [4 * sum(lengths[:i]) for i in range(len(docs))]
    with open(out / "scores_document.idx", "wb") as f:
        f.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 6, len(docs), len(docs) + 1))
        f.write(struct.pack(f"<{len(docs)}i", *lengths))
        f.write(struct.pack(f"<{len(docs)}q", *pointers))
        f.write(struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1)))
    (out / "scores_document.bin").write_bytes(np.concatenate(docs).tobytes())
    return one("scores_document.bin")


@dataset("megatron-pieces", "megatron", "uint16", reader="megatron-pieces")
def megatron_pieces(out):
    """As the Pile lies on the Hub for Pythia: all pieces of one size but the last, cut without regard to documents."""
    write_megatron(out / "document", [[doc] for doc in documents(13, 46)], "u2")
    data = (out / "document.bin").read_bytes()
    (out / "document.bin").unlink()
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert len(pieces) == 3 and len(pieces[-1]) < 1000, len(data)
    names = [f"document-{i:05d}-of-{len(pieces) - 1:05d}.bin" for i in range(len(pieces))]
    for name, piece in zip(names, pieces):
        (out / name).write_bytes(piece)
    return one(*names)
