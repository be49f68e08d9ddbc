"""hbmfs.transformers.from_pretrained beside Transformers' own from_pretrained: the same models, bit for bit."""

import contextlib
import json
import logging
import shutil
import threading

import hbmfs
import pytest
import safetensors.torch
import torch
import transformers
from hbmfs.weights import _arriving
from test_group import Ranks

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128, "pad_token_id": 0}


def llama(**more):
    return transformers.LlamaConfig(**SMALL, num_key_value_heads=2, **more)


MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(llama(eos_token_id=[3, 4])),
    "llama tied": lambda: transformers.LlamaForCausalLM(llama(tie_word_embeddings=True)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True)),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, max_position_embeddings=64)),
}


def save(folder, kind="llama", dtype=torch.float32, **options):
    torch.manual_seed(7)
    MODELS[kind]().to(dtype).save_pretrained(folder, **options)
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small models are faster so, above all where others keep the processors busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "model")


def load(cls, path, *arguments, **options):
    return hbmfs.transformers.from_pretrained(cls, path, *arguments, device="cpu", progress=False, **options)


def ties(model):
    """Names of parameters that are one and the same."""
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(groups.values())


def attributes(model):
    return [(name, type(module).__name__, getattr(module, "name_or_path", None), module.training) for name, module in model.named_modules()]


def equal(found, expected):
    assert type(found) is type(expected)
    for kind in ("state_dict", "named_buffers", "named_parameters"):
        mine, theirs = dict(getattr(found, kind)()), dict(getattr(expected, kind)())
        assert list(mine) == list(theirs)
        for name, tensor in theirs.items():
            assert (mine[name].dtype, mine[name].device, mine[name].requires_grad) == (tensor.dtype, tensor.device, tensor.requires_grad), name
            assert torch.equal(mine[name], tensor), name
    assert ties(found) == ties(expected)
    assert attributes(found) == attributes(expected)
    assert found.config.to_dict() == expected.config.to_dict()
    assert found.config._attn_implementation == expected.config._attn_implementation
    assert found.config.name_or_path == expected.config.name_or_path
    assert found.dtype == expected.dtype
    if expected.can_generate():
        assert found.generation_config.to_dict() == expected.generation_config.to_dict()
    tokens = torch.arange(24).view(2, 12) + 5
    with torch.no_grad():
        mine, theirs = found(tokens), expected(tokens)
    for name, value in theirs.items():
        if torch.is_tensor(value):
            assert torch.equal(mine[name], value), name
    if expected.can_generate():
        assert torch.equal(found.generate(tokens, max_new_tokens=8, do_sample=False), expected.generate(tokens, max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize("shards", [None, "60KB"], ids=["one file", "sharded"])
@pytest.mark.parametrize("kind", MODELS)
def test_same_as_transformers(tmp_path, kind, shards):
    save(tmp_path, kind, **({} if shards is None else {"max_shard_size": shards}))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is (shards is not None)
    cls = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    expected = cls.from_pretrained(tmp_path)
    equal(load(cls, tmp_path), expected)
    equal(load(type(expected), tmp_path), type(expected).from_pretrained(tmp_path))


@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [None, "auto", "bfloat16", torch.float16])
def test_dtypes(tmp_path, saved, dtype):
    save(tmp_path, dtype=saved)
    options = {} if dtype is None else {"dtype": dtype}
    equal(load(transformers.AutoModelForCausalLM, tmp_path, **options), transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **options))
    if dtype is not None:
        equal(load(transformers.LlamaForCausalLM, tmp_path, torch_dtype=dtype), transformers.LlamaForCausalLM.from_pretrained(tmp_path, **options))


def test_dtype_of_a_config_that_says_none(path):
    save(path, dtype=torch.bfloat16)
    config = json.loads((path / "config.json").read_text())
    config = {name: value for name, value in config.items() if name not in ("dtype", "torch_dtype")}
    (path / "config.json").write_text(json.dumps(config))
    found = load(transformers.AutoModelForCausalLM, path, dtype="auto")
    assert found.dtype == torch.bfloat16
    equal(found, transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto"))


def test_nothing_is_copied(path, monkeypatch):
    given = {}
    real = _arriving.Arriving.end

    def remember(arriving):
        given.update(arriving.all())
        return real(arriving)

    monkeypatch.setattr(_arriving.Arriving, "end", remember)
    model = load(transformers.LlamaForCausalLM, path)
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == {name: tensor.data_ptr() for name, tensor in given.items()}


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("llama", "AutoModel"),
        ("llama", "LlamaForSequenceClassification"),
        ("gpt2", "GPT2Model"),
        ("bert", "BertModel"),
        ("bert", "AutoModelForTokenClassification"),
    ],
)
def test_another_head(tmp_path, saved, loaded):
    """The base of a model with a head, and another head, whose weights are new: zeros, or as the seed has them."""
    save(tmp_path / "head", saved)
    cls = getattr(transformers, loaded)
    torch.manual_seed(3)
    expected = cls.from_pretrained(tmp_path / "head", output_loading_info=True)
    torch.manual_seed(3)
    found = load(cls, tmp_path / "head", output_loading_info=True)
    for name, value in expected[1].items():
        assert set(found[1][name]) == set(value), name
    equal(found[0], expected[0])


