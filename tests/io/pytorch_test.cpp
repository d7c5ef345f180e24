#include <halo/io/pytorch.h>

#include <cstring>
#include <map>

#include "io_testing.h"
#include "tests/testing.h"

namespace halo::testing {
namespace {

std::string pickled(const std::string& text) { return "X" + little_endian(text.size(), 4) + text; }
std::string pickled(int64_t value) { return "J" + little_endian(static_cast<uint64_t>(value), 4); }
std::string pickled(const std::vector<int64_t>& values) {
  std::string items;
  for (int64_t value : values) items += pickled(value);
  return "(" + items + "t";
}

/// What PyTorch writes for a tensor.
std::string tensor_pickle(const std::string& type, const std::string& key, int64_t offset,
                          const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" + type + "\n" + pickled(key) +
         pickled("cpu") + pickled(6) + "tQ" + pickled(offset) + pickled(shape) + pickled(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

std::string dict_pickle(const std::string& entries) { return "\x80\x02}(" + entries + "u."; }

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class PytorchTest : public FolderTest {
 protected:
  std::string file(const std::string& pickle, bool large = false) const {
    return write("f.pth", zip({{"archive/data.pkl", pickle},
                               {"archive/data/0", bytes_of<float>({0, 1, 2, 3, 4, 5})},
                               {"archive/data/1", bytes_of<int64_t>({7})},
                               {"archive/version", "3\n"}},
                              large));
  }
  void expect_refused(const std::string& path, const std::string& reason) const {
    const std::string text = message_of<FileError>([&] { load_pytorch(path); });
    EXPECT_TRUE(text.starts_with(path)) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << "said: " << text << "\nwanted: " << reason;
  }
  void expect_tensor_refused(const std::string& tensor, const std::string& reason) const {
    expect_refused(file(dict_pickle(pickled("w") + tensor)), reason);
  }
};

TEST_F(PytorchTest, TensorsViewsAndParameters) {
  const std::string whole = tensor_pickle("FloatStorage", "0", 0, {2, 3}, {3, 1});
  const std::string entries =
      pickled("w") + whole + pickled("view") + tensor_pickle("FloatStorage", "0", 1, {2, 2}, {1, 3}) + pickled("n") +
      tensor_pickle("LongStorage", "1", 0, {}, {}) + pickled("p") + "ctorch._utils\n_rebuild_parameter\n(" + whole +
      "\x88"
      "ccollections\nOrderedDict\n)RtR" +
      pickled("empty") + tensor_pickle("FloatStorage", "0", 0, {0, 3}, {3, 1}) + pickled("epoch") + pickled(3);
  for (bool large : {false, true}) {
    const StateDict state = load_pytorch(file(dict_pickle(entries), large));
    EXPECT_EQ(state.size(), 5u);
    const Tensor w = arange(6, {.dtype = float32}).reshape({2, 3});
    EXPECT_TRUE(same(state.at("w"), w));
    EXPECT_TRUE(same(state.at("p"), w));
    EXPECT_TRUE(same(state.at("view"), tensor({1, 4, 2, 5}).reshape({2, 2})));
    EXPECT_EQ(state.at("n").item(), 7);
    EXPECT_EQ(state.at("empty").shape(), Shape({0, 3}));
  }
}

// A training checkpoint: the weights one level down, memo operations, and objects of classes nobody has here.
TEST_F(PytorchTest, CheckpointsWithStrangeObjects) {
  const std::string weights = "ccollections\nOrderedDict\nq\x05)Rq\x06(" + pickled("model.w") + "q\x07" +
                              tensor_pickle("FloatStorage", "0", 0, {6}, {1}) + "q\x08u}" + pickled("_metadata") +
                              "h\x06sb";
  const std::string strange = "comegaconf.dictconfig\nDictConfig\n)\x81}" + pickled("_content") + "h\x05" + "sb";
  const StateDict state =
      load_pytorch(file(dict_pickle(pickled("state_dict") + weights + pickled("hyper_parameters") + strange +
                                    pickled("call") + "cos\nsystem\n" + pickled("false") + "\x85R")));
  ASSERT_EQ(state.size(), 1u);
  EXPECT_TRUE(same(state.at("model.w"), arange(6, {.dtype = float32})));
}

TEST_F(PytorchTest, TensorsThatDoNotFit) {
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", 0, {7}, {1}), "within the 6 elements of its storage");
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", 6, {1}, {1}), "within the 6 elements");
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", -1, {1}, {1}), "offset");
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", 0, {-1}, {1}), "0 or more");
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", 0, {1, 1}, {1}), "do not fit");
  expect_tensor_refused(tensor_pickle("FloatStorage", "0", 0, std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)),
                        "at most 8 axes");
  expect_tensor_refused(tensor_pickle("FloatStorage", "9", 0, {1}, {1}), "\"archive/data/9\" is missing");
  expect_tensor_refused(tensor_pickle("QInt8Storage", "0", 0, {1}, {1}), "no type for torch.QInt8Storage");
  expect_tensor_refused("ctorch._utils\n_rebuild_tensor_v2\n)R", "not the form");
  expect_tensor_refused(pickled(3), "found none");
  const std::string big = "\x8a\x08" + std::string(7, '\xFF') + "\x7F";
  std::string wraps = tensor_pickle("FloatStorage", "0", 0, {2}, {77});
  wraps.replace(wraps.find(pickled(77)), 5, big);
  expect_tensor_refused(wraps, "within the 6 elements");
  wraps = tensor_pickle("FloatStorage", "0", 0, {3}, {77});
  wraps.replace(wraps.find(pickled(77)), 5, big);
  expect_tensor_refused(wraps, "pass 2^63 elements");
}

TEST_F(PytorchTest, PicklesThatAreBroken) {
  expect_refused(file(""), "ends too early");
  expect_refused(file("\x80\x02}"), "ends too early");
  expect_refused(file("."), "empty stack");
  expect_refused(file("u."), "mark that is not there");
  expect_refused(file("}(Nu."), "a key has no value");
  expect_refused(file("h\x01."), "memo 1 is empty");
  expect_refused(file("X\xFF\xFF\xFF\xFF"
                      "a."),
                 "ends too early");
  expect_refused(file("\xFF"), "operation 255 is not known");
  expect_refused(file("(\x85."), "empty stack");
  expect_refused(file("N."), "found none");
  // A tuple in a tuple in a tuple ..., and a list that holds itself.
  std::string deep = ")";
  for (int i = 0; i < 200'000; ++i) deep += '\x85';
  expect_refused(file(deep + "."), "found none");
  expect_refused(file("]q\1h\1a."), "found none");
}

TEST_F(PytorchTest, ArchivesThatAreBroken) {
  const std::string good =
      zip({{"archive/data.pkl", dict_pickle(pickled("w") + tensor_pickle("ByteStorage", "0", 0, {4}, {1}))},
           {"archive/data/0", "abcd"}});
  EXPECT_EQ(load_pytorch(write("f", good)).size(), 1u);
  std::string damaged = good;
  damaged[damaged.find("abcd")] = 'x';
  expect_refused(write("f", damaged), "checksum");
  expect_refused(write("f", ""), "expected a zip archive");
  expect_refused(write("f", std::string(100'000, 'x')), "expected a zip archive");
  expect_refused(write("f", zip({{"other", ""}})), "no data.pkl");
  expect_refused(write("f", zip({{"a/data.pkl", "N."}}, false, 8)), "compressed");
  expect_refused(write("f", zip({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})), "byteorder expected little");
  // Any cut, and any byte changed, gives the tensors or a FileError.
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x81);
    for (const std::string& bytes : {good.substr(0, i), changed}) {
      try {
        load_pytorch(write("f", bytes));
      } catch (const FileError&) {
      }
    }
  }
}

}  // namespace
}  // namespace halo::testing
