#!/usr/bin/env bash
# What takes too long for every push: undefined behaviour and data races under all tests, line coverage, an hour of fuzzing,
# clang-tidy's analyzer across functions, documentation. Leaves its results in docs/verification.md. scripts/check.sh STEP... runs
# these steps alone and leaves no record.
source "$(dirname "$0")/setup.sh"
source scripts/record.sh
need "${build_packages[@]}" libgtest-dev clang gcovr qemu-user
hour=${FUZZ_SECONDS:-3600}

tests_of() {  # tests_of PRESET: builds it and runs its tests
  cmake --preset "$1" >/dev/null && cmake --build "build-$1" >"build-$1.log" || { tail -n 40 "build-$1.log"; return 1; }
  ctest --test-dir "build-$1" -j "$(nproc)" -LE slow --output-on-failure >"build-$1.log" || { tail -n 80 "build-$1.log"; return 1; }
  grep -E '[0-9]+% tests passed' "build-$1.log"
}
ubsan() { UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 tests_of ubsan; }
tsan() { TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 tests_of tsan; }
coverage() {
  tests_of coverage &&
    gcovr --root . --filter '(core|ops|autograd|io)/' --exclude-throw-branches build-coverage --txt build-coverage/lines.txt \
      --fail-under-line 90 --print-summary | grep -E '^lines'
}
fuzzing() { scripts/fuzz.sh $((hour * $(nproc) / $(ls tests/fuzz/corpus | wc -l))) | tr '\n' ';'; }
configure_static() {
  cmake -S . -B build-static -G Ninja -DBUILD_SHARED_LIBS=OFF -DHALO_CUDA=OFF -DHALO_BUILD_EXAMPLES=OFF -DHALO_BUILD_BENCH=OFF >/dev/null
}
static_library() {  # linked into somebody else's program, without whole-archive
  configure_static && cmake --build build-static --target halo >build-static.log &&
    ctest --test-dir build-static -R '^consumer$' --output-on-failure | grep -E '[0-9]+% tests passed'
}
header() {  # what including everything costs who includes it
  local seconds TIMEFORMAT=%U
  configure_static &&
    seconds=$( { time echo '#include <halo/halo.h>' | c++ -std=c++20 -fsyntax-only -Ibuild-static/include -x c++ -; } 2>&1) &&
    echo "halo.h: $seconds s" && awk "BEGIN {exit !($seconds < 2)}"
}
analysis() { configure_static && scripts/tidy.sh build-static && echo "no finding"; }
documentation() { scripts/check_docs.sh; }

whole=0
[ $# -gt 0 ] || { whole=1; set -- ubsan tsan coverage static_library header analysis fuzzing documentation; }
begin_record "CPU checks (scripts/check.sh)" "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | xargs), $(nproc) cores, $(c++ --version | head -n 1)"
for step in "$@"; do run_step "$step" "$step"; done
[ $whole -eq 0 ] || end_record
exit "$record_status"
