#!/usr/bin/env bash
# resume.sh BIN WORK: a training that is killed and resumed must end with the bits of one that was not.
set -euo pipefail
bin=$1 work=$2
rm -rf "$work" && mkdir -p "$work"
train=("$bin/alexnet_train" --device cpu --limit 160 --epochs 2 --batch 16 --width 0.05 --save-every 2)
"${train[@]}" --out "$work/whole" >"$work/whole.log"

"${train[@]}" --out "$work/killed" >"$work/killed.log" &
training=$!
until [ -e "$work/killed/checkpoint.safetensors" ]; do
  kill -0 $training 2>/dev/null || { echo "The training ended before it left a checkpoint"; cat "$work/killed.log"; exit 1; }
  sleep 0.01
done
kill -9 $training 2>/dev/null || true
wait $training 2>/dev/null && echo "(the training had ended before it was killed)"
"${train[@]}" --out "$work/killed" --resume >>"$work/killed.log"

cmp "$work/whole/model.safetensors" "$work/killed/model.safetensors"
"${train[@]}" --out "$work/other" --seed 2 >"$work/other.log"
if cmp -s "$work/whole/model.safetensors" "$work/other/model.safetensors"; then
  echo "Another seed gave the same bits: this test cannot fail"
  exit 1
fi
echo "Killed and resumed: the same bits"
