"""Small tokenizers of every kind, trained by the tokenizers package, and the tokens that it gives to hard texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python tests/data/golden/tokenizers_files.py

writes internal/pack/tokenizer/testdata. Three models are whole files. The other kinds differ from one of them in a few keys,
which variants.json holds.
"""

import base64
import json
import pathlib
import tempfile

import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).parents[3] / "internal" / "pack" / "tokenizer" / "testdata"

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
POSSESSIVE = r"'(?:s|t)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s+(?!\S)|\s"

MARK = "\u2581"

HARD = [
    "",
    " ",
    "\n",
    "x \n",
    "a\n  \n b",
    "a\n\t\n\tb",
    "x  \n\n   \n  y",
    "\r\n\r\n \r x",
    "a \u00a0\u2003b",
    "  \u3000x ",
    "it's IT'S it'S we'RE they've I'LL he'd 'tis 'sx 'LLx don'\u017ft '\u017f x'\u017f' ''s 'r 'l 're  'm",
    "1234567 x1y22z333 \u0663\u0664\u0665\u0666 \u2167\u00b2\u00bd 1\u00b22",
    "CamelCaseHTTPServer iPhone \u01c5abc \u01c5",
    "\u02b0A \u02b0a A\u02b0B a\u02b0\u02b0B e\u0301A \u0301A \u0301a A\u0301A\u0301 \u0301\u0301",
    "\u4e2d\u6587\u5b57\u7b26A\u4e2d\u6587B \u3072\u3089\u304c\u306a \u30ab\u30bf\u30ab\u30caABC",
    "a//b /\n/\r\n x !!!\n\n\n/// ...\r\n",
    "\u200b\u200d\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 x \U0001f1e9\U0001f1ea\U0001f1eb",
    "\x00\x01\x7f\x85",
    "<|endoftext|> <s></s> <unk> <tool> a<tool>b  <left>  c <right>  d\n<0x0A>",
    "the the  the   the    the",
    "a" * 70 + " " + "the " * 9,
    "=-" * 60,
    "e\u0301\u0327\u0327\u0301 \u1e9b\u0323 \u212b \u2126 \u0958 \uac01 \u1100\u1161\u11a8 \u0344 a\u0315\u0300\u05ae\u0327b \u09c7\u09be",
    "\u0301" * 40 + "a" + "\u0316\u0301" * 20,
    "\u1e08\u0301 \U0001e130 \u07fd\u0301 \U00011938 a\u08ca\u0327",  # marks after Unicode 9
    "\ufb01 \ufb01\u0301 \u00bd \u2460 \ufdfa \u304b\u3099 \u304c \uff76\uff9e e\u0301 E\u0301x \r\n\r\n \t\x0b\u2028 \u0600 ab\u0600 \u0d4e x",
    "\u0915\u094d\u0937\u093f \u0915\u093c \u0e01\u0e33 \ud55c\uad6d\uc5b4 \u05d0\u05b0",
    "Hello, World! The quick (brown) fox\u2019s 3.14 \u2014 jumps.",
    f"{MARK}a {MARK} {MARK}{MARK}b",
    "\U00010d50\U00010d70 \u1c89\u1c8a \U0002ebf0\U00016130 \U0001ccf0 \U0001171e \ua7cb \U00013460",  # from Unicode 15.1 and 16
    "def f(x):\n\tif x >= 10:\n        return x**2  # \u00e9t\u00e9\n\n\n    y = [1, 2,  3]\r\n",
    "  leading and trailing  ",
    "\ufeffBOM \ufffd\ufffe x",
]


def training():
    """Words of several scripts, and this program."""
    own = pathlib.Path(__file__).read_text()
    words = "the quick brown fox jumps over the lazy dog and then runs to see what they have done with it all day long "
    other = "\u0434\u0435\u043d\u044c \u043d\u043e\u0447\u044c \u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u05e9\u05dc\u05d5\u05dd caf\u00e9 na\u00efve \u00e9t\u00e9 "
    return [own, words * 20, other * 20, own.upper(), own.title()]


