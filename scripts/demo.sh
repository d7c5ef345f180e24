#!/usr/bin/env bash
# Installs what is missing, builds Halo, and trains three models on data that comes with it: an image classifier, a model of
# DNA, and associative recall. Uses a GPU where one answers. Fails where a model misses its threshold.
source "$(dirname "$0")/setup.sh"
need "${build_packages[@]}"

have_cuda() { have_gpu && have_nvcc; }
cuda=$(on_if have_cuda)
echo "Building Halo (CUDA $cuda) ..."
cmake -S . -B build-demo -G Ninja -DHALO_CUDA="$cuda" -DCMAKE_CUDA_ARCHITECTURES=native -DHALO_COMPRESS=OFF \
  -DHALO_BUILD_TESTS=OFF -DHALO_BUILD_BENCH=OFF >build-demo.log 2>&1 &&
  cmake --build build-demo >>build-demo.log 2>&1 || { tail -n 40 build-demo.log; exit 1; }
rm -f build-demo.log

start=$SECONDS status=0
step() { echo; "$@" || { status=1; echo "FAILED: $*"; }; }
step build-demo/bin/alexnet_train --out runs/alexnet --at-least 0.82
step build-demo/bin/recall --out runs/recall --at-least 0.95
step build-demo/bin/dna_train --out runs/dna --require-baseline 1
echo
echo "Trained in $((SECONDS - start)) s. Everything is in runs/: models, metrics.jsonl, loss.png, filters.png."
if [ $status -eq 0 ]; then
  echo "Try:  build-demo/bin/dna_use runs/dna/model.safetensors continue ACGTTGCAACGT --bases 40"
fi
exit $status
