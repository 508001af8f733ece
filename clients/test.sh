#!/usr/bin/env bash
# Tests the clients that can be tested on this machine: ATTAR=path/to/attar clients/test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

attar=$(command -v "${ATTAR:-attar}") || {
    echo 'error: name the program to test against: ATTAR=path/to/attar clients/test.sh' >&2
    exit 1
}
ATTAR=$(realpath "$attar")
export ATTAR PYTHONDONTWRITEBYTECODE=1
has() { command -v "$1" >/dev/null; }

if has python3 && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo '== Python'
    (cd python && PYTHONPATH=src python3 -W error -m unittest)
    if has mypy; then (cd python && mypy --cache-dir=/dev/null); else echo 'skipped: mypy is missing'; fi
else
    echo 'skipped: Python 3.11 or later is missing'
fi

if has nvim; then
    echo '== Neovim'
    nvim/test.sh
else
    echo 'skipped: Neovim is missing (Debian: apt-get install neovim)'
fi
