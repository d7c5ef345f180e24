// Plans that are kept: made once for a key, whole, bounded, from any thread.
#include "cuda/runtime/plan_cache.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace halo {
namespace {

struct Key {
  int hashed, whole;
  bool operator==(const Key&) const = default;
};
struct Hash {
  std::size_t operator()(const Key& key) const { return static_cast<std::size_t>(key.hashed); }
};
using Plans = cuda::PlanCache<Key, int, Hash>;

TEST(PlanCache, MakesAPlanOnceForAKeyAsAWhole) {
  Plans plans;
  int made = 0;
  const auto make = [&](const Key& key) { return ++made, key.whole; };
  for (int round = 0; round < 3; ++round) {
    for (int whole = 0; whole < 5; ++whole) EXPECT_EQ(*plans.get({7, whole}, make), whole);  // one hash
  }
  EXPECT_EQ(made, 5);
}

TEST(PlanCache, IsBoundedAndDropsNoPlanInUse) {
  Plans plans;
  int made = 0;
  const auto make = [&](const Key& key) { return ++made, key.hashed; };
  const int most = static_cast<int>(Plans::kMost);
  const auto first = plans.get({0, 0}, make);
  const std::weak_ptr<const int> second = plans.get({1, 0}, make);
  for (int i = 2; i < most; ++i) plans.get({i, 0}, make);
  EXPECT_EQ(plans.get({0, 0}, make), first);
  EXPECT_FALSE(second.expired());
  plans.get({most, 0}, make);  // one too many
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(*first, 0);
  EXPECT_NE(plans.get({0, 0}, make), first);
  EXPECT_EQ(made, most + 2);
}

TEST(PlanCache, KeepsNothingWhereMakingThrows) {
  Plans plans;
  EXPECT_THROW(plans.get({1, 1}, [](const Key&) -> int { throw std::runtime_error("no plan"); }), std::runtime_error);
  EXPECT_EQ(*plans.get({1, 1}, [](const Key&) { return 5; }), 5);
}

TEST(PlanCache, KeepsNoPlanThatIsDenied) {
  Plans plans;
  int made = 0;
  const auto make = [&](const Key& key) { return ++made, key.whole; };
  const auto keep = [](const int& plan) { return plan > 0; };
  for (int round = 0; round < 3; ++round) {
    for (int whole = 0; whole < 3; ++whole) EXPECT_EQ(*plans.get({7, whole}, make, keep), whole);
  }
  EXPECT_EQ(made, 5);
  EXPECT_EQ(plans.get({7, 1}, make), plans.get({7, 1}, make, keep));
  EXPECT_EQ(made, 5);
}

TEST(PlanCache, ThreadsGetOnePlan) {
  Plans plans;
  std::atomic<int> wrong = 0;
  std::vector<std::shared_ptr<const int>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const auto plan = plans.get({i, 0}, [](const Key& key) { return 3 * key.hashed; });
        wrong += *plan != 3 * i;
        if (i == 250) got[t] = plan;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const auto& plan : got) EXPECT_EQ(plan, got[0]);
}

}  // namespace
}  // namespace halo
