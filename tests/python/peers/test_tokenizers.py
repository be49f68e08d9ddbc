"""hbmfs pack --tokenizer beside the tokenizers package: the same tokens, for tokenizers of every kind."""

import json
import os
import pathlib
import random
import subprocess
import sysconfig
import unicodedata

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).parents[3]
TESTDATA = ROOT / "internal" / "tokenizer" / "testdata"

MEGABYTES = 2
KINDS = ["neox", "llama3", "qwen2", "qwen3.5", "tekken", "gpt4o", "deepseek", "smollm", "llama2", "gemma", "t5", "xlm-r"]


def corpus():
    """Documents of source code, of the names of characters, and of noise."""
    draw = random.Random(11)
    total = 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(errors="replace")
        total += len(text)
        yield text
        if total > MEGABYTES << 20:
            break
    assigned = [c for c in map(chr, range(0x30000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    for _ in range(20):
        yield "\n".join(f"{c} {unicodedata.name(c, '')}" for c in draw.choices(assigned, k=400))
    marks = [c for c in assigned if unicodedata.category(c)[0] == "M"]
    odd = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "the", " The", "12", "\u2581", "<s>", "<tool>", "<|endoftext|>", "\u200d", "e\u0301", "\ufb01"]
    for _ in range(200):
        groups = [draw.choice(draw.choice([assigned, marks, odd, odd])) * draw.choice([1, 1, 2, 30]) for _ in range(200)]
        yield "".join(groups)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    texts = list(corpus())
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts, path


def write_tokenizer(kind, folder):
    kinds = json.loads((TESTDATA / "variants.json").read_text())["variants"]
    base = json.loads((TESTDATA / f"{kinds[kind]['base']}.json").read_text())
    for key, value in kinds[kind]["keys"].items():
        if key == "added_tokens+":
            base["added_tokens"] += value
        elif key.startswith("model."):
            base["model"][key.removeprefix("model.")] = value
        else:
            base[key] = value
    (folder / "tokenizer.json").write_text(json.dumps(base))


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens(kind, documents, tmp_path):
    texts, path = documents
    write_tokenizer(kind, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    end = 1 << 20  # in no vocabulary
    command = [os.environ["HBMFS_BINARY"], "pack", "--to", "npy", "--dtype", "u32", "--eot", str(end), "--tokenizer", str(tmp_path), str(path)]
    subprocess.run([*command, str(tmp_path / "out")], check=True, capture_output=True, text=True)
    got = np.load(tmp_path / "out" / "data_00000.npy")
    ours = np.split(got, np.flatnonzero(got == end) + 1)[:-1]
    theirs = [t.ids for t in tokenizer.encode_batch(texts, add_special_tokens=False) if t.ids]
    assert len(ours) == len(theirs)
    for document, (a, b) in enumerate(zip(ours, theirs)):
        assert a[:-1].tolist() == b, f"document {document}"


def test_end_of_a_document(tmp_path):
    """The end is what the model's configuration says, or what --eot names."""
    write_tokenizer("llama2", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (tmp_path / "a.txt").write_text("hello")
    for eot, want in ((None, [2]), ("<s>", [1]), ("none", [])):
        command = [os.environ["HBMFS_BINARY"], "pack", "--to", "npy", "--force", "--tokenizer", str(tmp_path), *(["--eot", eot] if eot else [])]
        subprocess.run([*command, str(tmp_path / "a.txt"), str(tmp_path / "out")], check=True, capture_output=True, text=True)
        tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        got = np.load(tmp_path / "out" / "data_00000.npy").tolist()
        assert got == tokenizer.encode("hello", add_special_tokens=False).ids + want
