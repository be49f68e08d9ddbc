"""save_safetensors, read by Transformers, and its files beside those of huggingface_hub."""

import json
import os

import hbmfs
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from hbmfs.checkpoints import safetensors_save
from huggingface_hub import split_torch_state_dict_into_shards
from test_saves import by_name
from test_weights import DTYPES, random_tensor, same


def small_llama():
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=130, tie_word_embeddings=True
    )
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def test_random_models_in_files(tmp_path):
    """The files and the index are those of huggingface_hub, whatever the sizes are."""
    random = np.random.default_rng(5)
    for round in range(15):
        generator = torch.Generator().manual_seed(round)
        model = {
            f"{random.integers(1000)}.{i}": random_tensor(
                generator, tuple(random.integers(1, 90, random.integers(0, 3)).tolist()), DTYPES[random.integers(len(DTYPES))]
            )
            for i in range(int(random.integers(1, 40)))
        }
        path, most = tmp_path / f"{round}", int(random.integers(1, 30_000))
        hbmfs.save_safetensors(model, path, shard_size=most)
        expected = split_torch_state_dict_into_shards(model, max_shard_size=most)
        found = {file.name: set(safetensors.torch.load_file(file)) for file in path.glob("*.safetensors")}
        assert found == {name: set(tensors) for name, tensors in expected.filename_to_tensors.items()}
        if expected.is_sharded:
            index = json.loads((path / "model.safetensors.index.json").read_text())
            assert index["metadata"]["total_size"] == expected.metadata["total_size"]
            assert index["weight_map"] == expected.tensor_to_filename
        same(by_name(hbmfs.load_safetensors(path, "cpu")), by_name(model))


@pytest.mark.parametrize("shard_size", [safetensors_save.SHARD, 40_000])
def test_transformers_loads_the_directory(tmp_path, shard_size):
    model = small_llama()
    extra = {"config.json": model.config.to_json_string().encode()}
    hbmfs.save_safetensors(model.state_dict(), tmp_path / "llama", shard_size=shard_size, extra=extra)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype=torch.bfloat16)
    same(by_name(loaded.state_dict()), by_name(model.state_dict()))
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert not os.path.exists(tmp_path / "llama" / "pytorch_model.bin") and (tmp_path / "llama" / "config.json").stat().st_size == len(extra["config.json"])
