#!/bin/sh
# install.sh DIR: installs Azurite into DIR, by npm. A machine without npm gets one from PyPI, in DIR too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../../../tools
mkdir -p "$1"
cd "$1"
if command -v npm >/dev/null && node -e 'process.exit(process.versions.node.split(".")[0] < 18)' 2>/dev/null; then
    node=node
else
    "$tools/venv.sh" node "$here/node.txt"
    PATH="$PWD/node/bin:$PATH"
    export PATH
    node=node/bin/node
fi
node=$("$node" -p process.execPath) # node of PyPI is a program that starts it, and would leave it behind when it is killed
cp "$here/package.json" "$here/package-lock.json" .
"$tools/retry.sh" npm ci --silent --no-audit --no-fund --ignore-scripts --omit=optional
printf '#!/bin/sh\nexec "%s" "%s/node_modules/azurite/dist/src/blob/main.js" "$@"\n' "$node" "$PWD" >azurite-blob
chmod +x azurite-blob
