#!/usr/bin/env bash
# Tests the Neovim plugin: ATTAR=path/to/attar clients/nvim/test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

ATTAR=$(realpath "$(command -v "${ATTAR:-attar}")")
ATTAR_TEST_MODEL=$(realpath ../../fixtures/model/tiny-qwen2.gguf)
# A socket's path must be short, which $TMPDIR need not be.
ATTAR_TEST_FOLDER=$(mktemp -d /tmp/attar-nvim.XXXXXX)
export ATTAR ATTAR_TEST_MODEL ATTAR_TEST_FOLDER

ended() {
    if [[ -f $ATTAR_TEST_FOLDER/pid ]]; then
        kill "$(cat "$ATTAR_TEST_FOLDER/pid")" 2>/dev/null || true
    fi
    rm -rf "$ATTAR_TEST_FOLDER"
}
trap ended EXIT

export XDG_CONFIG_HOME=$ATTAR_TEST_FOLDER XDG_DATA_HOME=$ATTAR_TEST_FOLDER \
    XDG_STATE_HOME=$ATTAR_TEST_FOLDER XDG_CACHE_HOME=$ATTAR_TEST_FOLDER
nvim --headless -u NONE -i NONE -n --cmd "set runtimepath^=$PWD" \
    -c 'runtime plugin/attar.lua' -c 'luafile tests/run.lua' </dev/null
