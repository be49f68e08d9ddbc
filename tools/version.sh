#!/bin/sh
# version.sh: prints the version of this tree. A tagged commit has its tag's name, v0.2.0; a later one v0.2.0+5.gabc1234. In a
# clone without tags it is v0.2.0-dev+gabc1234, after the release that the chart names. All package formats take these forms.
set -eu
cd "$(dirname "$0")/.."

named=$(git describe --tags --match 'v[0-9]*' --dirty=.dirty 2>/dev/null) && {
    echo "$named" | sed -E 's/-([0-9]+)-g([0-9a-f]+)/+\1.g\2/; /\+/!s/\.dirty$/+dirty/'
    exit 0
}
commit=$(git describe --always --dirty=.dirty 2>/dev/null) || commit=
echo "v$(sed -n 's/^version: //p' deploy/helm/hbmfs/Chart.yaml)-dev${commit:++g$commit}"
