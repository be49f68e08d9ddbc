"""Models of Hugging Face Transformers whose weights load_safetensors reads, straight into HBM.

    model = hbmfs.transformers.from_pretrained(AutoModelForCausalLM, "/mnt/models/llama", device="cuda:0")

Transformers makes the model, on the meta device, and puts the weights in: names of keys, conversions, tied weights,
buffers, dtype and generation config are its own, and so are its warnings of keys that are missing or left over. It gets
the weights as a state dict, of which it copies nothing that has the model's dtype. Where the dtypes differ, the device
holds both the file's weights and the model's until the call returns. Without a group a thread reads the weights meanwhile.

The weights are views of a few allocations, so model.save_pretrained copies each tensor on its device once.
Transformers 4.57 and 5.17 are tested. On a GPU they want accelerate, as for their own device_map.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import weights
from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib._transfer import Progress, shower
from ..errors import InvalidError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from .._lib.reader import Reader

_PLACES = ("device_map", "max_memory", "offload_folder", "offload_buffers", "tp_plan", "tp_size", "device_mesh", "distributed_config")
_SOURCES = ("state_dict", "gguf_file", "from_tf", "from_flax")
_QUANTIZING = ("quantization_config", "load_in_8bit", "load_in_4bit")
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


@checked
def from_pretrained(
    cls: Any,
    path: str | os.PathLike[str],
    *arguments: Any,
    device: Device = "cuda:0",
    dtype: Any = None,
    group: Any = None,
    method: str = "auto",
    progress: Progress = None,
    reader: Reader | None = None,
    **options: Any,
) -> Any:
    """The model that cls.from_pretrained(path, ...) gives, on one device.

    cls       a model class of Transformers, or an Auto class
    path      a directory with config.json and safetensors files
    dtype     as with cls.from_pretrained: None for its default, "auto", a torch.dtype; torch_dtype is its older name
    group     a process group whose ranks all make this call and get the whole model: each byte is read once
    others    device, method, progress and reader are load_safetensors'; all else is cls.from_pretrained's

    Raises the errors of load_safetensors and Transformers; UnavailableError for quantized models and adapters, which
    Transformers reads by itself.
    """
    try:
        import torch
        import transformers
    except ImportError as err:
        raise UnavailableError(f"hbmfs.transformers needs torch and transformers: {err}") from None
    device = _device.name(_device.parse(device))
    _check(cls, options)
    folder = os.fspath(path)
    if not os.path.isdir(folder):
        raise NotFoundError(f"{folder} is no directory: give one with config.json and safetensors files, such as snapshot_download makes")
    hub = {name: options.pop(name) for name in _HUB if name in options}
    subfolder = hub.get("subfolder") or ""
    if os.path.exists(os.path.join(folder, subfolder, "adapter_config.json")):
        raise UnavailableError(f"{folder} holds an adapter, which is not read here: load the model without it, then model.load_adapter({folder!r})")

    dtype = options.pop("torch_dtype", None) if dtype is None else dtype
    trust = {"trust_remote_code": options.pop("trust_remote_code", None)}
    auto = hasattr(cls, "_model_mapping")
    code = {**trust, "code_revision": options.pop("code_revision", None)} if auto else {}
    said = {**options, **hub}
    config = options.pop("config", None)
    if config is None and not os.path.exists(os.path.join(folder, subfolder, "config.json")):
        raise NotFoundError(f"there is no config.json in {os.path.join(folder, subfolder)}: give the directory of a model of Transformers")
    if not isinstance(config, transformers.PretrainedConfig):
        maker = transformers.AutoConfig if auto else cls.config_class
        config, options = maker.from_pretrained(config or folder, return_unused_kwargs=True, **code, **hub, **options)
        options = {name: value for name, value in options.items() if name not in (*code, *hub, "_commit_hash", "name_or_path")}
    if getattr(config, "quantization_config", None) is not None:
        raise UnavailableError(f"the model in {folder} is quantized, and Transformers reads such weights by itself: use {cls.__name__}.from_pretrained")
    cls, config = _resolve(cls, config, code) if auto else (cls, config)

    files = _files(Path(folder, subfolder), options.get("variant"), getattr(config, "transformers_weights", None))
    state = _Weights(weights.Call(files, device, method, group=group, progress=progress, reader=reader))
    options |= {**hub, **trust} | ({} if dtype is None else {"dtype": dtype})
    if device != "cpu":
        options["device_map"] = {"": torch.device(device)}
    with state:
        made = cls.from_pretrained(None, *arguments, config=config, state_dict=state, **options)
    if not state.given:
        raise UnavailableError(f"transformers {transformers.__version__} did not take the weights that it was given: use {cls.__name__}.from_pretrained")
    model = made[0] if isinstance(made, tuple) else made
    _name(model, folder)
    if said.pop("generation_config", None) is None:
        _prepare_generation(model, folder, trust, hub if auto else said)
    return made


def _check(cls: Any, options: dict[str, Any]) -> None:
    """Refuses arguments of Transformers that contradict this way of loading."""
    if not hasattr(cls, "from_pretrained") or not (hasattr(cls, "_model_mapping") or getattr(cls, "config_class", None)):
        raise InvalidError(f"{cls!r} is no model class of Transformers: give one such as AutoModelForCausalLM")
    for names, reason in (
        (_PLACES, "the model goes to one device: give device="),
        (_SOURCES, "the weights are those of the safetensors files"),
        (_QUANTIZING, "Transformers reads weights that it quantizes by itself"),
    ):
        for name in names:
            if options.get(name):
                raise InvalidError(f"{name} cannot be given to hbmfs.transformers.from_pretrained: {reason}")
    if options.pop("use_safetensors", None) is False:
        raise InvalidError("use_safetensors=False makes no sense here: only safetensors files are read")


def _resolve(auto: Any, config: Any, code: dict[str, Any]) -> tuple[Any, Any]:
    """The class that an Auto class stands for, and the part of the config that it takes."""
    import torch

    found = None if auto.__name__ in (getattr(config, "auto_map", None) or {}) else auto._model_mapping.get(type(config), None)
    if found is None or isinstance(found, (tuple, list)):
        # Code of the model's own, or a choice among classes: Transformers decides, and says why where there is none.
        with torch.device("meta"):
            found = type(auto.from_config(config, **code))
    text = config.sub_configs.get("text_config")
    return found, config.get_text_config() if text is not None and found.config_class == text else config


def _files(folder: Path, variant: str | None, named: str | None) -> Path:
    """The file or index that Transformers would read, of all that may lie beside it."""
    dot = f".{variant}" if variant else ""
    names = [named] if named else [f"model{dot}.safetensors", f"model.safetensors.index{dot}.json"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise NotFoundError(f"there is no {' and no '.join(names)} in {folder}: only safetensors files are read")


class _Weights(dict[str, Any]):
    """A state dict that a thread reads while Transformers makes the model. Until its tensors are asked for, they are on the meta
    device.

    Before it takes them, Transformers allocates as much memory as the whole model needs, to warm up the allocator, and frees it:
    with the weights there already, that would be twice the model. It leaves that out where it can be told to. Otherwise, and
    with a group, the weights are read when they are asked for.
    """

    def __init__(self, call: weights.Call) -> None:
        self.given = False
        self._call = call
        self._ahead = _Ahead(call) if call.group is None and _spares_warmup() else None
        try:
            super().__init__(weights.outlines(call.path))
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def items(self) -> Any:
        if not self.given:
            self.update(self._tensors())
            self.given = True
        return super().items()

    def _tensors(self) -> dict[str, Any]:
        if self._ahead is not None:
            return {name: _Arriving(self._ahead, name) for name in self} if _takes_slices() else self._ahead.all()
        if self._call.device != "cpu":
            import torch

            torch.cuda.empty_cache()  # other sizes are allocated now, which would leave holes in freed memory
        return self._call.load()

    def __enter__(self) -> _Weights:
        _warmup.spared = self._ahead is not None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends running work. The cause of the failure says more than Transformers' error."""
        _warmup.spared = False
        failure = None if self._ahead is None else self._ahead.end()
        if failure is not None and (kind is None or issubclass(kind, Exception)):
            raise failure


