#!/bin/sh
# wheel.sh ARCH BIN OUT: makes the wheel of the Python package, with BIN's library and command, for every Linux with glibc 2.17 or
# later, and has auditwheel confirm that it is one.
set -eu
bin=$2 out=$(realpath "$3")
case $1 in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
esac
platform=manylinux_2_17_$machine
(
    cd python
    PYTHONDONTWRITEBYTECODE=1 HBMFS_VERSION=$VERSION HBMFS_LIBRARY=$bin/libhbmfs.so HBMFS_BINARY=$bin/hbmfs \
        HBMFS_PLATFORM=$platform.manylinux2014_$machine "$WORK/venv/bin/python" -m hatchling build -t wheel -d "$out"
)
for wheel in "$out"/*"$machine".whl; do
    "$WORK/venv/bin/python" tools/dist/audit.py "$wheel" "$platform"
done
