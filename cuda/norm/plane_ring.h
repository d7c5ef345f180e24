// Norms of rows of planes that are read once: how a cluster's blocks march through rows whose pieces arrive in a ring
// of slots in shared memory.
#pragma once

#include <halo/core/host_device.h>
#include <halo/ops/norm.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../device/fast_divide.h"
#include "../device/packs.cuh"
#include "../runtime/traits.h"

namespace halo::cuda {

/// A row is cut into pieces, as many of each of its planes; the blocks of a cluster share them. A piece belongs to a
/// warp, which sums over it when it has arrived and writes its results once the sums of the whole row are known. Of
/// many rows of which several fit into a multiprocessor's memory each has a block of its own: blocks that memory serves
/// sooner take over from others. Else clusters march through the rows.
struct RingPlan {
  static constexpr int kMostParts = 8, kMostWarps = 12;
  static constexpr int kWarpsAtOnce = 28;     ///< of a multiprocessor, which their registers allow
  static constexpr int kLine = 128;           ///< bytes that memory is read by
  static constexpr int64_t kReserved = 1024;  ///< bytes of shared memory that the system takes for a block
  static constexpr int64_t kPieceBytes = 6400, kPieceElements = 1600;  ///< of an operand, at most; of one alone

  int64_t rows = 0, length = 0, positions = 0;
  FastDivide by_groups{}, by_pieces{};      ///< those of a plane
  int planes = 1;                           ///< of a row
  int each = 1, piece = 0, pieces = 1;      ///< pieces of a plane; elements of one, whole packs; pieces of a row
  int parts = 1, warps = 1;                 ///< blocks of a cluster; warps of a block that have pieces
  int slots = 0, slot_bytes = 0, sums = 0;  ///< of a block's ring; sums of a piece, in float64
  int lead = 0;                             ///< elements of a granule before what is written
  unsigned clusters = 1;

  /// For rows of T of `operands` tensors, of whose pieces `sums` sums are taken; nothing where rows are too short to be
  /// worth it, too few for the GPU, or longer than shared memory.
  template <class T>
  static std::optional<RingPlan> of(const RowNormProblem& p, int operands, int sums, const DeviceTraits& traits) {
    constexpr int64_t kShortPlane = 64, kShortRow = 12 << 10, kLongRow = int64_t{1} << 20, kFewBlocks = 96,
                      kLongPart = 32 << 10;
    constexpr int64_t kBytes = sizeof(T);
    if (!traits.is_hopper() || p.positions < kShortPlane || p.length() > kLongRow || p.length() * kBytes < kShortRow ||
        p.rows > INT32_MAX) {
      return std::nullopt;
    }
    RingPlan plan{.rows = p.rows, .length = p.length(), .positions = p.positions, .sums = sums};
    plan.planes = static_cast<int>(p.channels_per_row);
    plan.by_groups = FastDivide(static_cast<uint32_t>(p.groups));
    const auto room = static_cast<int64_t>(traits.block_memory) - kReserved;
    if (plan.cut<T>(kPieceBytes, operands) && plan.give_rows_blocks(operands, room, traits.multiprocessors))
      return plan;
    const int64_t most = operands == 1 ? std::min(kPieceBytes, kPieceElements * kBytes) : kPieceBytes;
    if (!plan.cut<T>(most, operands)) return std::nullopt;
    double least = 0;
    for (int parts = 1; parts <= std::min(kMostParts, plan.pieces); parts *= 2) {
      // While a row's results are written, a quarter of the next one arrives.
      const int64_t own = (plan.pieces + parts - 1) / parts, least_slots = own + std::max<int64_t>(2, own / 4);
      const int side_by_side = plan.memory(least_slots) <= room / 2 ? 2 : 1;
      const int64_t at_once = traits.multiprocessors * side_by_side / parts;
      // Time, in rows that a multiprocessor has alone: the last march may have rows for some clusters only.
      const double time = static_cast<double>((p.rows + at_once - 1) / at_once * side_by_side) / parts;
      // Of equals with one operand the one with more parts, if those are long: at any time its rows lie closer
      // together.
      const bool close = operands == 1 && p.length() * kBytes >= parts * kLongPart;
      if (plan.memory(least_slots) > room || (least > 0 && time > (close ? 1.1 : 0.9) * least)) continue;
      least = time;
      plan.parts = parts;
      plan.slots = static_cast<int>(std::min((room / side_by_side - plan.memory(0)) / plan.memory_of_slot(), 4 * own));
      const int64_t turns = (own + kMostWarps - 1) / kMostWarps;
      plan.warps = static_cast<int>((own + turns - 1) / turns);
      plan.clusters = static_cast<unsigned>(std::min(at_once, p.rows));
    }
    if (least == 0 || p.rows * plan.parts < kFewBlocks) return std::nullopt;
    return plan;
  }
  /// Bytes of a block's shared memory with so many slots.
  int64_t memory_of_slot() const { return slot_bytes + 2 * int64_t{sizeof(uint64_t)}; }
  int64_t memory(int64_t slots_of) const {
    return slots_of * memory_of_slot() + 2 * (int64_t{pieces} * sums + 1) * int64_t{sizeof(double)};
  }
  unsigned threads() const { return static_cast<unsigned>(warps + 1) * 32; }
  /// The first piece of block `part` of a cluster.
  HALO_HOST_DEVICE int first(int part) const { return pieces * part / parts; }

 private:
  /// Pieces of at most so many bytes of an operand. False where planes are too short for them.
  template <class T>
  bool cut(int64_t most, int operands) {
    constexpr int64_t kBytes = sizeof(T);
    each = static_cast<int>((positions * kBytes + most - 1) / most);
    piece = static_cast<int>((positions / each + kWide<T>) / kWide<T> * kWide<T>);
    pieces = planes * each;
    by_pieces = FastDivide(static_cast<uint32_t>(each));
    // A piece begins anywhere within a line and ends anywhere within a granule.
    const int64_t bytes = kBytes * (piece + 2 * kWide<T>);
    slot_bytes = operands * static_cast<int>((bytes + 2 * kLine - 1) / kLine * kLine);
    return positions >= (each - 1) * int64_t{piece} + 2 * kWide<T>;
  }
  /// A block a row, if a few sets of blocks are not all there are; and if one of them reads while others write, which
  /// of two operands takes more blocks.
  bool give_rows_blocks(int operands, int64_t room, int64_t multiprocessors) {
    constexpr int64_t kSets = 4, kMostPieces = 64;
    const int64_t side_by_side = (room + kReserved) / (memory(pieces) + kReserved);
    if (side_by_side <= operands || rows < kSets * side_by_side * multiprocessors || pieces > kMostPieces) return false;
    const int64_t most = std::clamp<int64_t>(kWarpsAtOnce / side_by_side - 1, 2, kMostWarps);
    const int64_t turns = (pieces + most - 1) / most;
    warps = static_cast<int>((pieces + turns - 1) / turns);
    slots = pieces;
    clusters = static_cast<unsigned>(rows);
    return true;
  }
};

}  // namespace halo::cuda
