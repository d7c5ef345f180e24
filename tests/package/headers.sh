#!/bin/sh
# headers.sh INCLUDE HEADER...: each public header compiles alone, without a warning.
set -eu
include=$1
shift
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c \
  'echo "#include <halo/{}>" | c++ -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror -I"$0" -x c++ - || { echo "halo/{}"; exit 1; }' "$include"
