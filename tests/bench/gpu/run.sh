#!/bin/sh
# run.sh HBMFS TESTS OUT [GIB]: what can only be shown on a machine with an NVIDIA GPU.
#   HBMFS  the built binary
#   TESTS  `go test -c -o TESTS ./cufile`
#   OUT    a folder for the logs and the JSON
#   GIB    the size of the file that is measured (8)
# It ends with 1 where a test failed, or a path brought other bytes than the file's.
# As root it writes udev data for the disk where there is none, since libcufile refuses a disk without. It changes nothing else.
set -eu

hbmfs=$(realpath "$1")
tests=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
gib=${4:-8}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/hbmfs-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT
file=$work/data.bin

libcufile=$(ldconfig -p | awk '/libcufile.so.0/ { print $NF; exit }')
[ -n "$libcufile" ] || libcufile=$(python3 -c 'import importlib.util as u, pathlib
for root in (u.find_spec("nvidia").submodule_search_locations or []):
    for found in pathlib.Path(root).glob("**/libcufile.so.0"):
        print(found)' | head -n 1)
device=$(stat -c '%Hd:%Ld' "$work")
if [ "$(id -u)" -eq 0 ] && [ ! -e "/run/udev/data/b$device" ]; then
    mkdir -p /run/udev/data
    printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=%s\n' "$(stat -f -c %T "$work" | sed s,/.*,,)" >"/run/udev/data/b$device"
fi

{
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader
    uname -r
    nproc
    echo "libcufile: $libcufile"
    df -T "$work" | tail -n 1
} | tee "$out/machine.txt"

echo "== tests in HBM"
# One test at a time: cuFile keeps its settings per process.
(cd "$here/../../../cufile" && HBMFS_GPU=1 HBMFS_LIBCUFILE=$libcufile "$tests" -test.v -test.run '/^gpu') >"$out/tests.txt" 2>&1 &&
    verdict=passed || verdict=FAILED
grep -E '^ *--- ' "$out/tests.txt" | sed 's/(.*//' | sort | uniq -c | sort -rn | head -n 60
grep -E '_test.go:|panic' "$out/tests.txt" | head -n 20
echo "tests: $verdict"
failed=0
[ "$verdict" = passed ] || failed=1

openssl enc -aes-128-ctr -pass pass:hbmfs -nosalt </dev/zero 2>/dev/null | head -c "$((gib << 30))" >"$file" || true
[ "$(stat -c %s "$file")" -eq "$((gib << 30))" ] || head -c "$((gib << 30))" /dev/urandom >"$file"
sync "$file"
cat "$file" >/dev/null

echo "== the command, byte by byte"
want=$(tail -c +12346 "$file" | head -c 1000000001 | sha256sum | cut -d ' ' -f 1)
for path in host staged mapped compat auto; do
    "$hbmfs" read --path $path --libcufile "$libcufile" --offset 12345 --length 1000000001 --json "$file" >"$out/read-$path.json" || {
        echo "$path: not read"
        continue
    }
    grep -q "$want" "$out/read-$path.json" && echo "$path: same bytes" || { echo "$path: OTHER BYTES"; failed=1; }
done
"$hbmfs" read --require direct --libcufile "$libcufile" "$file" 2>&1 | tee "$out/direct.txt" || true

bench() { # NAME FLAGS...: a table on the screen, the same in OUT, and the JSON that tests/bench/gpu/table.py makes tables of
    name=$1
    shift
    "$hbmfs" bench --libcufile "$libcufile" --json "$@" "$file" >"$out/$name.json" || {
        echo "$name: not measured"
        return 0
    }
    python3 "$here/table.py" "$out/$name.json" | tee "$out/$name.txt"
}

echo "== warm, as writing left the page cache"
bench written --paths staged,mapped,compat --seconds 1.5
echo "== warm, in huge pages where the kernel has them"
bench huge --paths staged,mapped --seconds 1.5 --refill
bench huge-16m --paths staged,moving,first --modes sequential --block 16MiB --seconds 1
for window in 64MiB 256MiB 512MiB; do
    bench "window-$window" --paths moving,first --modes sequential --seconds 0.7 --window $window
done
gpus=$(nvidia-smi -L | wc -l)
for n in 2 4 8; do
    [ "$gpus" -ge "$n" ] || continue
    bench "gpus-$n" --gpus "$(seq -s , 0 $((n - 1)))" --paths staged,kept,moving --modes sequential --seconds 1
done
python3 -W ignore "$here/peers.py" "$file" | tee "$out/peers.txt"
echo "gpu: $([ $failed -eq 0 ] && echo done || echo FAILED)"
exit $failed