def test_head_from_a_base(tmp_path):
    torch.manual_seed(1)
    transformers.LlamaModel(llama()).save_pretrained(tmp_path)
    torch.manual_seed(3)
    expected = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    torch.manual_seed(3)
    equal(load(transformers.LlamaForCausalLM, tmp_path), expected)


@pytest.fixture
def warnings_of_transformers(caplog):
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_missing_key(path, warnings_of_transformers):
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    torch.manual_seed(5)
    expected, theirs = transformers.LlamaForCausalLM.from_pretrained(path, output_loading_info=True)
    torch.manual_seed(5)
    warnings_of_transformers.clear()
    found, mine = load(transformers.LlamaForCausalLM, path, output_loading_info=True)
    assert "model.layers.1.mlp.up_proj.weight" in warnings_of_transformers.text
    assert set(mine["missing_keys"]) == set(theirs["missing_keys"]) == {"model.layers.1.mlp.up_proj.weight"}
    equal(found, expected)


def test_wrong_shape(path):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    for call in (transformers.LlamaForCausalLM.from_pretrained, lambda path: load(transformers.LlamaForCausalLM, path)):
        with pytest.raises(RuntimeError, match="(?i)mismatch"):
            call(path)
    found = load(transformers.LlamaForCausalLM, path, ignore_mismatched_sizes=True)
    assert found.lm_head.weight.shape == (100, 64)
    assert not any(tensor.is_meta for tensor in found.state_dict().values())


def test_arguments_of_the_config(path):
    for options in (
        {"rms_norm_eps": 0.25, "output_hidden_states": True},
        {"attn_implementation": "eager"},
        {"config": llama(eos_token_id=9)},
        {"pad_token_id": 7},
    ):
        for cls in (transformers.LlamaForCausalLM, transformers.AutoModelForCausalLM):
            equal(load(cls, path, **options), cls.from_pretrained(path, **options))


def test_generation_config(path):
    options = {"generation_config": transformers.GenerationConfig(max_length=33, pad_token_id=1)}
    equal(load(transformers.LlamaForCausalLM, path, **options), transformers.LlamaForCausalLM.from_pretrained(path, **options))
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.25, "top_k": 7, "eos_token_id": 5}))
    found = load(transformers.AutoModelForCausalLM, path)
    assert found.generation_config.temperature == 0.25
    equal(found, transformers.AutoModelForCausalLM.from_pretrained(path))
    (path / "generation_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": 11, "max_length": 44}))
    equal(load(transformers.AutoModelForCausalLM, path), transformers.AutoModelForCausalLM.from_pretrained(path))


def test_files_beside_those_of_the_model(path):
    """The one that Transformers takes: model.safetensors, an index, or the variant's."""
    expected = transformers.LlamaForCausalLM.from_pretrained(path)
    shutil.copy(path / "model.safetensors", path / "consolidated.safetensors")
    (path / "other.safetensors").write_bytes(b"damaged")
    equal(load(transformers.LlamaForCausalLM, path), expected)
    save(path, dtype=torch.bfloat16, variant="half")
    expected = transformers.LlamaForCausalLM.from_pretrained(path, variant="half")
    assert expected.dtype in (torch.bfloat16, torch.float32)
    equal(load(transformers.LlamaForCausalLM, path, variant="half"), expected)
    save(path / "inner", max_shard_size="60KB", variant="half")
    expected = transformers.AutoModelForCausalLM.from_pretrained(path, subfolder="inner", variant="half")
    equal(load(transformers.AutoModelForCausalLM, path, subfolder="inner", variant="half"), expected)


