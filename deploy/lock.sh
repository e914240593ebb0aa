#!/usr/bin/env bash
# Write requirements.lock, requirements-core.lock and requirements-dev.lock anew: exact versions, hashes of every file, all platforms.
# --no-config and --no-emit-index-url keep this machine's package index out of the files.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v uv >/dev/null || { echo "uv is missing: pip install uv" >&2; exit 1; }
compile() {
    uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-header --no-emit-index-url --quiet "$@" >/dev/null
}
# All that can be installed with Velox: the image has to serve each setting.
compile pyproject.toml --all-extras --output-file requirements.lock
# The same versions without the extras: less than 80 MB, for a gateway that has no Redis, PostgreSQL or key of Google.
compile --constraint requirements.lock pyproject.toml --output-file requirements-core.lock
# Development takes the very versions that are shipped. setuptools builds Velox itself (pyproject.toml [build-system]).
echo 'setuptools>=77' | compile --constraint requirements.lock --group dev --all-extras pyproject.toml - \
    --output-file requirements-dev.lock
# What `make release` needs beside .venv.
{
    echo "# For \`make release\` and the tests of packages, beside .venv: \`make release-tools\`. deploy/lock.sh writes it."
    uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --upgrade --no-header \
        --no-emit-index-url --no-annotate --quiet deploy/release/requirements.in
} > deploy/release/requirements.txt
# What renders and checks the chart.
{
    echo "# Helm's own library, to render the chart, and what checks it: \`make helm-tools\`, beside .venv. Wheels: Linux on x86-64."
    uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --upgrade --no-header \
        --no-emit-index-url --no-annotate --quiet deploy/helm/requirements.in
} > deploy/helm/requirements.txt