class _Ahead:
    """Weights that a thread reads."""

    def __init__(self, call: weights.Call) -> None:
        import torch

        self._changed = threading.Condition()  # guards the fields below
        self._tensors: dict[str, Any] = {}  # once all reads are begun
        self._ends: dict[str, int] = {}  # the bytes from which on each is there
        self._done = 0
        self._over = self._stopped = False
        self._failure: BaseException | None = None
        # The caller's stream is where the memory will be used, and given back.
        stream = None if call.device == "cpu" else torch.cuda.current_stream(call.device)
        self._thread = threading.Thread(target=self._run, args=(call, torch.cuda.stream(stream)), name="hbmfs-model", daemon=True)
        self._thread.start()

    def _run(self, call: weights.Call, stream: Any) -> None:
        show, end = None, None

        def arrived(done: int, total: int) -> None:
            nonlocal show, end
            if self._stopped:
                raise _Stopped
            if show is None:
                show, end = shower(call.progress, total, "weights")
            show(done - self._done)
            self._set(_done=done)

        try:
            with stream:
                tensors = call._replace(progress=arrived, begun=lambda found, ends: self._set(_tensors=found, _ends=ends)).load()
            self._set(_tensors=tensors, _over=True)
        except BaseException as err:  # noqa: BLE001 (raised by who asks)
            self._set(_tensors={}, _failure=err, _over=True)
        finally:
            if end is not None:
                end()

    def _set(self, **values: Any) -> None:
        with self._changed:
            self.__dict__.update(values)
            self._changed.notify_all()

    def tensor(self, name: str) -> Any:
        """Waits until a tensor is there."""
        return self._wait(lambda: self._ends.get(name, self._done + 1) <= self._done)[name]

    def all(self) -> dict[str, Any]:
        return self._wait(lambda: False)

    def _wait(self, there: Callable[[], bool]) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._over or there())
            if self._failure is not None:
                raise self._failure
            return self._tensors

    def end(self) -> BaseException | None:
        """Stops reading, if it goes on, and says why it failed, if it did."""
        self._stopped = True
        self._thread.join()
        self._tensors = {}
        return None if isinstance(self._failure, _Stopped) else self._failure


