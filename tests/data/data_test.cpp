#include <halo/data/fasta.h>
#include <halo/data/images.h>
#include <halo/data/loader.h>
#include <halo/data/transform.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::message_of;
using testing::same;
namespace fs = std::filesystem;

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("halo_data_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  fs::path folder_;
};

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (int v : values) text.push_back(static_cast<char>(v));
  return text;
}

TEST_F(DataTest, IdxReadsItsShapeAndRefusesLies) {
  const auto good = write("good", bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(data::read_idx(good).shape(), Shape({2, 3}));
  const auto bad = [&](std::initializer_list<int> content) {
    const auto path = write("bad", bytes(content));
    return message_of<FileError>([&] { data::read_idx(path); });
  };
  EXPECT_NE(bad({0, 0, 8}).find("magic"), std::string::npos);
  EXPECT_NE(bad({1, 0, 8, 1, 0, 0, 0, 0}).find("two zero bytes"), std::string::npos);
  EXPECT_NE(bad({0, 0, 9, 1, 0, 0, 0, 0}).find("type"), std::string::npos);
  EXPECT_NE(bad({0, 0, 8, 9}).find("axes"), std::string::npos);
  EXPECT_NE(bad({0, 0, 8, 1, 0, 0, 0, 2, 1}).find("got 1"), std::string::npos);
  EXPECT_NE(bad({0, 0, 8, 1, 0, 0, 0, 1, 1, 2}).find("more"), std::string::npos);
  EXPECT_NE(bad({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}).find("2^36"),
            std::string::npos);
  // A header that promises 4 GB must fail on the missing bytes without allocating them first.
  EXPECT_NE(bad({0, 0, 8, 1, 255, 255, 255, 255, 1}).find("elements"), std::string::npos);
  EXPECT_THROW(data::read_idx((folder_ / "absent").string()), FileError);
}

TEST_F(DataTest, IdxPairChecksLabels) {
  const auto images = write("images", bytes({0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7}));
  const auto labels = write("labels", bytes({0, 0, 8, 1, 0, 0, 0, 1, 10}));
  EXPECT_NE(message_of<FileError>([&] { data::read_idx_images(images, labels); }).find("record 0"), std::string::npos);
}

TEST_F(DataTest, CifarRecords) {
  std::string record(3073, '\5');
  const auto path = write("batch", record + record);
  EXPECT_EQ(data::read_cifar10({path}).images.shape(), Shape({2, 3, 32, 32}));
  EXPECT_THROW(data::read_cifar10({write("short", record + "x")}), FileError);
}

TEST_F(DataTest, FastaAnyLineLengthAndCase) {
  const auto path = write("a.fa", ">one two\r\nacgt\r\n\r\nNN\n;comment\n>empty\n>last\nTT");
  const auto records = data::read_fasta(path);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].name, "one two");
  EXPECT_EQ(records[0].sequence, "ACGTNN");
  EXPECT_EQ(records[1].sequence, "");
  EXPECT_EQ(records[2].sequence, "TT");
  EXPECT_NE(message_of<FileError>([&] { data::read_fasta(write("b", "ACGT\n")); }).find("line 1"), std::string::npos);
  EXPECT_NE(message_of<FileError>([&] { data::read_fasta(write("c", ">x\nAC\1T\n")); }).find("line 2"),
            std::string::npos);
  EXPECT_THROW(data::read_fasta(write("d", "")), FileError);
  EXPECT_EQ(data::reverse_complement("AACGTN"), "NACGTT");
}

TEST_F(DataTest, TwoBitRoundTrip) {
  for (const char* text : {"", "A", "ACGTTGCAACG"}) {
    const auto path = (folder_ / "g.2bit").string();
    data::write_two_bit(path, text);
    EXPECT_EQ(data::read_two_bit(path), text);
  }
  EXPECT_THROW(data::write_two_bit((folder_ / "n").string(), "ACN"), ArgumentError);
  EXPECT_THROW(data::read_two_bit(write("t", "HALO2BIT" + bytes({9, 0, 0, 0, 0, 0, 0, 0, 1}))), FileError);
  EXPECT_THROW(data::read_two_bit(write("t", "HALO2BIT" + bytes({0, 0, 0, 0, 0, 0, 0, 255}))), FileError);
}

