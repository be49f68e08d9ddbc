#!/bin/sh
# Makes the Python environment of the tests in DIR, or returns at once when DIR already is what requirements.txt asks for. With OVER,
# it makes that of the real readers: what requirements-peers.txt asks for, over the environment in OVER, which it makes first.
#
#   tests/venv.sh DIR [OVER]
#
# PYTHON names the interpreter (python3; 3.11 to 3.13). The packages come from pip's configured index. No GPU library
# is installed: see below. A CPU-only torch from another index is taken when pip is configured to prefer it.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: $0 DIR [OVER]" >&2
	exit 2
fi
dir=$1
over=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
list=requirements.txt
[ -z "$over" ] || list=requirements-peers.txt
stamp=$(cat "$here/requirements.txt" "$here/$list" "$here/venv.sh" | cksum)
[ -z "$over" ] || "$0" "$over"

if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$stamp" ] && "$dir/bin/python" -c ''; then
	exit 0
fi

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
	echo "$0: $python is no Python 3.11, 3.12 or 3.13: name one in PYTHON" >&2
	exit 1
}
echo "making the Python environment in $dir ($([ -n "$over" ] && echo "about 650 MB" || echo "about 1 GB") to download)" >&2
if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
	echo "$0: $dir is there and is no Python environment: remove it first" >&2
	exit 1
fi
rm -rf "$dir"
"$python" -m venv "$dir"
site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site=$(site_of "$dir")
# A line of a .pth file that is a directory would leave out the .pth files in it.
[ -z "$over" ] || echo "import site; site.addsitedir('$(site_of "$(cd "$over" && pwd)")')" >"$site/over.pth"
"$here/../tools/retry.sh" "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile -r "$here/$list"

# Most of vLLM's 840 MB are kernels for GPUs. The tests load its Python alone.
[ -z "$over" ] || rm -rf "$site"/vllm/*.so "$site/vllm/vllm-rs" "$site/vllm/vllm_flash_attn" "$site/vllm/third_party"

# fairseq's last wheels are for older Pythons, and its package cannot be imported by this one: tests/suites/loaders/projects.py takes its reader
# alone, which is plain Python.
[ -z "$over" ] || "$here/../tools/retry.sh" "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile \
	--target "$site" --platform manylinux1_x86_64 --implementation cp --python-version 3.8 --only-binary :all: fairseq==0.12.2

# torch's wheel for x86 Linux is linked with the CUDA libraries, which its metadata asks for as 3 GB of further
# wheels. Nothing calls into them without a GPU, but the loader wants files of these names: give it a library that is
# already loaded, and have torch bind its functions when they are first called instead of all at import.
if [ -e "$site/torch/lib/libtorch_cuda.so" ]; then
	for lib in libcublas.so.12 libcublasLt.so.12 libcudnn.so.9 libcufft.so.11 libcurand.so.10 libcusolver.so.11 \
		libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvshmem_host.so.3; do
		ln -s libc10.so "$site/torch/lib/$lib"
	done
	echo 'import os; os.environ.setdefault("TORCH_USE_RTLD_GLOBAL", "1")' >"$site/torch_without_cuda.pth"
fi
"$dir/bin/python" -c 'import torch; torch.ones(2, 2) @ torch.ones(2, 2)'
echo "$stamp" >"$dir/stamp"