class _Stopped(Exception):
    """Nobody waits for the weights any more."""


class _Arriving:
    """A tensor that is on its way, as a slice of a safetensors file is: it is there when it is indexed."""

    def __init__(self, ahead: _Ahead, name: str) -> None:
        self._ahead, self._name = ahead, name

    def __getitem__(self, index: Any) -> Any:
        return self._ahead.tensor(self._name)[index]


def _takes_slices() -> bool:
    """Whether Transformers indexes the values of a state dict, on threads, before it uses them."""
    try:
        loading = importlib.import_module("transformers.core_model_loading")
    except ImportError:  # before 5
        return False
    return hasattr(loading, "_materialize_copy")


_warmup = threading.local()
"""`spared` is set on threads on which Transformers shall not warm up the allocator."""


def _spares_warmup() -> bool:
    """Has Transformers ask `_warmup` before it warms up the allocator. There is no option for that."""
    from transformers import modeling_utils

    real = getattr(modeling_utils, "caching_allocator_warmup", None)
    if real is None:
        return False
    if not hasattr(real, "asks_hbmfs"):

        @functools.wraps(real)
        def warmup(*arguments: Any, **options: Any) -> Any:
            return None if getattr(_warmup, "spared", False) else real(*arguments, **options)

        warmup.asks_hbmfs = True  # type: ignore[attr-defined]
        modeling_utils.caching_allocator_warmup = warmup
    return True


def _name(model: Any, folder: str) -> None:
    """Writes where the model is from to wherever Transformers, which was given no path, wrote "None"."""
    for part in model.modules():
        for owner in (part, getattr(part, "config", None)):
            if owner is not None and getattr(owner, "name_or_path", "") in (None, "None"):
                owner.name_or_path = folder


def _prepare_generation(model: Any, folder: str, trust: dict[str, Any], options: dict[str, Any]) -> None:
    """Gives a model that generates the settings for generation in its directory, as Transformers does where it has the path."""
    import transformers

    if not model.can_generate():
        return
    known: Any = transformers.GenerationConfig
    try:
        model.generation_config = known.from_pretrained(folder, **options)
    except OSError:  # there is no such file
        if hasattr(model, "adjust_generation_fn"):  # Transformers 5, whose configs leave out settings for generation of old files
            model.generation_config = known.from_pretrained(folder, config_file_name="config.json", _from_model_config=True, **options)
    if trust["trust_remote_code"]:
        with contextlib.suppress(OSError):  # there is no function of the model's own
            model.generate = functools.partial(model.load_custom_generate(folder, **trust, **options), model=model)
