"""hbmfs pack --tokenizer beside the sentencepiece package: the same tokens, for models that ship and for trained ones."""

import importlib.metadata
import io
import json
import os
import pathlib

import pytest
from test_tokenizers import compare, corpus, packed

sentencepiece = pytest.importorskip("sentencepiece")

SHIPPED = ["tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3"]
LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True, "split_digits": True}
DEFINED = ["<tool>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "\n", "\n\n", "e\u0301", "'s The", "\u200d"]
TRAINED = {
    "unigram": {"model_type": "unigram"},
    "unigram, Llama's text": {"model_type": "unigram", **LLAMA},
    "unigram, case folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": DEFINED},
    "unigram over words": {"model_type": "unigram", "split_by_whitespace": False, "max_sentencepiece_length": 32},
    "bpe": {"model_type": "bpe", "character_coverage": 0.99},
    "bpe, Llama's text": {"model_type": "bpe", **LLAMA},
    "bpe, Gemma's text": {"model_type": "bpe", **LLAMA, "add_dummy_prefix": False, "user_defined_symbols": DEFINED},
    "bpe, case folded": {"model_type": "bpe", "normalization_rule_name": "nfkc_cf", "add_dummy_prefix": False, "user_defined_symbols": DEFINED},
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents, a few of them of spaces alone or with spaces at the ends, in a file and as texts; more by HBMFS_TEST_TEXTS, JSON Lines."""
    texts = [*corpus(), " ", "  a  b ", "\u3000\u00a0x\u2581 \u2581", "\t\ta", "a" * 5000 + " " * 5000, "\ufb01\u0133 \u1e9b\u0323 \u0344"]
    if more := os.environ.get("HBMFS_TEST_TEXTS"):
        texts += [json.loads(line)["text"] for line in pathlib.Path(more).read_text().splitlines()]
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts, path


def same_tokens(model, documents, tmp_path):
    texts, path = documents
    (tmp_path / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    compare(packed(path, tmp_path), [ids for ids in processor.encode(texts) if ids])


@pytest.mark.parametrize("name", SHIPPED)
def test_models_that_ship(name, documents, tmp_path):
    model = importlib.metadata.distribution("mistral-common").locate_file(f"mistral_common/data/{name}")
    same_tokens(pathlib.Path(str(model)).read_bytes(), documents, tmp_path)


@pytest.mark.parametrize("kind", TRAINED)
def test_trained_models(kind, documents, tmp_path):
    model = io.BytesIO()
    lines = [line for text in documents[0][::3] for line in text.splitlines() if 0 < len(line) < 1000 and "\u2581" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=3000, num_threads=2, minloglevel=2, hard_vocab_limit=False,
        train_extremely_large_corpus=False, input_sentence_size=20000, **({"character_coverage": 0.995} | TRAINED[kind]),
    )
    same_tokens(model.getvalue(), documents, tmp_path)
