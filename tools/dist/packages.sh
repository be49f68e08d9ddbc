#!/bin/sh
# packages.sh ARCH BIN OUT: makes .deb and .rpm of what is in BIN, for an architecture as Go calls it: the command, the library,
# its header, and what Prometheus and Grafana take. LEVEL is that of gzip (9).
set -eu
export ARCH=$1
bin=$2 out=$3
export VERSION="${VERSION#v}" STAGE="$WORK/stage/$ARCH"
EXACT=$(echo "$VERSION" | tr - '~') # as dpkg and rpm write what comes before a release
export EXACT
case $ARCH in
amd64) triplet=x86_64-linux-gnu ;;
arm64) triplet=aarch64-linux-gnu ;;
*)
    echo "packages.sh: no packages are made for $ARCH" >&2
    exit 2
    ;;
esac
mkdir -p "$out"
tools/dist/stage.sh "$bin" /usr "$STAGE/hbmfs"
observed=$STAGE/hbmfs-observability/usr/share/hbmfs/observability
install -D -m 644 -t "$observed" deploy/observability/*

for kind in deb rpm; do
    case $kind in # each family of distributions has its own place for libraries, and its own word
    deb) libdir=/usr/lib/$triplet DEVEL=libhbmfs-dev ;;
    rpm) libdir=/usr/lib64 DEVEL=libhbmfs-devel ;;
    esac
    export LIBRARY=libhbmfs$ABI DEVEL
    rm -rf "${STAGE:?}/$LIBRARY" "${STAGE:?}/devel"
    file=libhbmfs.so.$ABI.$VERSION
    install -D -m 644 "$bin/libhbmfs.so" "$STAGE/$LIBRARY$libdir/$file"
    ln -s "$file" "$STAGE/$LIBRARY$libdir/libhbmfs.so.$ABI"
    install -D -m 644 -t "$STAGE/$LIBRARY/usr/share/doc/$LIBRARY" LICENSE
    install -D -m 644 -t "$STAGE/devel/usr/include" cmd/libhbmfs/libhbmfs.h
    install -D -m 644 -t "$STAGE/devel/usr/share/doc/$DEVEL" LICENSE docs/reference/libhbmfs.md
    mkdir -p "$STAGE/devel$libdir/pkgconfig"
    ln -s "libhbmfs.so.$ABI" "$STAGE/devel$libdir/libhbmfs.so"
    sed "s|@LIBDIR@|$libdir|; s|@VERSION@|$VERSION|" deploy/packages/libhbmfs.pc.in >"$STAGE/devel$libdir/pkgconfig/libhbmfs.pc"
    tools/dist/timeless.sh "$STAGE"
    for config in hbmfs libhbmfs libhbmfs-dev hbmfs-observability; do
        sed "s/@LEVEL@/${LEVEL:-9}/" "deploy/packages/$config.yaml" >"$STAGE/$config.yaml"
        "$NFPM" package --config "$STAGE/$config.yaml" --packager "$kind" --target "$out/"
    done
done