def test_indexes(path):
    """Two of them, of which Transformers takes one, and one that names a file which is not there. Each tensor is the index's, not a copy."""
    expected = transformers.LlamaForCausalLM.from_pretrained(path)
    save(path / "inner", max_shard_size="60KB")
    index = json.loads((path / "inner" / "model.safetensors.index.json").read_text())["weight_map"]
    first, last = min(index.values()), max(index.values())
    name = next(name for name in index if index[name] == first)
    shard = safetensors.torch.load_file(path / "inner" / last)
    safetensors.torch.save_file(shard | {name: torch.zeros(3)}, path / "inner" / last, metadata={"format": "pt"})
    (path / "inner" / "consolidated.safetensors.index.json").write_text("{}")
    equal(load(transformers.LlamaForCausalLM, path, subfolder="inner"), expected)
    (path / "inner" / last).unlink()
    with pytest.raises(hbmfs.NotFoundError, match=f"no file .*{last}, though the index"):
        load(transformers.LlamaForCausalLM, path, subfolder="inner")


CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, *arguments, **options):
        found = super().forward(*arguments, **options)
        found.logits = found.logits * 2
        return found
"""


def test_code_of_the_model(path, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (path / "own.py").write_text(CODE)
    config = json.loads((path / "config.json").read_text())
    places = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (path / "config.json").write_text(json.dumps(config | {"model_type": "own", "architectures": ["OwnModel"], "auto_map": places}))
    found = load(transformers.AutoModelForCausalLM, path, trust_remote_code=True)
    assert type(found).__name__ == "OwnModel"
    expected = transformers.AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
    tokens = torch.arange(12).view(1, 12)
    assert torch.equal(found(tokens).logits, expected(tokens).logits)
    assert found.config.to_dict() == expected.config.to_dict()
    with pytest.raises(ValueError, match="trust_remote_code"):
        load(transformers.AutoModelForCausalLM, path, trust_remote_code=False)


def test_saved_again(path, tmp_path):
    """The tensors share allocations, and Transformers takes no two of them for one."""
    found = load(transformers.LlamaForCausalLM, path)
    found.save_pretrained(tmp_path / "again", max_shard_size="60KB")
    equal(load(transformers.LlamaForCausalLM, tmp_path / "again"), transformers.LlamaForCausalLM.from_pretrained(tmp_path / "again"))
    for name, tensor in transformers.LlamaForCausalLM.from_pretrained(path).state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


def test_trained_further(path):
    models = [load(transformers.LlamaForCausalLM, path), transformers.LlamaForCausalLM.from_pretrained(path)]
    tokens = torch.arange(24).view(2, 12)
    for model in models:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(2):
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    equal(*models)


def test_refused(path, tmp_path):
    for options, reason in [
        ({"device_map": "auto"}, "give device="),
        ({"tp_plan": "auto"}, "give device="),
        ({"state_dict": {"x": torch.zeros(1)}}, "state_dict cannot be given"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantizes by itself"),
        ({"use_safetensors": False}, "only safetensors"),
    ]:
        with pytest.raises(hbmfs.InvalidError, match=reason):
            load(transformers.AutoModelForCausalLM, path, **options)
    with pytest.raises(hbmfs.InvalidError, match="no model class"):
        load(dict, path)
    with pytest.raises(hbmfs.NotFoundError, match="is no directory"):
        load(transformers.AutoModelForCausalLM, tmp_path / "nothing here")
    with pytest.raises(hbmfs.NotFoundError, match=r"no config\.json"):
        load(transformers.AutoModelForCausalLM, tmp_path)
    (path / "adapter_config.json").write_text("{}")
    with pytest.raises(hbmfs.UnavailableError, match="adapter"):
        load(transformers.AutoModelForCausalLM, path)
    (path / "adapter_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(hbmfs.UnavailableError, match="is quantized"):
        load(transformers.AutoModelForCausalLM, path)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(hbmfs.NotFoundError, match=r"no model\.safetensors and no model\.safetensors\.index\.json"):
        load(transformers.AutoModelForCausalLM, path)


def test_damaged_file(path):
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(hbmfs.FormatError, match="damaged"):
        load(transformers.AutoModelForCausalLM, path)


def test_state_dict_that_is_not_taken(path, monkeypatch):
    """As a version of Transformers may do it, or DeepSpeed's ZeRO 3."""
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", classmethod(lambda cls, path, config, **options: cls(config)))
    with pytest.raises(hbmfs.UnavailableError, match="did not take the weights"):
        load(transformers.LlamaForCausalLM, path)


