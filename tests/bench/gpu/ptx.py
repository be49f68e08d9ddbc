"""Make the .ptx files of cufile/internal/driver/ from the .cu files beside them with NVRTC; needs no GPU.

    python3 -m pip install nvidia-cuda-nvrtc-cu12==12.0.140
    python3 tests/bench/gpu/ptx.py [LIBNVRTC]

NVRTC 12.0 writes PTX ISA 8.0, which drivers from 525 on accept. A newer NVRTC shuts older drivers out.
"""

import ctypes
import importlib.util
import pathlib
import sys


def library() -> str:
    if len(sys.argv) > 1:
        return sys.argv[1]
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("no NVRTC: python3 -m pip install nvidia-cuda-nvrtc-cu12==12.0.140")
    return str(pathlib.Path(spec.submodule_search_locations[0]) / "lib" / "libnvrtc.so.12")


def compile_kernel(nvrtc: ctypes.CDLL, source: pathlib.Path) -> None:
    def text(size_of: str, fill: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, size_of)(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, fill)(program, buffer)
        return buffer.value

    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    options = [b"--gpu-architecture=compute_70"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode()
    if failed:
        sys.exit(log)
    source.with_suffix(".ptx").write_bytes(text("nvrtcGetPTXSize", "nvrtcGetPTX"))


def main() -> None:
    nvrtc = ctypes.CDLL(library())
    for source in sorted((pathlib.Path(__file__).resolve().parents[3] / "cufile" / "internal" / "driver").glob("*.cu")):
        compile_kernel(nvrtc, source)


if __name__ == "__main__":
    main()
