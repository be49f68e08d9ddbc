#!/bin/sh
# sixteen.sh LIB OUT [TESTS]: weights into all GPUs of a host and into a model of Transformers, in about 4 minutes.
#   LIB    a built libhbmfs.so (`make lib`)
#   OUT    a folder for the logs and the JSON
#   TESTS  `go test -c -o TESTS ./internal/source`: columns of a matrix by as many threads as a reader has
# It needs 18 GB of disk below TMPDIR and as much memory for the page cache. Peers take part where they can be imported.
set -eu

lib=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
tests=${3:+$(realpath "$3")}
here=$(cd "$(dirname "$0")" && pwd)
export HBMFS_LIBRARY="$lib" PYTHONPATH="$here/../../python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

{
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader
    python3 -c 'import torch, transformers, os; print("torch", torch.__version__, "transformers", transformers.__version__, "CPUs", os.cpu_count())'
    uname -r
} | tee "$out/machine.txt"

failed=0
if [ -n "$tests" ]; then
    (cd "${TMPDIR:-/tmp}" && "$tests" -test.run none -test.bench Columns -test.cpu 1,4,12 -test.benchtime 150ms) 2>&1 | grep Columns | tee "$out/columns.txt"
fi
timeout 240 python3 -W ignore "$here/group.py" --dir "${TMPDIR:-/tmp}" --cold --skip-failures --json "$out/group.json" \
    --loaders hbmfs,hbmfs_rows,hbmfs_columns,hbmfs_columns_alone,hbmfs_megatron,instanttensor,fastsafetensors 2>&1 | tee "$out/group.txt"
timeout 200 python3 -W ignore "$here/transformers_check.py" --dir "${TMPDIR:-/tmp}" --rounds 7 --json "$out/transformers.json" 2>&1 | tee "$out/transformers.txt"
for part in group transformers; do
    [ -s "$out/$part.json" ] || { echo "$part: no result"; failed=1; }
done
echo "sixteen: $([ $failed -eq 0 ] && echo done || echo FAILED)"
exit $failed
