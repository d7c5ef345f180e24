#!/usr/bin/env bash
# Halo's time over PyTorch's on two cores of this machine: bench/cpu_vs_pytorch.py, into bench/results/cpu.json. Installs
# PyTorch into build-torch, for this comparison alone; PYTHON=... names a Python that has it instead. More arguments go to
# the script. Nothing else should be running.
source "$(dirname "$0")/setup.sh"
need "${build_packages[@]}" python3-venv
cmake -S . -B build-cpu -G Ninja -DHALO_CUDA=OFF -DHALO_BUILD_TESTS=OFF -DHALO_BUILD_EXAMPLES=OFF >/dev/null
cmake --build build-cpu --target halo_bench_cpu
if [ -z "${PYTHON:-}" ]; then
  [ -x build-torch/bin/python ] || python3 -m venv build-torch
  PYTHON=build-torch/bin/python
  "$PYTHON" -c 'import torch, numpy' 2>/dev/null || "$PYTHON" -m pip install --quiet torch numpy
fi
cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{for (i = $1; i <= ($2 == "" ? $1 : $2); ++i) print i}' | head -n 2 | paste -sd,)
taskset -c "$cores" "$PYTHON" bench/cpu_vs_pytorch.py build-cpu/bin/halo_bench_cpu --json bench/results/cpu.json \
  --commit "$(git describe --always --dirty)" --compiler "$(c++ --version | head -n 1)" "$@"
