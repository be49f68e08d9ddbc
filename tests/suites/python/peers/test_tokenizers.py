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

ROOT = pathlib.Path(__file__).parents[4]
TESTDATA = ROOT / "internal" / "pack" / "tokenizer" / "testdata"

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
    odd = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "the", " The", "12", "\u2581", "<s>", "</s>", "<tool>", "<|endoftext|>", "\u200d", "e\u0301", "\ufb01"]
    for _ in range(200):
        groups = [draw.choice(draw.choice([assigned, marks, odd, odd])) * draw.choice([1, 1, 2, 30]) for _ in range(200)]
        yield "".join(groups)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    texts = list(corpus())
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts, path


def write_tokenizer(kind, folder, **other):
    kinds = json.loads((TESTDATA / "variants.json").read_text())["variants"]
    base = json.loads((TESTDATA / f"{kinds[kind]['base']}.json").read_text())
    for key, value in kinds[kind]["keys"].items():
        if key == "added_tokens+":
            base["added_tokens"] += value
        elif key.startswith("model."):
            base["model"][key.removeprefix("model.")] = value
        else:
            base[key] = value
    base |= other
    (folder / "tokenizer.json").write_text(json.dumps(base))


def packed(path, folder, *flags):
    """The tokens of each document."""
    end = 1 << 20  # in no vocabulary
    command = [os.environ["HBMFS_BINARY"], "pack", "--to", "npy", "--dtype", "u32", "--eot", str(end), "--tokenizer", str(folder), *flags, str(path)]
    subprocess.run([*command, str(folder / "out")], check=True, capture_output=True, text=True)
    got = np.load(folder / "out" / "data_00000.npy")
    return [document[:-1].tolist() for document in np.split(got, np.flatnonzero(got == end) + 1)[:-1]]


def compare(ours, theirs):
    assert len(ours) == len(theirs)
    for document, (a, b) in enumerate(zip(ours, theirs)):
        assert a == b, f"document {document}"


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens(kind, documents, tmp_path):
    texts, path = documents
    write_tokenizer(kind, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    compare(packed(path, tmp_path), [t.ids for t in tokenizer.encode_batch(texts, add_special_tokens=False) if t.ids])


def template(before, after):
    """A post_processor that puts tokens of these numbers around a text."""
    tokens = {f"t{i}": {"id": f"t{i}", "ids": [i], "tokens": [f"t{i}"]} for i in before + after}
    a, b = ([{"SpecialToken": {"id": f"t{i}", "type_id": 0}} for i in ids] for ids in (before, after))
    single = [*a, {"Sequence": {"id": "A", "type_id": 0}}, *b]
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens}


LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
AROUND = {
    "llama3": {"type": "Sequence", "processors": [LEVEL, template([0], [])]},
    "neox": LEVEL,
    "smollm": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False},
    "llama2": template([1], []),
    "gemma": {"type": "Sequence", "processors": [LEVEL, template([1, 3], [2, 2]), LEVEL]},
    "t5": template([], [1]),
    "xlm-r": {"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]},
    "qwen2": None,
}


@pytest.mark.parametrize("kind", AROUND)
def test_same_special_tokens(kind, documents, tmp_path):
    """With both flags the tokens are those of the package's encode as it is: special tokens are found in texts, and put around them."""
    texts, path = documents
    write_tokenizer(kind, tmp_path, post_processor=AROUND[kind])
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = [t.ids for t in tokenizer.encode_batch(texts) if t.ids]
    found = {i for ids in theirs for i in ids} & {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert found, "the texts name no special token"
    compare(packed(path, tmp_path, "--add-special-tokens", "--special-text"), theirs)


def test_ends_of_a_document(tmp_path):
    """They are what the model's configuration says, or what --bos and --eot name."""
    write_tokenizer("llama2", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    (tmp_path / "a.txt").write_text("hello")
    for flags, begin, want in (
        ([], [], [2]),
        (["--eot", "<s>"], [], [1]),
        (["--eot", "none"], [], []),
        (["--bos", "auto"], [1], [2]),
        (["--bos", "7", "--eot", "<unk>"], [7], [0]),
    ):
        command = [os.environ["HBMFS_BINARY"], "pack", "--to", "npy", "--force", "--tokenizer", str(tmp_path), *flags]
        subprocess.run([*command, str(tmp_path / "a.txt"), str(tmp_path / "out")], check=True, capture_output=True, text=True)
        tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        got = np.load(tmp_path / "out" / "data_00000.npy").tolist()
        assert got == begin + tokenizer.encode("hello", add_special_tokens=False).ids + want
