#!/usr/bin/env bash
# Make .venv and install exactly what the lock files name, then Velox itself.
# PYTHON: the interpreter to use (3.11 to 3.13). A .venv that is there is brought up to date; `make clean` removes it.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
    echo "Velox needs Python 3.11, 3.12 or 3.13; '$python' is none of them. Set PYTHON=/path/to/python3.11" >&2
    exit 1
fi

# Debian ships the venv module's pip in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "$python can't make a virtual environment. On Debian: apt-get install $package" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
fi

echo "Installing into .venv (about a minute the first time) ..." >&2
[ -x .venv/bin/python ] || "$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check -qq install "$@"; }
pip --require-hashes --only-binary :all: -r requirements.lock
pip --require-hashes --only-binary :all: -r requirements-dev.lock
pip --no-deps --no-build-isolation --editable .
