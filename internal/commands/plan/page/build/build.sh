#!/bin/sh
# Builds charts.min.js of the packages that package-lock.json pins, and collects their licences in charts.LICENSES.
# The same lock gives the same bytes. It needs Node.js and npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/package*.json "$here/charts.js" "$work"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund
npx esbuild charts.js --bundle --minify --format=iife --global-name=charting --legal-comments=none --target=es2020 \
  --define:process.env.NODE_ENV='"production"' --outfile="$here/../charts.min.js"
cd node_modules # vis-graph3d comes without a licence file: it has that of vis-util
for file in echarts/LICENSE echarts/NOTICE echarts/licenses/* zrender/LICENSE tslib/LICENSE.txt vis-util/LICENSE-MIT vis-data/LICENSE-MIT \
  component-emitter/license uuid/LICENSE.md @egjs/hammerjs/LICENSE.md; do
  echo "==== $file"
  cat "$file"
done >"$here/../charts.LICENSES"
sha256sum "$here/../charts.min.js"
