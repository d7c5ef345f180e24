#!/usr/bin/env bash
# Installs what the tests need, builds everything, and runs the tests. Tests that need a GPU skip where none answers.
source "$(dirname "$0")/setup.sh"
need "${build_packages[@]}" libgtest-dev libbenchmark-dev

# For the GPU that is here; where there is none, one target shows that the kernels compile, and nobody ships it.
have_gpu && kernels=(-DCMAKE_CUDA_ARCHITECTURES=native) || kernels=(-DCMAKE_CUDA_ARCHITECTURES=80-real -DHALO_COMPRESS=OFF)
cmake -S . -B build -G Ninja -DHALO_CUDA="$(on_if have_nvcc)" "${kernels[@]}" "$@" >build-configure.log || { cat build-configure.log; exit 1; }
rm -f build-configure.log
start=$SECONDS
cmake --build build
echo "Build: $((SECONDS - start)) s; library: $(stat -Lc %s build/lib/libhalo.so) bytes"
start=$SECONDS
ctest --test-dir build --output-on-failure -j "$(nproc)"
echo "Tests: $((SECONDS - start)) s"
