#!/usr/bin/env bash
# Fuzzes every file reader for so many seconds: scripts/fuzz.sh [SECONDS, default 10]. Starts from the corpus in the tree and
# from what earlier runs found (build-fuzz/corpus). A fault leaves its input in build-fuzz and fails the script.
source "$(dirname "$0")/setup.sh"
seconds=${1:-10}
need "${build_packages[@]}" clang
cmake --preset fuzz >/dev/null
cmake --build build-fuzz --target fuzzers >build-fuzz/build.log || { cat build-fuzz/build.log; exit 1; }
fuzz() {
  reader=$1 seconds=$2
  mkdir -p "build-fuzz/corpus/$reader"
  "build-fuzz/bin/${reader}_fuzz" "build-fuzz/corpus/$reader" "tests/fuzz/corpus/$reader" -max_total_time="$seconds" -max_len=8192 \
    -timeout=10 -malloc_limit_mb=512 -rss_limit_mb=2048 -artifact_prefix="build-fuzz/$reader-" >"build-fuzz/$reader.log" 2>&1 ||
    { tail -n 40 "build-fuzz/$reader.log"; return 1; }
  echo "$reader: $(grep -oE '^Done [0-9]+ runs' "build-fuzz/$reader.log")"
}
export -f fuzz
ls tests/fuzz/corpus | xargs -P "$(nproc)" -I{} bash -c 'fuzz {} '"$seconds"
