#!/usr/bin/env bash
# Compiles WORLD from pyworld's source archive: training/build_world.sh OUT.so
set -euo pipefail
out=$(realpath "$1"); folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip download -q --no-deps --no-binary=:all: --no-build-isolation -d "$folder" pyworld==0.3.5 || exit 1
tar xzf "$folder"/pyworld-*.tar.gz -C "$folder"
cd "$folder"/pyworld-*/lib/World/src
g++ -O3 -fPIC -shared -static-libstdc++ -static-libgcc -I. -o "$out" \
  cheaptrick.cpp common.cpp d4c.cpp dio.cpp fft.cpp matlabfunctions.cpp stonemask.cpp synthesis.cpp
