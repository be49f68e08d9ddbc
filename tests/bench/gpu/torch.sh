#!/bin/sh
# torch.sh LIB OUT [HBMFS]: what the Python package reaches on a machine with an NVIDIA GPU and torch, in about 6 minutes.
#   LIB    a built libhbmfs.so (`make lib`)
#   OUT    a folder for the logs and the JSON
#   HBMFS  the built binary: batches are then read through a mount, too, where this machine can mount
# It needs 32 GB of disk below TMPDIR and as much memory for the page cache.
set -eu

lib=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
rm -f "$out"/torch-*.json # a result that is there at the end is this run's
hbmfs=${3:+$(realpath "$3")}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/hbmfs-torch-XXXXXX")
end() {
    [ -z "$hbmfs" ] || "$hbmfs" umount "$work/mnt" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT

export HBMFS_LIBRARY="$lib" PYTHONPATH="$here/../../../python" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The same bits from each run of a matrix product, which the comparison of losses needs.
export CUBLAS_WORKSPACE_CONFIG=:4096:8

nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader | tee "$out/torch-machine.txt"
python3 -c 'import torch, numpy, os; print("torch", torch.__version__, "numpy", numpy.__version__, "CPUs", os.cpu_count())' | tee -a "$out/torch-machine.txt"

python3 -W ignore "$here/torch_check.py" --json "$out/torch-check.json" 2>&1 | tee "$out/torch-check.txt"
mkdir -p "$work/data" "$work/mnt"
python3 "$here/torch_batches.py" make "$work/data/train.bin"
if [ -n "$hbmfs" ] && "$hbmfs" mount --dtype u16 "$work/data" "$work/mnt" >"$out/torch-mount.txt" 2>&1; then
    mount=$work/mnt
else
    mount=
fi
failed=0
python3 -W ignore "$here/torch_batches.py" batches "$work/data/train.bin" ${mount:+--mount "$mount"} --json "$out/torch-batches.json" 2>&1 | tee "$out/torch-batches.txt"
python3 -W ignore "$here/torch_batches.py" leaks "$work/data/train.bin" --json "$out/torch-leaks.json" 2>&1 | tee "$out/torch-leaks.txt"
python3 -W ignore "$here/torch_batches.py" train "$work/data/train.bin" --json "$out/torch-train.json" 2>&1 | tee "$out/torch-train.txt"
[ -z "$mount" ] || "$hbmfs" umount "$mount" || true
rm -f "$work/data/train.bin"
[ -z "$mount" ] || python3 -W ignore "$here/shards.py" "$hbmfs" --dir "$work" --json "$out/torch-shards.json" 2>&1 | tee "$out/torch-shards.txt"
python3 -W ignore "$here/torch_weights.py" --dir "$work" --json "$out/torch-weights.json" 2>&1 | tee "$out/torch-weights.txt"
for part in check batches leaks train weights ${mount:+shards}; do
    [ -s "$out/torch-$part.json" ] || { echo "torch-$part: no result"; failed=1; }
done
echo "torch: $([ $failed -eq 0 ] && echo done || echo FAILED)"
exit $failed