def rank_of_a_group(rank, size, *paths):
    torch.set_num_threads(1)
    with hbmfs.Reader("cpu") as reader:
        for path in paths:
            found = load(transformers.AutoModelForCausalLM, path, group=torch.distributed.group.WORLD, reader=reader)
            equal(found, transformers.AutoModelForCausalLM.from_pretrained(path))
        return sum(reader.stats()["bytes"].values())


def test_group(tmp_path):
    paths = [save(tmp_path / kind, kind, max_shard_size="100KB") for kind in ("llama", "mixtral")]
    read = Ranks(2, rank_of_a_group, *paths).wait(patience=300)  # importing Transformers takes a busy machine long
    assert sum(read) == sum(tensor.nbytes for path in paths for tensor in hbmfs.load_safetensors(path, "cpu").values())


def cut(plan, name, rank, size, shape):
    """What Transformers' plan of tensor parallelism leaves of a tensor on one rank, as slices."""
    module = name.rpartition(".")[0]
    generic = ".".join("*" if part.isdigit() else part for part in module.removeprefix("model.").split("."))
    dimension = {"colwise": 0, "colwise_rep": 0, "colwise_gather_output": 0, "rowwise": 1}.get(plan.get(generic))
    if dimension is None:
        return None
    each = shape[dimension] // size
    return tuple(slice(rank * each, (rank + 1) * each) if at == dimension else slice(None) for at in range(len(shape)))


@pytest.mark.parametrize("size", [2, 4])
def test_slices_of_the_plan_of_tensor_parallelism(path, size):
    """slices= with base_model_tp_plan gives what torch's chunks of the whole weights are."""
    whole = transformers.LlamaForCausalLM.from_pretrained(path).state_dict()
    plan, seen = transformers.LlamaConfig().base_model_tp_plan, set()
    for rank in range(size):
        found = hbmfs.load_safetensors(path, "cpu", slices=lambda name, rank=rank: cut(plan, name, rank, size, whole[name].shape))
        for name, tensor in whole.items():
            generic = ".".join("*" if part.isdigit() else part for part in name.removeprefix("model.").split(".")[:-1])
            kind = plan.get(generic)
            seen.add(kind)
            expected = tensor.chunk(size, {"colwise": 0, "rowwise": 1}[kind])[rank] if kind in ("colwise", "rowwise") else tensor
            assert found[name].shape == expected.shape, name
            assert torch.equal(found[name], expected), name
    assert {"colwise", "rowwise"} <= seen


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_transformers_fails_while_weights_are_read(path, monkeypatch, raised):
    def fail(*arguments, **options):
        raise raised("on purpose")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", fail)
    with pytest.raises(raised, match="on purpose"):
        load(transformers.LlamaForCausalLM, path)
    assert "hbmfs-weights" not in {thread.name for thread in threading.enumerate()}
    monkeypatch.undo()
    equal(load(transformers.LlamaForCausalLM, path), transformers.LlamaForCausalLM.from_pretrained(path))


def test_weights_that_cannot_be_read(path, monkeypatch):
    """The failure of the thread that reads is that of the call, whatever Transformers makes of it."""

    def fail(*arguments, **options):
        raise hbmfs.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(_arriving.Arriving, "_read", fail)
    with pytest.raises(hbmfs.OutOfMemoryError, match="no memory is left"):
        load(transformers.LlamaForCausalLM, path)


def test_progress_of_a_model(path):
    seen = []
    load_with = hbmfs.transformers.from_pretrained
    load_with(transformers.LlamaForCausalLM, path, device="cpu", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0 and seen == sorted(seen)

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        load_with(transformers.LlamaForCausalLM, path, device="cpu", progress=stop)


def test_others_warm_up_their_allocator(path, monkeypatch):
    """Only the thread that loads by hbmfs leaves it out, and only for so long."""
    asked = []
    monkeypatch.setattr(transformers.modeling_utils, "caching_allocator_warmup", lambda *arguments, **options: asked.append(arguments))
    monkeypatch.setattr(transformers.LlamaForCausalLM, "post_init", lambda self: other.start() or other.join() or warmup()(self, {}, None))
    other, warmup = threading.Thread(target=lambda: warmup()(None, {}, None)), lambda: transformers.modeling_utils.caching_allocator_warmup
    with contextlib.suppress(Exception):  # a model without post_init is none
        load(transformers.LlamaForCausalLM, path)
    assert [arguments[0] for arguments in asked] == [None]
    warmup()(path, {}, None)
    assert len(asked) == 2
