#!/usr/bin/env bash
# What needs a GPU: compute-sanitizer's four tools over every op family with the caching allocator off, a stress test of
# streams, threads and full memory, the field cases and hostile inputs, and the bytes that a program has to ship. Leaves its
# results in docs/verification.md.
# scripts/check_gpu.sh [BUILD, default build]
source "$(dirname "$0")/setup.sh"
source scripts/record.sh
have_gpu || { echo "check_gpu.sh: no GPU answers"; exit 1; }
bin=${1:-build}/bin
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
processes=$(($(nproc) < 8 ? $(nproc) : 8))

passed() {  # the count of tests that gtest says passed
  echo "$(grep -hoE '\[  PASSED  \] [0-9]+' "$@" | awk '{n += $4} END {print n + 0}') tests passed"
}
sanitizer() {  # sanitizer TOOL: small sizes of every family, several processes at once
  local tool=$1 failed=0 pids=()
  # initcheck looks for reads of what nobody wrote; poison would be a write.
  [ "$tool" != initcheck ] || export HALO_TEST_WITHOUT_POISON=1
  for i in $(seq 0 $((processes - 1))); do
    HALO_CUDA_CACHE=0 GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$bin/hostile_test" --gtest_filter='*RunsAt*_gpu' >"build-$tool-$i.log" 2>&1 & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  unset HALO_TEST_WITHOUT_POISON
  [ $failed -eq 0 ] || grep -hE '=====|FAILED' build-"$tool"-*.log | head -n 40
  passed build-"$tool"-*.log
  [ $failed -eq 0 ] && rm -f build-"$tool"-*.log
  return $failed
}
tests() {  # tests PROGRAM FILTER
  "$bin/$1" --gtest_filter="$2" >"build-$1.log" 2>&1 || { tail -n 60 "build-$1.log"; return 1; }
  passed "build-$1.log"
  rm -f "build-$1.log"
}
bytes_to_ship() {  # for AlexNet's inference: the program and all that it opens
  local run status=0
  run=$(mktemp -d)
  "$bin/alexnet_train" --out "$run" --limit 64 --epochs 1 --width 1 >/dev/null &&
    scripts/shipped_bytes.sh 60000000 "$bin/alexnet_classify" "$run/model.safetensors" "$run/loss.png" || status=1
  rm -rf "$run"
  return $status
}

begin_record "GPU checks (scripts/check_gpu.sh)" "$gpu (name, driver)"
for tool in memcheck racecheck initcheck synccheck; do run_step "$tool" sanitizer $tool; done
run_step "stress (streams, threads, full memory)" tests stress_test '*'
run_step "field cases" tests field_test '*/Gpu:FieldIndexWidth*:FieldDevices*'
run_step "hostile inputs" tests hostile_test '*gpu'
run_step "bytes to ship for AlexNet (needed < 60 MB)" bytes_to_ship
end_record
