#!/bin/sh
# A C compiler for x86_64 with glibc 2.17 of 2012, the oldest that manylinux_2_17 promises: zig has the symbols of each version.
ZIG_GLOBAL_CACHE_DIR=$WORK/zig ZIG_LOCAL_CACHE_DIR=$WORK/zig exec "$WORK/venv/bin/python" -m ziglang cc -target x86_64-linux-gnu.2.17 "$@"
