#!/usr/bin/env bash
# Write NAME.lock from NAME.in for each environment, or for those that are named: exact versions, hashes, all platforms.
# What a line `# without:` of NAME.in names is left out. Needs `uv`.
set -euo pipefail
cd "$(dirname "$0")"

command -v uv >/dev/null || { echo "uv is missing: pip install uv" >&2; exit 1; }
names=("$@")
[ $# -gt 0 ] || names=(*.in)
for name in "${names[@]%.in}"; do
    without=()
    for package in $(sed -n 's/^# without: //p' "$name.in"); do without+=(--no-emit-package "$package"); done
    uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --upgrade --no-header \
        --no-emit-index-url --quiet "${without[@]}" "$name.in" --output-file "$name.lock" >/dev/null
done
