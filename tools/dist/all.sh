#!/bin/sh
# all.sh DIST: makes every file of a release in DIST, which it replaces. `make dist` calls it.
#
# The environment of all scripts here comes from the Makefile: VERSION, ABI, SOURCE_DATE_EPOCH, GO, MAKE, WORK (a folder for what
# is between), and the tools NFPM, IMAGER and SBOM. Another folder, time or machine gives the same bits.
set -eu
cd "$(dirname "$0")/../.."
dist=$1
version=${VERSION#v}
case $version in
[0-9]*.[0-9]*.[0-9]*) ;;
*)
    echo "all.sh: VERSION is $VERSION: want one such as v0.2.0" >&2
    exit 2
    ;;
esac
export LC_ALL=C TZ=UTC HOST="$WORK/$("$GO" env GOHOSTARCH)"
GOTOOLCHAIN=$(sed -n 's/^toolchain //p' go.mod) # no other compiler's bits
export GOTOOLCHAIN
umask 022
mkdir -p "$WORK"
rm -rf "$dist"
mkdir -p "$dist"
tools/venv.sh "$WORK/venv" tools/dist/requirements.txt

# Everything that is compiled, so that a mistake shows before anything is packed.
for arch in amd64 arm64; do
    GOARCH=$arch "$MAKE" build BIN="$WORK/$arch"
    GOARCH=$arch "$MAKE" build BIN="$WORK/$arch-nogpu" TAGS=nogpu
    GOARCH=$arch "$MAKE" lib BIN="$WORK/$arch" CC="$PWD/tools/dist/cc-$arch.sh"
done
for arch in amd64 arm64; do
    tools/dist/tarball.sh "$WORK/$arch" "$dist/hbmfs-$version-linux-$arch"
    tools/dist/tarball.sh "$WORK/$arch-nogpu" "$dist/hbmfs-$version-linux-$arch-nogpu"
    tools/dist/packages.sh "$arch" "$WORK/$arch" "$dist"
    tools/dist/wheel.sh "$arch" "$WORK/$arch" "$dist"
done
ARCH="amd64 arm64" tools/dist/image.sh "ghcr.io/hbmfs/hbmfs:$(echo "$version" | tr + -)" "$dist/hbmfs-image-$version.tar"
tools/dist/chart.sh "$dist"
"$SBOM" --version "$VERSION" "$WORK"/*/hbmfs "$WORK"/*-nogpu/hbmfs-csi "$WORK"/*/libhbmfs.so >"$dist/hbmfs-$version.cdx.json"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
