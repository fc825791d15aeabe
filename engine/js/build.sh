#!/bin/sh
# Compiles the engine to burn_engine.wasm with emscripten: sh build.sh [FOLDER], by default here.
# The build itself lies in FOLDER/build, or in a temporary folder. Versions of emscripten give
# different bytes; the module here is that of 3.1.6 (Debian 12).
set -e
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 0 ]; then
    to=$1
    work=$1/build
else
    to=$here
    work=$(mktemp -d)
    trap 'rm -r "$work"' EXIT
fi
# Debian's emscripten runs JavaScript packages of Debian's, which other builds of node do not find.
export NODE_PATH="${NODE_PATH:-/usr/share/nodejs}"
emcmake cmake -S "$here/.." -B "$work" -DBURN_ENGINE_TESTS=ON -Wno-dev
cmake --build "$work" --target burn_engine_wasm
cp "$work/burn_engine.wasm" "$to"
chmod 644 "$to/burn_engine.wasm"