TEST_F(DataTest, PngRoundTripAndRefusal) {
  const Tensor image = randint(0, 256, {3, 5, 7}, {.dtype = uint8});
  const auto path = (folder_ / "i.png").string();
  data::write_png(path, image);
  EXPECT_TRUE(same(data::read_image(path), image));
  EXPECT_THROW(data::read_image(write("x.png", bytes({0x89, 'P', 'N', 'G', 1, 2, 3}))), FileError);
  EXPECT_THROW(data::read_image(write("x.jpg", bytes({0xFF, 0xD8, 0xFF, 0xE0, 0, 16}))), FileError);
  EXPECT_THROW(data::read_image(write("x", "hello")), FileError);
  fs::create_directories(folder_ / "set" / "b");
  fs::create_directories(folder_ / "set" / "a");
  data::write_png((folder_ / "set" / "b" / "1.png").string(), image);
  const auto set = data::read_image_folder((folder_ / "set").string(), 4, 4);
  EXPECT_EQ(set.class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(set.labels.to_vector<int64_t>(), (std::vector<int64_t>{1}));
}

TEST(Transform, ResizeKeepsConstantsAndAverages) {
  EXPECT_TRUE(same(data::resize(full({1, 1, 3, 5}, 7), 8, 2), full({1, 1, 8, 2}, 7)));
  const Tensor ramp = from_vector<float>({0, 1, 2, 3}, {1, 1, 1, 4});
  EXPECT_TRUE(same(data::resize(ramp, 1, 2), from_vector<float>({0.5, 2.5}, {1, 1, 1, 2})));
  EXPECT_TRUE(same(data::resize(ramp, 1, 4), ramp));
}

TEST(Transform, NormalizeRepeatsGrey) {
  const Tensor grey = full({2, 1, 2, 2}, 255, {.dtype = uint8});
  EXPECT_TRUE(testing::near(
      data::normalize(grey, {0.5f, 0.0f, 1.0f}, {0.5f, 1.0f, 1.0f}).select(0, 1).select(1, 0).select(1, 0),
      tensor({1, 1, 0}), 1e-6));
}

TEST(Transform, AugmentIsRepeatable) {
  const Tensor images = randint(0, 256, {40, 1, 9, 9}, {.dtype = uint8});
  Generator a(3), b(3);
  const Tensor x = data::augment(images, 2, true, a);
  EXPECT_TRUE(same(data::augment(images, 2, true, b), x));
  EXPECT_FALSE(same(x, images));
  EXPECT_TRUE(same(data::augment(images, 0, false, a), images));
  data::augment(images, INT32_MAX, false, a);
  for (int64_t shift : {int64_t{-1}, int64_t{1} << 31, INT64_MAX}) {
    EXPECT_NE(message_of([&] { data::augment(images, shift, false, a); }).find("shift expected"), std::string::npos);
  }
}

TEST(BatchOrder, VisitsEachOnceAndDependsOnSeedAndEpochAlone) {
  data::BatchOrder order(103, 10, 5);
  EXPECT_EQ(order.batches(), 11);
  std::multiset<int64_t> seen;
  for (int64_t i = 0; i < order.batches(); ++i) {
    for (int64_t v : order.batch(2, i)) seen.insert(v);
  }
  EXPECT_EQ(seen.size(), 103u);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 103u);
  data::BatchOrder again(103, 10, 5);
  EXPECT_EQ(again.batch(2, 7), order.batch(2, 7));
  EXPECT_NE(again.batch(3, 7), order.batch(2, 7));
  EXPECT_THROW(data::BatchOrder(5, 2, 0).batch(-1, 0), ArgumentError);
  EXPECT_THROW(data::BatchOrder(5, 2, 0).batch(0, -1), ArgumentError);
  EXPECT_EQ(data::BatchOrder(5, INT64_MAX, 0).batch(0, 0).size(), 5u);
  EXPECT_EQ(data::BatchOrder(INT64_MAX, 2, 0).batches(), int64_t{1} << 62);
  EXPECT_TRUE(same(data::take(arange(5), {4, 0}), from_vector<int64_t>({4, 0}, {2})));
  EXPECT_THROW(data::take(arange(5), {5}), ArgumentError);
}

TEST(Loader, HandsOutInOrderWhateverThreadIsFirst) {
  data::Loader<int64_t> loader(
      [](int64_t step) {
        std::this_thread::sleep_for(std::chrono::milliseconds(step % 3 == 0 ? 3 : 0));
        return 10 * step;
      },
      4, 30, 5);
  for (int64_t step = 4; step < 30; ++step) EXPECT_EQ(loader.next(), 10 * step);
  EXPECT_THROW(loader.next(), ArgumentError);
}

TEST(Loader, RethrowsAtTheBatchThatFailedAndStopsCleanly) {
  const auto make = [](int64_t step) {
    if (step == 2) fail<FileError>("broken image");
    return randint(0, 9, {64}, {.dtype = uint8});
  };
  data::Loader<Tensor> loader(make, 0, 100, 4);
  loader.next();
  loader.next();
  EXPECT_THROW(loader.next(), FileError);
  EXPECT_EQ(loader.next().numel(), 64);
  // Batches under way when the loader goes are waited for: they use what it holds.
  std::atomic<int> made{0};
  {
    data::Loader<int> busy([&](int64_t) { return ++made; }, 0, 50, 3);
  }
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace halo
