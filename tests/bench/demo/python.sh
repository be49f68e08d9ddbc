#!/bin/sh
# python.sh DIR...: prints the path of a Python with NumPy for the demo: HBMFS_PYTHON, that of an environment in a DIR, or python3. Where
# none has NumPy, it makes an environment in the first DIR (20 MB to download).
set -eu

for dir; do set -- "$@" "$dir/bin/python"; shift; done
for python in "${HBMFS_PYTHON:-}" "$@" python3; do
    if [ -n "$python" ] && "$python" -c 'import numpy, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
dir=${1%/bin/python}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "$0: python3 is older than 3.10: name another one, with NumPy, in HBMFS_PYTHON" >&2
    exit 1
}
echo "making a Python environment with NumPy in $dir" >&2
python3 -m venv --clear "$dir"
"$(dirname "$0")/../../../tools/retry.sh" "$1" -m pip install --quiet --disable-pip-version-check --only-binary :all: 'numpy>=2.1' >&2
echo "$1"
