"""A Llama of 16.1 GB into HBM: Transformers' from_pretrained and hbmfs.transformers.from_pretrained in turn, in about two minutes.

    transformers_check.py [--dir DIR] [--rounds 5] [--json FILE]

Makes a random model of the shape of Llama 3 8B in bfloat16, in 4 files, which the page cache then holds. After each has
loaded it once, every round times both, in alternating order, with memory fresh from CUDA, until the device is
synchronized. Then both models must have the same names, tensors and buffers, and the same logits, bit for bit. Prints
medians and ranges of seconds, their ratio, and the peak of memory beside what the model keeps.

--device cpu --layers 2 --hidden 64 --vocab 128 tries it out without a GPU. It needs transformers, and for a GPU accelerate.
"""

import argparse
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hbmfs
import torch
import transformers
from torch_weights import fresh_memory
from transformers import AutoModelForCausalLM

POOL = 64 << 20
"""Random elements, of which each tensor takes others first."""


def tensors(layers, hidden, vocab):
    """Names and shapes of a Llama, in the order of its layers."""
    wide, narrow = hidden * 7 // 2, hidden // 4
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(layers):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (narrow, hidden),
            "self_attn.v_proj": (narrow, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def elements(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def config(layers, hidden, vocab):
    return transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"], hidden_size=hidden, intermediate_size=hidden * 7 // 2, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=vocab, max_position_embeddings=8192, rms_norm_eps=1e-5,
        dtype="bfloat16", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip


def make(folder, layers, hidden, vocab, shards=4):
    """Writes the files of the model, and gives the bytes of its tensors."""
    torch.manual_seed(1)
    pool = (torch.randn(POOL if hidden > 1000 else 1 << 16) * 0.02).to(torch.bfloat16).view(torch.uint8).numpy()
    ones = torch.ones(hidden, dtype=torch.bfloat16).view(torch.uint8).numpy()
    wanted = list(tensors(layers, hidden, vocab))
    total, places, begin = sum(2 * elements(shape) for _, shape in wanted), {}, 0
    for shard in range(shards):
        chosen, header, at = [], {}, 0
        while begin < len(wanted) and (at < total / shards or shard == shards - 1):
            name, shape = wanted[begin]
            size = 2 * elements(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            chosen.append((begin, name, size))
            begin, at = begin + 1, at + size
        text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
        text += b" " * (-len(text) % 8)
        path = folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for number, name, size in chosen:
                if "norm" in name:
                    file.write(ones.data)
                    continue
                skip = number * 7918 % (len(pool) // 2) // 2 * 2
                while size > 0:
                    size -= file.write(pool[skip : skip + size].data)
                    skip = 0
        places |= dict.fromkeys(header, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    config(layers, hidden, vocab).save_pretrained(folder)
    transformers.GenerationConfig(bos_token_id=1, eos_token_id=2, do_sample=True, temperature=0.6, top_p=0.9).save_pretrained(folder)
    return total


class Loaders:
    """Both ways to load the model of a folder."""

    def __init__(self, folder, device):
        self._folder, self._device = folder, device
        self.peaks = {}

    def transformers(self):
        place = {} if self._device == "cpu" else {"device_map": self._device}
        return AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.bfloat16, **place)

    def hbmfs(self):
        return hbmfs.transformers.from_pretrained(AutoModelForCausalLM, self._folder, device=self._device, dtype=torch.bfloat16)

    def timed(self, name):
        """The seconds of one load."""
        gpu = self._device != "cpu"
        if gpu:
            fresh_memory()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        model = getattr(self, name)()
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if gpu:
            self.peaks[name] = max(self.peaks.get(name, 0), torch.cuda.max_memory_reserved())
        del model
        return seconds


def compare(loaders, device, vocab):
    """Names what differs between the two models."""
    mine, theirs = loaders.hbmfs(), loaders.transformers()
    wrong = []
    for kind in ("state_dict", "named_buffers"):
        here, there = dict(getattr(mine, kind)()), dict(getattr(theirs, kind)())
        if list(here) != list(there):
            wrong.append(f"names of {kind}")
        wrong += [
            name
            for name, tensor in there.items()
            if (here[name].dtype, here[name].device) != (tensor.dtype, tensor.device) or not torch.equal(here[name], tensor)
        ]
    if mine.config.to_dict() != theirs.config.to_dict() or mine.generation_config.to_dict() != theirs.generation_config.to_dict():
        wrong.append("a config")
    tokens = torch.randint(0, vocab, (4, 257), generator=torch.Generator().manual_seed(3)).to(device)
    with torch.no_grad():
        logits = [model(tokens).logits for model in (mine, theirs)]
        texts = [model.generate(tokens[:, :32], max_new_tokens=16, do_sample=False) for model in (mine, theirs)]
    if not logits[1].isfinite().all():
        wrong.append("logits that are not finite")
    if not torch.equal(*logits):
        wrong.append("logits")
    if not torch.equal(*texts):
        wrong.append("generated tokens")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, help="where the files are made; about 16 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=128256)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        start = time.perf_counter()
        size = make(Path(folder), options.layers, options.hidden, options.vocab)
        made = time.perf_counter() - start
        print(f"{size / 1e9:.2f} GB made in {made:.0f} s; transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
        loaders = Loaders(folder, options.device)
        wrong = compare(loaders, options.device, options.vocab)
        print(f"different: {', '.join(wrong)}" if wrong else "tensors, buffers, configs, logits and generated tokens are the same, bit for bit", flush=True)
        seconds = {"transformers": [], "hbmfs": []}
        for number in range(options.rounds):
            for name in list(seconds)[:: 1 if number % 2 else -1]:
                seconds[name].append(loaders.timed(name))
            print(f"round {number + 1}: " + ", ".join(f"{name} {times[-1]:.3f} s" for name, times in seconds.items()), flush=True)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for name, times in seconds.items():
            peak = f", peak {(loaders.peaks[name] - size) / 1e9:.2f} GB above the weights" if name in loaders.peaks else ""
            print(f"{name:12} {medians[name]:.3f} s ({min(times):.3f} to {max(times):.3f}), {size / 1e9 / medians[name]:.1f} GB/s{peak}")
        print(f"ratio {medians['transformers'] / medians['hbmfs']:.2f}")
        if options.json:
            options.json.write_text(json.dumps({"bytes": size, "seconds": seconds, "peaks": loaders.peaks, "different": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
