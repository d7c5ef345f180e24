// The reuse policy of GPU memory, with a source that only counts.
#include <halo/cuda/runtime/block_cache.h>

#include <map>
#include <memory>

#include <gtest/gtest.h>

namespace halo::cuda {
namespace {

/// Segments are addresses that nobody touches; fences pass when the test says so.
struct FakeSource {
  struct Fence {
    const bool* open;
    bool passed() const { return *open; }
  };

  void* reserve(std::size_t bytes) {
    if (used + bytes > capacity) return nullptr;
    used += bytes;
    next += 1 << 30;
    auto* segment = reinterpret_cast<void*>(next);
    segments[segment] = bytes;
    return segment;
  }
  void release(void* segment) {
    used -= segments.at(segment);
    segments.erase(segment);
  }
  std::vector<Fence> fences(void*) { return fenced ? std::vector<Fence>{{&open}} : std::vector<Fence>{}; }

  std::size_t capacity = std::size_t{1} << 40, used = 0;
  uintptr_t next = 1 << 30;
  std::map<void*, std::size_t> segments;
  bool fenced = false, open = true;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct BlockCacheTest : ::testing::Test {
  FakeSource source;
  BlockCache<FakeSource> cache{source};
  void* const stream_a = nullptr;
  void* const stream_b = reinterpret_cast<void*>(8);
};

TEST_F(BlockCacheTest, ReturnsTheSameBlockToTheSameStream) {
  void* first = cache.allocate(1000, stream_a);
  cache.deallocate(first);
  EXPECT_EQ(cache.allocate(900, stream_a), first);
  EXPECT_EQ(source.segments.size(), 1u);
}

TEST_F(BlockCacheTest, KeepsStreamsApart) {
  void* first = cache.allocate(1000, stream_a);
  cache.deallocate(first);
  EXPECT_NE(cache.allocate(1000, stream_b), first);
}

TEST_F(BlockCacheTest, SmallBlocksShareASegmentWithoutOverlap) {
  std::vector<std::pair<uintptr_t, std::size_t>> blocks;
  for (std::size_t bytes = 1; bytes < 20000; bytes = bytes * 3 + 1) {
    const auto address = reinterpret_cast<uintptr_t>(cache.allocate(bytes, stream_a));
    EXPECT_EQ(address % 256, 0u);
    for (const auto& [other, size] : blocks) EXPECT_TRUE(address + bytes <= other || other + size <= address);
    blocks.emplace_back(address, bytes);
  }
  EXPECT_EQ(source.segments.size(), 1u);
}

TEST_F(BlockCacheTest, FreeNeighboursGrowTogether) {
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(cache.allocate(512 * 1024, stream_a));
  EXPECT_EQ(source.segments.size(), 1u);  // 2 MiB, full
  for (int i : {2, 0, 3, 1}) cache.deallocate(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(cache.handed_out_bytes(), 0);
  EXPECT_NE(cache.allocate(kMiB, stream_a), nullptr);
  EXPECT_NE(cache.allocate(kMiB, stream_a), nullptr);
  EXPECT_EQ(source.segments.size(), 1u);
}

TEST_F(BlockCacheTest, LargeBlocksAreSplitAndJoined) {
  void* all = cache.allocate(100 * kMiB, stream_a);
  cache.deallocate(all);
  void* first = cache.allocate(30 * kMiB, stream_a);
  void* second = cache.allocate(70 * kMiB, stream_a);
  EXPECT_EQ(first, all);
  EXPECT_EQ(static_cast<char*>(second) - static_cast<char*>(first), static_cast<std::ptrdiff_t>(30 * kMiB));
  EXPECT_EQ(cache.reserved_bytes(), static_cast<int64_t>(100 * kMiB));
  cache.deallocate(first);
  cache.deallocate(second);
  EXPECT_EQ(cache.allocate(100 * kMiB, stream_a), all);
}

TEST_F(BlockCacheTest, TheSmallestBlockThatFitsIsTaken) {
  void* large = cache.allocate(64 * kMiB, stream_a);
  void* medium = cache.allocate(40 * kMiB, stream_a);
  cache.deallocate(large);
  cache.deallocate(medium);
  EXPECT_EQ(cache.allocate(39 * kMiB, stream_a), medium);
}

TEST_F(BlockCacheTest, FencedBlocksWait) {
  void* first = cache.allocate(1000, stream_a);
  source.fenced = true;
  source.open = false;
  cache.deallocate(first);
  EXPECT_NE(cache.allocate(1000, stream_a), first);
  source.open = true;
  EXPECT_EQ(cache.allocate(1000, stream_a), first);
}

TEST_F(BlockCacheTest, ReleaseGivesBackWhatIsFreeAndNotHeld) {
  void* kept = cache.allocate(30 * kMiB, stream_a);
  void* freed = cache.allocate(50 * kMiB, stream_a);
  void* held = cache.allocate(70 * kMiB, stream_b);
  cache.deallocate(freed);
  cache.hold(stream_b);
  cache.deallocate(held);
  cache.release();
  EXPECT_EQ(cache.reserved_bytes(), static_cast<int64_t>(100 * kMiB));
  cache.let_go(stream_b);
  cache.release();
  EXPECT_EQ(cache.reserved_bytes(), static_cast<int64_t>(30 * kMiB));
  cache.deallocate(kept);
  cache.release();
  EXPECT_EQ(cache.reserved_bytes(), 0);
  EXPECT_TRUE(source.segments.empty());
}

TEST_F(BlockCacheTest, NoRoomGivesNullAndLosesNothing) {
  source.capacity = 64 * kMiB;
  void* first = cache.allocate(40 * kMiB, stream_a);
  EXPECT_EQ(cache.allocate(40 * kMiB, stream_a), nullptr);
  cache.deallocate(first);
  EXPECT_EQ(cache.allocate(40 * kMiB, stream_a), first);
}

TEST_F(BlockCacheTest, TakesTheExactSizeWhereASegmentDoesNotFit) {
  source.capacity = 3 * kMiB;
  EXPECT_NE(cache.allocate(2 * kMiB, stream_a), nullptr);  // a medium segment would take 20 MiB
}

/// A long random history against a plain record of what is in use.
TEST_F(BlockCacheTest, BlocksInUseNeverOverlap) {
  std::map<uintptr_t, std::size_t> in_use;
  uint64_t random = 12345;
  const auto draw = [&](uint64_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % below;
  };
  for (int step = 0; step < 20000; ++step) {
    if (in_use.size() < 40 || draw(2) == 0) {
      const std::size_t bytes = 1 + draw(std::size_t{1} << (1 + draw(25)));
      const auto address = reinterpret_cast<uintptr_t>(cache.allocate(bytes, draw(2) == 0 ? stream_a : stream_b));
      const auto after = in_use.lower_bound(address);
      const bool clear_above = after == in_use.end() || address + bytes <= after->first;
      const bool clear_below = after == in_use.begin() || std::prev(after)->first + std::prev(after)->second <= address;
      ASSERT_TRUE(clear_above && clear_below) << "step " << step;
      in_use[address] = bytes;
    } else {
      const auto victim = std::next(in_use.begin(), static_cast<std::ptrdiff_t>(draw(in_use.size())));
      cache.deallocate(reinterpret_cast<void*>(victim->first));
      in_use.erase(victim);
    }
  }
  for (const auto& [address, bytes] : in_use) cache.deallocate(reinterpret_cast<void*>(address));
  EXPECT_EQ(cache.handed_out_bytes(), 0);
  cache.release();
  EXPECT_TRUE(source.segments.empty());
}

}  // namespace
}  // namespace halo::cuda
