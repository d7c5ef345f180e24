#include <halo/io/npy.h>

#include <cstring>

#include "io_testing.h"
#include "tests/testing.h"

namespace halo::testing {
namespace {

class NpyTest : public FolderTest {
 protected:
  std::string file(const std::string& header, const std::string& data, int version = 1) const {
    return write("case.npy", std::string("\x93NUMPY", 6) + static_cast<char>(version) + '\0' +
                                 little_endian(header.size(), version == 1 ? 2 : 4) + header + data);
  }
  static std::string floats(const std::vector<float>& values, bool swapped = false) {
    std::string bytes;
    for (float value : values) {
      std::string one(4, '\0');
      std::memcpy(one.data(), &value, 4);
      bytes += swapped ? std::string(one.rbegin(), one.rend()) : one;
    }
    return bytes;
  }
  void expect_refused(const std::string& path, const std::string& reason) const {
    const std::string text = message_of<FileError>([&] { load_npy(path); });
    EXPECT_TRUE(text.starts_with(path)) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << "said: " << text << "\nwanted: " << reason;
  }
};

TEST_F(NpyTest, OrderVersionAndByteOrder) {
  const Tensor expected = tensor({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  const std::string c = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  for (int version : {1, 2, 3}) {
    EXPECT_TRUE(same(load_npy(file(c, floats({1, 2, 3, 4, 5, 6}), version)), expected)) << version;
  }
  const std::string fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n";
  EXPECT_TRUE(same(load_npy(file(fortran, floats({1, 4, 2, 5, 3, 6}))), expected));
  const std::string big = "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  EXPECT_TRUE(same(load_npy(file(big, floats({1, 2, 3, 4, 5, 6}, true))), expected));
  EXPECT_FALSE(same(load_npy(file(c, floats({1, 2, 3, 4, 5, 6}, true))), expected));
  const std::string other = "{ \"shape\":(2,3),\"fortran_order\" :False,   \"descr\":\"<f4\"}";
  EXPECT_TRUE(same(load_npy(file(other, floats({1, 2, 3, 4, 5, 6}))), expected));
}

TEST_F(NpyTest, Shapes) {
  const auto load = [&](const std::string& shape, const std::vector<float>& values) {
    return load_npy(file("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}", floats(values)));
  };
  EXPECT_EQ(load("()", {7}).shape(), Shape());
  EXPECT_EQ(load("(3,)", {1, 2, 3}).shape(), Shape({3}));
  EXPECT_EQ(load("(0, 3)", {}).shape(), Shape({0, 3}));
}

TEST_F(NpyTest, Refusals) {
  const std::string tail = ", 'fortran_order': False, 'shape': (1,), }";
  expect_refused(file("{'descr': '|O'" + tail, "12345678"), "descr expected");
  expect_refused(file("{'descr': ''" + tail, "1234"), "descr expected");
  expect_refused(file("{'descr': [('a', '<f4')]" + tail, "1234"), "descr expected a string");
  expect_refused(write("f", std::string("\x93NUMPY\1\0\xF8\xFF", 10)), "header length 65528 expected within the file");
  expect_refused(write("f", std::string("\x93NUMPY\2\0\xF8\xFF", 10)), "expected 2 more bytes");
  expect_refused(write("f", std::string("\x93NUMPX\1\0\1\0 ", 11)), "magic bytes");
  expect_refused(write("f", std::string("\x93NUMPY\4\0\1\0 ", 11)), "version expected 1, 2 or 3, got 4");
  expect_refused(write("f", "\x93NUM"), "at least 10 bytes");
  const auto shape = [&](const std::string& text) {
    return file("{'descr': '<f4', 'fortran_order': False, 'shape': " + text + "}", "1234");
  };
  expect_refused(shape("(1099511627776, 1099511627776)"), "passes 2^63 bytes");
  expect_refused(shape("(1099511627776,)"), "expected 4398046511104 bytes of data, got 4");
  expect_refused(shape("(2,)"), "expected 8 bytes of data, got 4");
  expect_refused(shape("(-1,)"), "shape expected integers");
  expect_refused(shape("(99999999999999999999,)"), "shape expected integers");
  expect_refused(shape("(1)"), "shape expected a tuple");
  expect_refused(shape("[1]"), "shape expected a tuple");
  expect_refused(shape("(1,1,1,1,1,1,1,1,1)"), "at most 8 axes");
  expect_refused(shape("(1,), 'shape': (1,)"), "shape is given twice");
  expect_refused(shape("(1,), 'other': 1"), "got other");
  expect_refused(shape("(1,)} {"), "expected to end after }");
  expect_refused(file("{'descr': '<f4', 'shape': (1,)}", "1234"), "fortran_order is missing");
  expect_refused(file("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "1234"), "fortran_order expected True");
  expect_refused(file("{'descr': '|b1'" + tail, "\2"), "bytes 0 and 1");
  expect_refused(file("", ""), "header expected {");
}

TEST_F(NpyTest, WhatIsSavedLoads) {
  for (DType dtype : {float32, float64, float16, int64, int32, uint8, boolean}) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{0, 3}, Shape{2, 3, 7}}) {
      const Tensor t = randint(0, 2, shape).to(dtype);
      save_npy(path("f"), t);
      EXPECT_TRUE(same(load_npy(path("f")), t)) << t.describe();
    }
  }
  const Tensor t = arange(6).reshape({2, 3}).transpose(0, 1);
  save_npy(path("f"), t);
  EXPECT_TRUE(same(load_npy(path("f")), t));
  const std::string bytes = read(path("f"));
  EXPECT_EQ((bytes.size() - t.nbytes()) % 64, 0u);
  EXPECT_NE(bytes.find("{'descr': '<i8', 'fortran_order': False, 'shape': (3, 2), }"), std::string::npos);
  EXPECT_NE(message_of([&] { save_npy(path("g"), t.to(bfloat16)); }).find("bfloat16"), std::string::npos);
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace halo::testing
