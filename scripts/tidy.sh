#!/usr/bin/env bash
# clang-tidy over the library's C++: scripts/tidy.sh [BUILD, default build] [shallow|deep, default deep]. "shallow" follows the analyzer's
# paths inside a function only, a fifth of the time; CI does that, scripts/check.sh the other.
source "$(dirname "$0")/setup.sh"
need clang-tidy
build=${1:-build} depth=${2:-deep}
analyzer=(-Xclang -analyzer-config -Xclang "mode=$depth")
git ls-files 'core/*.cpp' 'ops/*.cpp' 'autograd/*.cpp' 'nn/*.cpp' 'optim/*.cpp' 'io/*.cpp' 'data/*.cpp' | grep -v cpu/isa_ |
  xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option "${analyzer[@]/#/--extra-arg=}"
