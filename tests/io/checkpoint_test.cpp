#include <halo/io/checkpoint.h>
#include <halo/io/safetensors.h>

#include "io_testing.h"
#include "tests/testing.h"

namespace halo::testing {
namespace {

class CheckpointTest : public FolderTest {};

TEST_F(CheckpointTest, ComesBackWhole) {
  const Checkpoint saved{.model = {{"a.weight", randn({3, 5})}},
                         .optimizer = {{"state.0.step", full({}, 7, {.dtype = int64})}},
                         .generator = {.seed = UINT64_MAX, .offset = 12345678901234567890u},
                         .step = -3,
                         .metadata = {{"note", "x"}}};
  save_checkpoint(path("c"), saved);
  const Checkpoint back = load_checkpoint(path("c"));
  EXPECT_TRUE(same(back.model.at("a.weight"), saved.model.at("a.weight")));
  EXPECT_TRUE(same(back.optimizer.at("state.0.step"), saved.optimizer.at("state.0.step")));
  EXPECT_EQ(back.generator.seed, saved.generator.seed);
  EXPECT_EQ(back.generator.offset, saved.generator.offset);
  EXPECT_EQ(back.step, -3);
  EXPECT_EQ(back.metadata, saved.metadata);
}

TEST_F(CheckpointTest, OtherFilesAreRefused) {
  save_safetensors(path("plain"), {{"a", tensor({1})}});
  EXPECT_NE(message_of<FileError>([&] { load_checkpoint(path("plain")); }).find("expected a checkpoint"),
            std::string::npos);
  const Metadata numbers{{"halo.checkpoint.step", "1"}, {"halo.checkpoint.seed", "1"}, {"halo.checkpoint.offset", "0"}};
  save_safetensors(path("odd"), {{"a", tensor({1})}}, numbers);
  EXPECT_NE(message_of<FileError>([&] { load_checkpoint(path("odd")); }).find("tensor \"a\""), std::string::npos);
  Metadata broken = numbers;
  broken["halo.checkpoint.seed"] = "1x";
  save_safetensors(path("broken"), {}, broken);
  EXPECT_NE(message_of<FileError>([&] { load_checkpoint(path("broken")); }).find("expected an integer"),
            std::string::npos);
  message_of([&] { save_checkpoint(path("c"), {.metadata = {{"halo.checkpoint.step", "1"}}}); });
}

}  // namespace
}  // namespace halo::testing
