// Loops over several CPU threads.
#pragma once

#include <cstdint>
#include <functional>

namespace halo {

/// Threads that parallel loops use, this one included; the number of cores at start. Process-wide.
int num_threads();
/// @throws ArgumentError below 1.
void set_num_threads(int threads);

/// Calls `body(begin, end)` for pieces of [0, n) of at least `grain` iterations, on several threads, and returns when
/// all are done; the first exception of a piece is rethrown. Inside a piece, and for a single piece, it runs in place.
/// Where pieces begin depends on n and grain alone, never on the number of threads; pieces have the caller's rounding
/// and subnormal modes. Callable from several threads at once.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace halo
