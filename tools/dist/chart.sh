#!/bin/sh
# chart.sh OUT: makes the Helm chart and the plain manifests of a release, which take the image of its version.
set -eu
out=$1
version=${VERSION#v}
tag=$(echo "$version" | tr + -) # a tag has no +
stage=$WORK/stage/chart
rm -rf "$stage"
mkdir -p "$stage"
cp -r deploy/helm/hbmfs "$stage/hbmfs"
rm -r "$stage/hbmfs/ci"
sed -i "s|^version: .*|version: $version|; s|^appVersion: .*|appVersion: \"$tag\"|" "$stage/hbmfs/Chart.yaml"
tools/dist/timeless.sh "$stage"
tar --create --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu hbmfs | gzip --no-name -9 >"$out/hbmfs-chart-$version.tgz"
sed "s|image: \"ghcr.io/hbmfs/hbmfs:.*\"|image: \"ghcr.io/hbmfs/hbmfs:$tag\"|" deploy/kubernetes/namespace.yaml deploy/kubernetes/hbmfs.yaml \
    >"$out/hbmfs-kubernetes-$version.yaml"
