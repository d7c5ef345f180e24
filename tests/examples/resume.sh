#!/usr/bin/env bash
# resume.sh BIN WORK PROGRAM ARGUMENTS...: a training that is killed and resumed must end with the bits of one that was not.
set -euo pipefail
bin=$1 work=$2 program=$3
shift 3
rm -rf "$work" && mkdir -p "$work"
train=("$bin/$program" --device cpu "$@")
"${train[@]}" --out "$work/whole" >"$work/whole.log"

"${train[@]}" --out "$work/killed" >"$work/killed.log" &
training=$!
until [ -e "$work/killed/checkpoint.safetensors" ]; do
  kill -0 $training 2>/dev/null || { echo "The training ended before it left a checkpoint"; cat "$work/killed.log"; exit 1; }
  sleep 0.01
done
kill -9 $training 2>/dev/null || true
wait $training 2>/dev/null && echo "(the training had ended before it was killed)"
"${train[@]}" --out "$work/killed" --resume >"$work/resumed.log"

grep -q "going on from step" "$work/resumed.log" || { echo "The resumed training began anew"; cat "$work/resumed.log"; exit 1; }
cmp "$work/whole/model.safetensors" "$work/killed/model.safetensors"
cmp "$work/whole/metrics.jsonl" "$work/killed/metrics.jsonl"
"${train[@]}" --out "$work/other" --seed 2 >"$work/other.log"
if cmp -s "$work/whole/model.safetensors" "$work/other/model.safetensors"; then
  echo "Another seed gave the same bits: this test cannot fail"
  exit 1
fi
# What belongs to another training is not gone on with.
if "${train[@]}" --out "$work/killed" --resume --seed 2 >"$work/refused.log" 2>&1; then
  echo "A checkpoint of another seed was taken"
  exit 1
fi
grep -q "expected the seed of this training, 2, found 1" "$work/refused.log"
echo "Killed and resumed: the same bits"
