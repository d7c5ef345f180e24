#!/bin/sh
# Builds halo_bench_conv alone, for Hopper, without the rest of Halo: scripts/build_bench_conv.sh OUTPUT [JOBS]
# Object files stay in OUTPUT.d, so that only what changed is compiled again.
set -eu
output=$1
jobs=${2:-2}
cd "$(dirname "$0")/.."
work=$output.d
mkdir -p "$work/include/halo"
for room in core ops cuda; do ln -sfn "$PWD/$room" "$work/include/halo/$room"; done
cat > "$work/Makefile" <<'MAKE'
NVCC ?= nvcc
FLAGS = -std=c++20 -O3 -lineinfo -Iroom -gencode=arch=compute_90a,code=sm_90a -Xcompiler -Wall,-Wextra -Xptxas -v -MD
SOURCES = core/dtype.cpp core/parallel.cpp core/precision.cpp core/shape.cpp cuda/launch.cpp cuda/runtime/tensor_map.cpp $(filter-out cuda/conv/conv.cpp,$(wildcard cuda/conv/*.cpp cuda/conv/*.cu cuda/conv/*/*.cpp cuda/conv/*/*.cu)) \
  ops/conv_problem.cpp bench/bench_conv.cu bench/conv_data.cu bench/conv_case.cpp
OBJECTS = $(patsubst %,$(WORK)/%.o,$(SOURCES))
$(OUTPUT): $(OBJECTS)
	$(NVCC) -cudart static -gencode=arch=compute_90a,code=sm_90a -o $@ $^
	strip $@
$(WORK)/%.o: %
	@mkdir -p $(dir $@)
	$(NVCC) $(subst room,$(WORK)/include,$(FLAGS)) -DHALO_COMMIT='"$(COMMIT)"' -x cu -c -o $@ $< > $@.log 2>&1 || { cat $@.log; false; }
	@grep -h -E 'warning|C75|[1-9][0-9]* bytes spill' $@.log || true
-include $(OBJECTS:.o=.d)
MAKE
COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
exec nice make -s -j"$jobs" -f "$work/Makefile" WORK="$work" OUTPUT="$output" COMMIT="$COMMIT"
