#!/bin/sh
# need.sh NEED...: makes sure that this machine has what a make target needs.
# Needs: go (the one that go.mod asks for), fuse (fusermount3), cc (a C compiler, for the race detector), python (python3 with
# venv), nginx, mkfs (of XFS and btrfs, for root), strace, ffmpeg, rpm, cluster (containerd, runc, CNI's plugins).
# What is missing is installed when this is root on a Debian-like system; else the command to run is named.
set -eu

missing=
for need in "$@"; do
    case $need in
    go)
        # No distribution has it so new, and no package installs it: a Go of 1.21 or later fetches the one that go.mod names.
        wanted=$(sed -n 's/^go //p' "$(dirname "$0")/../go.mod")
        found=$("${GO:-go}" env GOVERSION 2>/dev/null) || found=
        [ -n "$found" ] && [ "$(printf '%s\n' "$wanted" "${found#go}" | sort -V | head -n 1)" = "$wanted" ] && continue
        has=$("${GO:-go}" version 2>&1) || has="none"
        echo "hbmfs needs Go $wanted or later to be built, and this machine has ${found:-$has}: install it from https://go.dev/dl," \
            "or install a built hbmfs as README.md says" >&2
        exit 1
        ;;
    fuse)
        command -v fusermount3 >/dev/null || missing="$missing fuse3"
        ;;
    cc)
        command -v "${CC:-gcc}" >/dev/null || missing="$missing gcc libc6-dev"
        ;;
    python)
        # ensurepip is what Debian splits out of python3 into python3-venv.
        python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3 python3-venv"
        ;;
    nginx)
        # Debian has it in /usr/sbin, where an ordinary user's PATH need not lead.
        PATH="$PATH:/usr/sbin" command -v nginx >/dev/null || missing="$missing nginx-light"
        ;;
    ffmpeg)
        # torchcodec loads its libraries.
        command -v ffmpeg >/dev/null || missing="$missing ffmpeg"
        ;;
    rpm)
        command -v rpm >/dev/null || missing="$missing rpm"
        ;;
    mkfs)
        # Root's tests make filesystems on loop devices.
        [ "$(id -u)" -ne 0 ] || { command -v mkfs.xfs && command -v mkfs.btrfs; } >/dev/null || missing="$missing xfsprogs btrfs-progs"
        ;;
    strace)
        command -v strace >/dev/null || missing="$missing strace"
        ;;
    cluster)
        command -v containerd >/dev/null && command -v runc >/dev/null && [ -x /usr/lib/cni/bridge ] && command -v ip >/dev/null ||
            missing="$missing containerd runc containernetworking-plugins iproute2"
        ;;
    *)
        echo "need.sh: unknown need $need" >&2
        exit 2
        ;;
    esac
done
[ -n "$missing" ] || exit 0

install="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    retry=$(dirname "$0")/retry.sh
    "$retry" apt-get update -qq
    # Word splitting is wanted: one argument for each package.
    "$retry" apt-get install -y -qq --no-install-recommends $missing
    exit 0
fi
echo "missing on this machine:$missing" >&2
echo "on Debian or Ubuntu, install with:  sudo sh -c '$install'" >&2
exit 1
