// The file of measured kernel choices: what is written is read, and what is damaged or from elsewhere is not used.
#include <halo/core/error.h>
#include <halo/cuda/conv/choices.h>

#include <string>

#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

const MeasuredOn kHere{"NVIDIA H200", "13.0", "0123abcd"};

ChoiceFile example() {
  ConvOptions strided;
  strided.stride = {2, 3};
  strided.padding = {1, 0};
  strided.padding_after = {2, 1};
  strided.groups = 2;
  const ConvProblem plain = ConvProblem::conv("test", {3, 5, 17}, {7, 5, 3}, {});
  const ConvProblem other = ConvProblem::conv("test", {2, 6, 19, 23}, {8, 3, 3, 5}, strided);
  return {kHere,
          {{{plain, ConvPass::Forward, DType::Float32, Precision::TF32}, "dense", 0.0123457},
           {{other, ConvPass::BackwardWeight, DType::BFloat16, Precision::Float32}, "small groups", 12.5}}};
}

TEST(Choices, ComeBackFromTheirText) {
  const ChoiceFile file = example(), read = parse_choices(to_text(file), "choices.txt");
  EXPECT_EQ(read.on, file.on);
  ASSERT_EQ(read.choices.size(), file.choices.size());
  for (std::size_t i = 0; i < file.choices.size(); ++i) {
    EXPECT_EQ(read.choices[i].key, file.choices[i].key);
    EXPECT_EQ(read.choices[i].kernel, file.choices[i].kernel);
    EXPECT_NEAR(read.choices[i].ms, file.choices[i].ms, 1e-5 * file.choices[i].ms);
  }
  EXPECT_EQ(to_text(read), to_text(file));
  EXPECT_TRUE(parse_choices(to_text({kHere, {}}), "empty").choices.empty());
}

TEST(Choices, EveryLostOrChangedByteIsAnError) {
  const std::string good = to_text(example());
  for (std::size_t i = 0; i < good.size(); ++i) {
    EXPECT_THROW(parse_choices(good.substr(0, i), "cut"), FileError) << i;
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_THROW(parse_choices(bad, "changed"), FileError) << i;
  }
  EXPECT_THROW(parse_choices(good + "\n", "longer"), FileError);
  EXPECT_THROW(parse_choices(good + good, "twice"), FileError);
  EXPECT_NO_THROW(parse_choices(good, "good"));
}

TEST(Choices, ErrorsNameTheFileAndTheFault) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_choices(text, "my.txt");
    } catch (const FileError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message("{}"), "my.txt: line 1 expected \"halo convolution choices 1\", got \"{}\"");
  const std::string good = to_text(example());
  EXPECT_EQ(message(good.substr(0, good.size() / 2)),
            "my.txt: the file is cut off or was changed (its checksum does not fit); measure again");
}

TEST(Choices, HoldOnlyWhereTheyWereMeasured) {
  EXPECT_EQ(why_ignored(kHere, kHere, "my.txt"), "");
  EXPECT_EQ(why_ignored({"NVIDIA A100", "13.0", "0123abcd"}, kHere, "my.txt"),
            "my.txt: ignored, since it was measured with GPU NVIDIA A100 and this is NVIDIA H200");
  EXPECT_EQ(why_ignored({"NVIDIA H200", "12.8", "0123abcd"}, kHere, "my.txt"),
            "my.txt: ignored, since it was measured with driver 12.8 and this is 13.0");
  EXPECT_EQ(why_ignored({"NVIDIA H200", "13.0", "ff"}, kHere, "my.txt"),
            "my.txt: ignored, since it was measured with build ff and this is 0123abcd");
}

}  // namespace
}  // namespace halo::cuda::conv
