#!/usr/bin/env bash
# shipped_bytes.sh LIMIT PROGRAM ARGUMENTS...: runs a program and adds up the program and all libraries that it opened, at
# start or later, but those of the C library and of the GPU's driver, which every machine has. Fails above LIMIT bytes.
#
# AlexNet's inference on a GPU:  scripts/shipped_bytes.sh 60000000 build/bin/alexnet_classify MODEL.safetensors PICTURE.png
set -euo pipefail
limit=$1
shift
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
LD_DEBUG=libs LD_DEBUG_OUTPUT="$log/libraries" "$@" >/dev/null
files=$(sed -n 's/.*calling init: //p' "$log"/libraries.* | sort -u)
total=0
for file in "$1" $files; do
  case $(basename "$file") in
    libc.so* | libm.so* | ld-linux* | libdl.so* | libpthread.so* | librt.so*) kind="the C library" bytes=0 ;;
    libcuda.so* | libnvidia-*) kind="the driver" bytes=0 ;;
    *) kind="" bytes=$(stat -Lc %s "$file") ;;
  esac
  printf '%12d  %s %s\n' "$bytes" "$file" "${kind:+($kind)}"
  total=$((total + bytes))
done
printf '%12d  bytes to ship (limit %d)\n' "$total" "$limit"
[ "$total" -le "$limit" ]
