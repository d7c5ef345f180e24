// Random numbers that a piece of code drew, taken down, and dealt again when it is run again. Not installed.
#pragma once

#include <halo/core/philox.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace halo {

class Generator;

/// What Generator::reserve answered, in order, whatever the generator.
struct DrawLog {
  struct Draw {
    PhiloxState start;
    uint64_t draws;
  };
  std::vector<Draw> draws;
};

/// While it lives, reservations of this thread are taken down in a log, or answered from one: generators then stay as
/// they are. Scopes nest.
class DrawScope {
 public:
  enum class Mode { Record, Replay };
  DrawScope(DrawLog& log, Mode mode);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

  /// The innermost one of this thread, or null.
  static DrawScope* current();
  /// @throws ArgumentError where a replay is asked for other draws than were taken down.
  PhiloxState reserve(Generator& generator, uint64_t draws);

 private:
  DrawLog& log_;
  Mode mode_;
  std::size_t next_ = 0;  ///< to be dealt
  DrawScope* outer_;
};

}  // namespace halo
