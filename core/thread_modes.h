// What scope guards have set for a thread, and parallel loops hand on to the threads that run their pieces. Not
// installed.
#pragma once

namespace halo {

/// -1: no guard, the process-wide default holds.
struct ThreadModes {
  int grad = -1;       ///< autograd/grad_mode.h: 0 off, 1 on
  int precision = -1;  ///< core/precision.h: a Precision
};

/// Those of the calling thread.
ThreadModes& thread_modes();

}  // namespace halo
