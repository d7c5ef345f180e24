#!/usr/bin/env bash
# Trains the examples on a GPU, side by side, and fails where one misses its threshold: an AlexNet-style classifier on the
# whole of Fashion-MNIST, a DNA model on E. coli (below every Markov chain), associative recall of 10, 20 and 40 symbols in
# sequences of 2048, a 3-D autoencoder. Leaves the results in docs/verification.md, models and pictures in runs/.
# scripts/train_on_gpu.sh [BUILD, default build] [FOLDER of Fashion-MNIST, default that of Debian's package]
source "$(dirname "$0")/setup.sh"
source scripts/record.sh
have_gpu || { echo "train_on_gpu.sh: no GPU answers"; exit 1; }
bin=${1:-build}/bin fashion=${2:-/usr/share/datasets/fashion-mnist}
[ $# -ge 2 ] || need dataset-fashion-mnist
mkdir -p runs

names=() pids=() patterns=()
train() {  # train NAME PATTERN COMMAND...: the line of its output that has PATTERN stands for the result
  local name=$1 log=runs/${#names[@]}.log
  names+=("$name") patterns+=("$2")
  shift 2
  echo "$(basename "$1") ${*:2}"
  (SECONDS=0; status=0; "$@" >"$log" 2>&1 || status=$?; echo $SECONDS >>"$log"; exit $status) & pids+=($!)
}

train "Fashion-MNIST, 60,000 images, needed 92 %" "test accuracy" \
  "$bin/alexnet_train" --data "$fashion" --epochs 25 --batch 128 --width 0.5 --lr 1e-3 --at-least 0.92 --out runs/fashion
train "E. coli, needed below every Markov chain" "Hyena  " \
  "$bin/dna_train" --d-model 128 --layers 4 --length 512 --batch 64 --steps 1200 --lr 3e-3 --dropout 0.1 --embed-dropout 0.1 \
  --baseline-order 12 --require-baseline best --out runs/ecoli
train "recall of 10 symbols, needed 99 %" "recalled" \
  "$bin/recall" --vocab 10 --pairs 1024 --steps 400 --at-least 0.99 --out runs/recall10
train "recall of 20 symbols, needed 99 %" "recalled" \
  "$bin/recall" --vocab 20 --pairs 1023 --steps 1300 --lr 2e-3 --at-least 0.99 --out runs/recall20
train "recall of 40 symbols, needed 95 %" "recalled" \
  "$bin/recall" --vocab 40 --pairs 1023 --steps 3500 --lr 2e-3 --d-model 256 --eval-every 300 --until 0.995 --at-least 0.95 \
  --out runs/recall40
train "3-D autoencoder, needed a mean squared error of 0.005" "Mean squared error" \
  "$bin/volume" --steps 1000 --at-most 0.005 --out runs/volume

begin_record "Training on a GPU (scripts/train_on_gpu.sh)" \
  "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1) (name, driver); all at the same time"
for i in "${!names[@]}"; do
  result=passed
  wait "${pids[$i]}" || { result=FAILED; tail -n 20 "runs/$i.log"; }
  add_row "${names[$i]}" $result "$(grep -a "${patterns[$i]}" "runs/$i.log" | tail -n 1)" "$(tail -n 1 "runs/$i.log")"
done
end_record
