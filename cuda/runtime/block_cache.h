// The reuse policy of GPU memory: which cached block serves a request. Host code without CUDA, so that it is tested
// anywhere.
//
// Memory is reserved from a source in segments; a segment is cut into blocks, and free neighbours grow together again.
// Each stream has free lists of its own: work on one stream runs in order, so a block can be handed out again on the
// stream it came from before the GPU is done with it, without waiting. A block that other streams may still be using
// when it comes back waits aside until the fences they were given have passed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace halo::cuda {

/// `Source` provides
///   void* reserve(std::size_t bytes)          a segment, or null where there is no memory
///   void release(void* segment)
///   std::vector<Fence> fences(void* stream)   one for every other stream that may be using a block of `stream`
///   Fence::passed() const
/// Not thread-safe.
template <class Source>
class BlockCache {
 public:
  using Stream = void*;

  explicit BlockCache(Source& source) : source_(source) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Multiple of the alignment that blocks have.
  static constexpr std::size_t kGranule = 512;
  static constexpr std::size_t kSmallest = std::size_t{1} << 20;        ///< requests up to here share small segments
  static constexpr std::size_t kSmallSegment = std::size_t{2} << 20;    ///< cut into small blocks
  static constexpr std::size_t kMedium = std::size_t{10} << 20;         ///< requests up to here share medium segments
  static constexpr std::size_t kMediumSegment = std::size_t{20} << 20;  ///< larger requests get one of their own size
  static constexpr std::size_t kLargeGranule = std::size_t{2} << 20;

  /// At least `bytes` (> 0) for use on `stream`; null where neither the cache nor the source has them.
  void* allocate(std::size_t bytes, Stream stream) {
    take_back_finished();
    const std::size_t size = round_up(bytes, kGranule);
    const bool small = size <= kSmallest;
    Pool& pool = pools_[{stream, small}];
    Block* block = best_fit(pool, size);
    if (block == nullptr) block = new_segment(size, stream, small);
    if (block == nullptr) return nullptr;
    if (block->bytes - size >= (small ? kGranule : kSmallest)) split(pool, block, size);
    in_use_[block->address] = block;
    handed_out_ += static_cast<int64_t>(block->bytes);
    return block->address;
  }

  /// Takes back what allocate() gave.
  void deallocate(void* address) {
    const auto found = in_use_.find(static_cast<std::byte*>(address));
    if (found == in_use_.end()) return;
    Block* block = found->second;
    in_use_.erase(found);
    handed_out_ -= static_cast<int64_t>(block->bytes);
    auto fences = source_.fences(block->stream);
    if (fences.empty()) {
      make_free(block);
    } else {
      waiting_.emplace_back(block, std::move(fences));
    }
  }

  /// Gives every segment without a block in use back to the source, except those of held streams. The caller has waited
  /// until the GPU is idle.
  void release() {
    take_back_finished();
    for (auto& [key, pool] : pools_) {
      if (!held_.contains(key.first)) release_pool(pool);
    }
  }

  /// Keeps the segments of `stream` whatever release() is asked, until let_go(): a captured graph goes on using blocks
  /// that look free.
  void hold(Stream stream) { held_.insert(stream); }
  void let_go(Stream stream) { held_.erase(stream); }

  int64_t reserved_bytes() const { return reserved_; }
  int64_t handed_out_bytes() const { return handed_out_; }

 private:
  struct Block {
    std::byte* address;
    std::size_t bytes;
    Stream stream;
    bool small;
    bool free = false;
    Block* before = nullptr;  ///< neighbours in the segment
    Block* after = nullptr;
  };
  /// Smallest first, then lowest address: the choice depends on nothing else.
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->bytes, a->address) < std::tie(b->bytes, b->address);
    }
  };
  using Pool = std::set<Block*, BySize>;
  using Fences = decltype(std::declval<Source>().fences(nullptr));

  static std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

  Block* best_fit(Pool& pool, std::size_t size) {
    Block wanted{nullptr, size, nullptr, false};
    const auto found = pool.lower_bound(&wanted);
    if (found == pool.end()) return nullptr;
    Block* block = *found;
    pool.erase(found);
    block->free = false;
    return block;
  }

  Block* new_segment(std::size_t size, Stream stream, bool small) {
    std::size_t bytes = size <= kSmallest ? kSmallSegment : size <= kMedium ? kMediumSegment : size;
    bytes = round_up(bytes, kLargeGranule);
    void* segment = source_.reserve(bytes);
    if (segment == nullptr && bytes > size) {  // no room for more than was asked
      bytes = size;
      segment = source_.reserve(bytes);
    }
    if (segment == nullptr) return nullptr;
    reserved_ += static_cast<int64_t>(bytes);
    return own(Block{static_cast<std::byte*>(segment), bytes, stream, small});
  }

  /// Leaves `size` bytes in `block`; the rest becomes a free block.
  void split(Pool& pool, Block* block, std::size_t size) {
    Block* rest =
        own(Block{block->address + size, block->bytes - size, block->stream, block->small, true, block, block->after});
    if (rest->after != nullptr) rest->after->before = rest;
    block->after = rest;
    block->bytes = size;
    pool.insert(rest);
  }

  void make_free(Block* block) {
    Pool& pool = pools_[{block->stream, block->small}];
    if (Block* before = block->before; before != nullptr && before->free) {
      pool.erase(before);
      block = join(before, block);
    }
    if (Block* after = block->after; after != nullptr && after->free) {
      pool.erase(after);
      block = join(block, after);
    }
    block->free = true;
    pool.insert(block);
  }

  Block* join(Block* first, Block* second) {
    first->bytes += second->bytes;
    first->after = second->after;
    if (first->after != nullptr) first->after->before = first;
    blocks_.erase(second->address);
    return first;
  }

  void take_back_finished() {
    std::erase_if(waiting_, [&](auto& entry) {
      const bool finished = std::ranges::all_of(entry.second, [](const auto& fence) { return fence.passed(); });
      if (finished) make_free(entry.first);
      return finished;
    });
  }

  void release_pool(Pool& pool) {
    std::erase_if(pool, [&](Block* block) {
      if (block->before != nullptr || block->after != nullptr) return false;
      source_.release(block->address);
      reserved_ -= static_cast<int64_t>(block->bytes);
      blocks_.erase(block->address);
      return true;
    });
  }

  Block* own(Block block) {
    auto& owner = blocks_[block.address];
    owner = std::make_unique<Block>(block);
    return owner.get();
  }

  Source& source_;
  std::unordered_map<std::byte*, std::unique_ptr<Block>> blocks_;  // every block, by address
  std::unordered_map<std::byte*, Block*> in_use_;
  std::map<std::pair<Stream, bool>, Pool> pools_;  // free blocks by stream and size class
  std::vector<std::pair<Block*, Fences>> waiting_;
  std::set<Stream> held_;
  int64_t reserved_ = 0, handed_out_ = 0;
};

}  // namespace halo::cuda
