#!/bin/sh
# image.sh NAME OUT [--push]: makes the image of the architectures ARCH, and with --push puts it into the registry of its name.
# nogpu: the daemons move nothing into a GPU, the readers in the pods do; and only so does nothing need a C library.
set -eu
name=$1 out=$2
shift 2
folders=
for arch in $ARCH; do
    GOARCH=$arch MAKEFLAGS= "$MAKE" build BIN="$WORK/$arch-nogpu" TAGS=nogpu
    folders="$folders $arch=$WORK/$arch-nogpu"
done
# Word splitting is wanted: one argument for each architecture.
"$IMAGER" --name "$name" --out "$out" "$@" $folders
