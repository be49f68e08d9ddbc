"""Writes internal/pack/tokenizer/testdata/sentence.pieces.json: sentencepiece models, and what the sentencepiece package makes of hard texts.

    python tests/data/golden/sentencepiece_files.py internal/pack/tokenizer/testdata
"""

import base64
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece

LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
DEFINED = ["<tool>", "\u2581\u2581", "\n", "e\u0301", "'s The"]
KINDS = {
    "unigram": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "unigram-words": {"model_type": "unigram", "split_by_whitespace": False, "user_defined_symbols": DEFINED, **LLAMA},
    "bpe": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
    "bpe-bytes": {"model_type": "bpe", "add_dummy_prefix": False, "user_defined_symbols": DEFINED, **LLAMA},
}
WORDS = "the The quick 12 123 1000 brown foxes jump naïve Straße être привет мир 你好 世界 ﬁn Å e\u0301tude func(x) == != a_b --- ...".split()


def texts() -> list[str]:
    draw = random.Random(3)
    odd = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\u2581", "\U0001f600", "\u200d", "\u0301", "'s The", "<tool>", "<s>", "\ufb01", "000", "----"]
    made = ["", " ", "  a  b ", "a", "\u2581", "the quick brown", "\u1e9b\u0323 \u0344", "x" * 40, "0" * 30]
    for _ in range(80):
        made.append("".join(draw.choice(WORDS + odd) + draw.choice(["", " ", " ", "  "]) for _ in range(draw.randint(1, 25))))
    return made


def main() -> None:
    draw = random.Random(2)
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(3000)]
    models = {}
    for kind, options in KINDS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=420 if options.get("byte_fallback") else 150, hard_vocab_limit=False,
            num_threads=1, minloglevel=2, **options,
        )
        models[kind] = base64.b64encode(model.getvalue()).decode()
    made, unit = texts(), "000 00-- the 0000 "
    tokens, long = {}, {}
    for kind, model in models.items():
        processor = sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(model))
        tokens[kind] = processor.encode(made)
        ids = processor.encode(unit * 5000)  # scores go further than 100,000
        long[kind] = [len(ids), *ids[-100:]]
    out = {"texts": made, "models": models, "tokens": tokens, "unit": unit, "times": 5000, "long": long}
    (Path(sys.argv[1]) / "sentence.pieces.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
