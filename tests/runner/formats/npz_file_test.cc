#include "runner/formats/npz_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runner/formats/zip_archive.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Version 1 of the format: magic, length of the header, a Python dict, the values.
std::string npy(const std::string& type, const std::string& shape, const std::string& data, bool by_columns = false) {
  const std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + (by_columns ? "True" : "False") + ", 'shape': " + shape + ", }\n";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npz(const std::string& array) {
  std::string file;
  const ByteSink sink = [&](const void* data, size_t bytes) -> Status {
    file.append(static_cast<const char*>(data), bytes);
    return {};
  };
  ZipWriter writer(sink, 0xFFFFFFFFU);
  EXPECT_TRUE(writer.add("mu.npy", array.data(), array.size()).ok());
  EXPECT_TRUE(writer.finish().ok());
  return file;
}

std::string refusal(const std::string& array) {
  const auto read = read_npz_array(npz(array), "mu", "stats.npz");
  EXPECT_FALSE(read.ok());
  return read.ok() ? "" : read.error().message;
}

TEST(NpzFile, reads_arrays_of_both_types) {
  const auto wide = read_npz_array(npz(npy("<f8", "(2, 3)", bytes_of<double>({1, 2, 3, 4, 5, 6}))), "mu", "stats.npz");
  ASSERT_TRUE(wide.ok()) << wide.error().message;
  EXPECT_THAT(wide->shape, ElementsAre(2, 3));
  EXPECT_THAT(wide->values, ElementsAre(1, 2, 3, 4, 5, 6));
  const auto narrow = read_npz_array(npz(npy("<f4", "(2,)", bytes_of<float>({0.5F, -1}))), "mu", "stats.npz");
  ASSERT_TRUE(narrow.ok()) << narrow.error().message;
  EXPECT_THAT(narrow->shape, ElementsAre(2));
  EXPECT_THAT(narrow->values, ElementsAre(0.5, -1));
}

TEST(NpzFile, what_it_does_not_take_is_named) {
  EXPECT_THAT(refusal("text"), HasSubstr("stats.npz: mu: is no NumPy array"));
  EXPECT_THAT(refusal(npy("<i8", "(1,)", bytes_of<int64_t>({1}))),
              HasSubstr("holds '<i8'; expected float64 or float32"));
  EXPECT_THAT(refusal(npy("<f8", "(2, 2)", bytes_of<double>({1, 2, 3, 4}), true)), HasSubstr("column by column"));
  EXPECT_THAT(refusal(npy("<f8", "(3,)", bytes_of<double>({1, 2}))),
              HasSubstr("has 16 bytes of data; its shape needs 24"));
  EXPECT_THAT(refusal(npy("<f8", "(4294967296, 4294967296)", "")),
              HasSubstr("its shape has more elements than are read"));
  EXPECT_THAT(refusal(npy("<f8", "two", "")), HasSubstr("its header says no shape"));
  const auto missing = read_npz_array(npz(npy("<f8", "()", bytes_of<double>({1}))), "sigma", "stats.npz");
  EXPECT_THAT(missing.error().message, HasSubstr("stats.npz has no array sigma; it has mu.npy"));
}

TEST(NpzFile, cut_off_anywhere_or_changed_it_is_refused_or_read) {
  const std::string whole = npy("<f8", "(2,)", bytes_of<double>({1, 2}));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(read_npz_array(npz(whole.substr(0, length)), "mu", "stats.npz").ok()) << length;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char other : {'\0', '9', '\xFF'}) {
      std::string changed = whole;
      changed[i] = other;
      const auto read = read_npz_array(npz(changed), "mu", "stats.npz");
      EXPECT_TRUE(read.ok() || !read.error().message.empty());
    }
  }
}

}  // namespace
}  // namespace lockstep
