// The cost model of the dense weight gradient, from measurements on an H200.
#pragma once

#include "plan.h"

namespace halo::cuda::conv {

/// Shared-memory cycles of the reads of a few A fragments: each reads 8 rows by 4 positions, one cycle where no two
/// different words share a bank.
int bank_cycles(const DenseWeightGeometry& g, int fragments);

/// Cycles of one stage of a block: the slowest of the multiplying warpgroups, each of the loading warps, shared memory
/// and copies.
double stage_cycles(const DenseWeightGeometry& g, int tile_columns, int tiles, bool split);

}  // namespace halo::cuda::conv
