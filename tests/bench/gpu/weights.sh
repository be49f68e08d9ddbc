#!/bin/sh
# weights.sh LIB OUT [TESTS]: weights into one GPU, into all GPUs of a host and into a model of Transformers, each beside its peers, in 10 to 15 minutes.
#   LIB     a built libhbmfs.so (`make lib`)
#   OUT     a folder for the tables and the JSON
#   TESTS   `go test -c -o TESTS ./cufile/internal/source`: columns of a matrix by as many threads as a reader has
#   WHEELS  in the environment: a folder of wheels of peers (kvikio, InstantTensor, Run:ai's streamer, safetensors 0.9, fastsafetensors), which are not downloaded
#   PARTS, LIMIT  in the environment: the parts to run, in this order (all of them), and the most seconds for each
# A peer takes part where it can be imported. It needs 18 GB of disk below TMPDIR, as much of /dev/shm, and as much memory for the page cache.
set -eu

lib=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
tests=${3:+$(realpath "$3")}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/hbmfs-weights-XXXXXX")
trap 'rm -rf "$work"' EXIT
export HBMFS_LIBRARY="$lib" PYTHONPATH="$here/../../../python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
if [ -n "${WHEELS:-}" ]; then
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$WHEELS"/*.whl
    PYTHONPATH="$PYTHONPATH:$work/site"
fi

gpus=$(nvidia-smi -L | wc -l)
{
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader
    python3 -c 'import torch, os; print("torch", torch.__version__, "CPUs", os.cpu_count())'
    uname -r
} | tee "$out/weights-machine.txt"

failed=0
measure() { # NAME SECONDS SCRIPT FLAGS...: the table, and the JSON
    name=$1
    rm -f "$out/weights-$name.json" # one that is there at the end is this run's
    seconds=$2
    script=$3
    shift 3
    {
        timeout -k 5 "${LIMIT:-$seconds}" python3 -W ignore "$here/$script" --dir "$work" --json "$out/weights-$name.json" "$@" ||
            echo "weights-$name: ended with $?"
    } 2>&1 | tee "$out/weights-$name.txt"
    [ -s "$out/weights-$name.json" ] && ! grep -q "^weights-$name: ended" "$out/weights-$name.txt" || failed=1
}

if [ -n "$tests" ]; then
    (cd "$work" && "$tests" -test.run none -test.bench Columns -test.cpu 1,4,12 -test.benchtime 150ms) 2>&1 | grep Columns | tee "$out/weights-columns.txt"
fi
for part in ${PARTS:-loaders planner group faults limit transformers}; do
    case $part in
    loaders) measure loaders 420 loaders.py ;;
    planner) measure planner 90 group.py --gpus 1 --parts planner ;;
    group) [ "$gpus" -lt 2 ] || measure group 240 group.py --parts rounds,planner,page_cache ;;
    faults) [ "$gpus" -lt 2 ] || measure faults 150 group.py --loaders hbmfs_columns,hbmfs_megatron --rounds 1 --parts rounds,cold,failures ;;
    limit) measure limit 150 in_place.py --gb 6.9 --only limit ;;
    transformers)
        if python3 -c 'import transformers, accelerate' 2>/dev/null; then
            measure transformers 200 transformers_check.py --rounds 7
        else
            echo "transformers or accelerate cannot be imported: from_pretrained was not measured"
        fi
        ;;
    *)
        echo "PARTS has $part, which is none"
        failed=1
        ;;
    esac
done
echo "weights: $([ $failed -eq 0 ] && echo done || echo FAILED)"
exit $failed