def byte_bpe():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(training(), trainers.BpeTrainer(vocab_size=900, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False))
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True)])
    t.add_tokens([AddedToken(" " * n) for n in (3, 2)])
    return json.loads(t.to_str())


def sentence_bpe():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    t.train_from_iterator(training(), trainers.BpeTrainer(vocab_size=900, special_tokens=special, limit_alphabet=80, show_progress=False))
    j = json.loads(t.to_str())
    j["added_tokens"] = j["added_tokens"][:3]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    j["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, space]}
    j["pre_tokenizer"] = None
    return j


def fields(message):
    """The fields of a protobuf message, whose types here are numbers and bytes."""
    i = 0

    def number():
        nonlocal i
        value = shift = 0
        while True:
            byte = message[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while i < len(message):
        key = number()
        if key & 7 == 2:
            n = number()
            yield key >> 3, message[i : i + n]
            i += n
        elif key & 7 == 5:
            yield key >> 3, message[i : i + 4]
            i += 4
        else:
            yield key >> 3, number()


def charsmap():
    """What sentencepiece makes of a few rules: those of nmt_nfkc make 240 kB."""
    rules = {"\r": " ", "\n": " ", "\r\n": " ", "\t": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\x01": "", "\ufb01": "fi", "\u00bd": "1\u20442"}
    rules |= {
        "e\u0301": "\u00e9",
        "E\u0301": "\u00c9",
        "\u2460": "1",
        "\u304b\u3099": "\u304c",
        "\uff76\uff9e": "\u30ac",
        "\uff76": "\u30ab",
        "\u212b": "\u00c5",
    }
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        lines = ["\t".join(" ".join(f"{ord(c):X}" for c in text) for text in rule) for rule in rules.items()]
        (tmp / "rules.tsv").write_text("\n".join(lines) + "\n")
        (tmp / "text").write_text("\n".join(x.replace("\x00", "") for x in training()))
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp / "text"),
            model_prefix=str(tmp / "m"),
            vocab_size=300,
            normalization_rule_tsv=str(tmp / "rules.tsv"),
            hard_vocab_limit=False,
            minloglevel=2,
        )
        model = (tmp / "m.model").read_bytes()
    return next(value for number, spec in fields(model) if number == 3 for inner, value in fields(spec) if inner == 2)


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Precompiled(charsmap())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    words = [word for text in training() for word in text.split() if len(word) < 16]  # the trainer fails on long ones
    t.train_from_iterator(words, trainers.UnigramTrainer(vocab_size=1000, special_tokens=special, unk_token="<unk>", show_progress=False))
    return json.loads(t.to_str())


def split(pattern, **other):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **other}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def variants(unigram, vocabulary):
    """Kinds by name: the model that they have, and the keys that differ. A key of the model is model.KEY."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    gpt2 = {**level, "use_regex": True}
    meta = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    runs = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    precompiled, nfc = unigram["normalizer"], {"type": "NFC"}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    marks, ids = [], dict(vocabulary)
    for text in ("\n", "\n\n", MARK * 2, "<tool>"):
        n = ids.setdefault(text, len(ids))
        marks.append({"id": n, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False})
    return {
        "gpt2": ("bytes", {}),
        "neox": ("bytes", {"normalizer": nfc}),
        "llama3": ("bytes", {"pre_tokenizer": sequence(split(GPT4), level), "model.ignore_merges": True}),
        "qwen2": ("bytes", {"normalizer": nfc, "pre_tokenizer": sequence(split(QWEN2), level)}),
        "qwen3.5": ("bytes", {"normalizer": nfc, "pre_tokenizer": sequence(split(QWEN35), level)}),
        "tekken": ("bytes", {"pre_tokenizer": sequence(split(TEKKEN), level), "model.ignore_merges": True}),
        "gpt4o": ("bytes", {"pre_tokenizer": sequence(split(GPT4O, behavior="Removed", invert=True), level)}),
        "deepseek": ("bytes", {"pre_tokenizer": sequence(*[split(p) for p in DEEPSEEK], level)}),
        "bloom": ("bytes", {"pre_tokenizer": sequence(split(BLOOM), level)}),
        "possessive": ("bytes", {"pre_tokenizer": sequence(split(POSSESSIVE), level)}),
        "next": ("bytes", {"pre_tokenizer": sequence(split(r"[\p{P} ]", behavior="MergedWithNext"), level)}),
        "previous": ("bytes", {"pre_tokenizer": sequence(split(r"[\p{P} ]", behavior="MergedWithPrevious"), level)}),
        "together": ("bytes", {"pre_tokenizer": sequence(split(r"[\p{P} ]", behavior="Contiguous"), level)}),
        "between": ("bytes", {"pre_tokenizer": sequence(split(r"\p{L}+|\s", behavior="Removed"), level)}),
        "smollm": ("bytes", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, gpt2)}),
        "digits": ("bytes", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, gpt2)}),
        "roberta": ("bytes", {"pre_tokenizer": {**gpt2, "add_prefix_space": True}}),
        "llama2": ("sentence", {}),
        "llama2-first": ("sentence", {"normalizer": None, "pre_tokenizer": {**meta, "prepend_scheme": "first", "split": False}}),
        "never": ("sentence", {"normalizer": None, "pre_tokenizer": {**meta, "prepend_scheme": "never", "split": True}}),
        "unknown": ("sentence", {"model.byte_fallback": False}),
        "unknowns": ("sentence", {"model.byte_fallback": False, "model.fuse_unk": False}),
        "left-out": ("sentence", {"model.byte_fallback": False, "model.unk_token": None}),
        "gemma": (
            "sentence",
            {
                "normalizer": space,
                "added_tokens+": marks,
                "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
            },
        ),
        "t5": ("unigram", {}),
        "t5-split": ("unigram", {"pre_tokenizer": sequence({"type": "WhitespaceSplit"}, meta)}),
        "t5-new": ("unigram", {"normalizer": {"type": "Sequence", "normalizers": [precompiled, strip, {**runs, "content": MARK}]}}),
        "xlm-r": ("unigram", {"normalizer": {"type": "Sequence", "normalizers": [precompiled, runs]}}),
        "plain": ("unigram", {"normalizer": None, "pre_tokenizer": None}),
    }


def changed(base, keys):
    j = json.loads(json.dumps(base))
    for key, value in keys.items():
        if key == "added_tokens+":
            j["added_tokens"] += value
        elif key.startswith("model."):
            j["model"][key[6:]] = value
        else:
            j[key] = value
    return j


def main():
    OUT.mkdir(exist_ok=True)
    bases = {"bytes": byte_bpe(), "sentence": sentence_bpe(), "unigram": unigram()}
    for name, base in bases.items():
        (OUT / f"{name}.json").write_text(json.dumps(base, ensure_ascii=False, separators=(",", ":")))
    result = {}
    for name, (base, keys) in variants(bases["unigram"], bases["sentence"]["model"]["vocab"]).items():
        t = Tokenizer.from_str(json.dumps(changed(bases[base], keys)))
        t.encode_special_tokens = True
        tokens = [t.encode(text, add_special_tokens=False).ids for text in HARD]
        packed = [" ".join(map(str, ids)) for ids in tokens]
        result[name] = {"base": base, "keys": keys, "tokens": packed}
    texts = [base64.b64encode(text.encode()).decode() for text in HARD]
    (OUT / "variants.json").write_text(json.dumps({"texts": texts, "variants": result}, separators=(",", ":")))


if __name__ == "__main__":
    main()
