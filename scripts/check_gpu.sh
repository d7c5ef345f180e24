#!/usr/bin/env bash
# What needs a GPU: compute-sanitizer's four tools over every op family with the caching allocator off, a stress test of
# streams, threads and full memory, the kernels' tests, field cases, hostile inputs and reference cases, also with the kernels
# of other GPUs, and the bytes that a program has to ship. Leaves its results in docs/verification.md.
# scripts/check_gpu.sh [BUILD, default build] [FOLDER of reference cases, default those of the tests]
source "$(dirname "$0")/setup.sh"
source scripts/record.sh
have_gpu || { echo "check_gpu.sh: no GPU answers"; exit 1; }
bin=${1:-build}/bin cases=${2:-tests/conformance/cases}
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
tests() {  # tests PROGRAM FILTER: in several processes
  local failed=0 pids=()
  for i in $(seq 0 $((processes - 1))); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i timeout 120 "$bin/$1" --gtest_filter="$2" >"build-$1-$i.log" 2>&1 & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  # What failed, and what never ended.
  [ $failed -eq 0 ] || grep -hE -B 20 '^\[  FAILED' build-"$1"-*.log | head -n 80
  [ $failed -eq 0 ] || tail -qn 1 build-"$1"-*.log | grep RUN || true
  passed build-"$1"-*.log
  [ $failed -eq 0 ] && rm -f build-"$1"-*.log
  return $failed
}
stress() { processes=1 tests stress_test '*'; }  # fills the memory, so alone
reference() { "$bin/halo_conformance" "$cases" --device cuda "$@" | grep -vE '^PASS'; }
portable() { HALO_CUDA_ARCH=80 reference; }
checked() { HALO_CHECK=1 reference; }
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
run_step "stress (streams, threads, full memory)" stress
run_step "runtime, fused and memory-bound kernels" tests cuda_test '*'
run_step "convolution kernels" tests cuda_conv_test '*'
run_step "matrix products" tests cuda_matmul_test '*'
run_step "long convolution" tests cuda_long_conv_test '*'
run_step "half types" tests ops_test '*Gpu*:*gpu*'
run_step "launches, convolution of half types" tests cuda_launch_test '*'
run_step "field cases" tests field_test '*/Gpu:FieldIndexWidth*:FieldDevices*'
run_step "hostile inputs" tests hostile_test '*gpu'
run_step "reference cases, float32" reference
run_step "reference cases, float64" reference --dtype f64
run_step "reference cases, TF32" reference --precision tf32
run_step "reference cases with HALO_CHECK=1" checked
run_step "reference cases, kernels of compute capability 8.0" portable
run_step "bytes to ship for AlexNet (needed < 60 MB)" bytes_to_ship
end_record
