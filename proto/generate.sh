#!/usr/bin/env bash
# Makes tokenfeed/v1/ from the contract, or with --check says whether it is stale.
#
# The generator is old on purpose: generated code refuses any protobuf or grpcio older than its
# generator, and training environments are old. Output of 1.62 still imports under today's releases.
# It does not resolve beside a new protobuf, so it gets an environment of its own that is thrown away.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet grpcio-tools==1.62.2 protobuf==4.25.8 setuptools==75.8.0

out=.
[ "${1:-}" = --check ] && out=$work/out && mkdir -p "$out"
"$work/venv/bin/python" -m grpc_tools.protoc -I proto \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/tokenfeed/v1/*.proto

if [ "${1:-}" = --check ]; then
    for made in "$out"/tokenfeed/v1/*; do
        name=tokenfeed/v1/$(basename "$made")
        cmp "$made" "$name" || { echo "stale: $name. Run: make proto" >&2; exit 1; }
    done
    echo "generated code is fresh"
fi
