#!/usr/bin/env bash
# Install the servers and tools that the tests drive, where they are missing and this is root on Debian.
# Elsewhere: say what is missing; the tests that need it then skip, with the reason. With CI=true that is a failure,
# so that a test which can't run is never taken for one that passed.
set -euo pipefail
PATH=$PATH:/usr/sbin

missing() {
    local tool
    for tool in nginx:nginx-light nghttpd:nghttp2-server h2load:nghttp2-client wrk:wrk \
        chromium:chromium go:golang-go curl:curl openssl:openssl slowhttptest:slowhttptest varnishtest:varnish \
        redis-server:redis-server logrotate:logrotate tinyproxy:tinyproxy valgrind:valgrind perf:linux-perf \
        prometheus:prometheus gcc:gcc node:nodejs npm:npm javac:openjdk-17-jdk-headless; do
        command -v "${tool%%:*}" >/dev/null || echo "${tool##*:}"
    done
    # Debian keeps the server's own tools out of PATH.
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || command -v initdb >/dev/null || echo postgresql
}

# The SDKs for Node, beside the tests that run README's example and agents with them.
sdk_of_node() {
    cd "$(dirname "$0")/e2e/node"
    [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
}

packages=$(missing)
if [ -z "$packages" ]; then
    sdk_of_node && exit 0
    packages="openai(npm)"
elif [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing for the tests:" $packages
    # Debian starts a server when it installs one. The tests start their own; none may be left on port 80.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    apt-get update -qq || true
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null || true
    packages=$(missing)
    [ -z "$packages" ] && sdk_of_node && exit 0
fi

echo "Missing for some tests (apt-get install as root brings them):" $packages >&2
[ "${CI:-}" != true ]
