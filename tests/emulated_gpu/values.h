// SPDX-License-Identifier: Apache-2.0
// The arrays of a test case: filled by its seed, so that two runs of a case have the same, and compared afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace kernel_test {

// What the arguments of a kernel are made from.
struct Shape {
  int rows, columns;
  std::uint64_t seed;
  int most_blocks = 4096;  // as in common/device/launch.h
  int order = 0;           // of emulated threads: emulated_gpu::Order
};

class Values {
 public:
  // Arrays are watched (checker/emulated_gpu) if this is for emulated threads.
  Values(const Shape& shape, bool emulated);
  ~Values();
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  const int rows, columns;
  const Shape shape;

  // An array of numbers between -2 and 2, some of them equal and some zero. T is float or __nv_bfloat16.
  template <typename T>
  T* numbers(const char* name, std::size_t count);
  // The same without zeros and negative numbers.
  template <typename T>
  T* positive(const char* name, std::size_t count);
  // Integers of [0, below).
  std::int32_t* integers(const char* name, std::size_t count, int below);
  // An array to be written. What no kernel writes stays as it is: floats are NaN.
  template <typename T>
  T* unset(const char* name, std::size_t count);

  int random(int below);
  float scalar(const char* name, float value);  // remembers a kernel's argument for the references

  struct Array {
    std::string name;
    enum Kind { floats, bfloats, integers, bytes } kind;
    std::size_t count;
    unsigned char* data;
    double operator[](std::size_t i) const;
    double at_begin(std::size_t i) const;      // before the kernels ran
    std::vector<unsigned char> memory, begin;  // `begin`: empty until keep()
    std::size_t element() const;
  };
  const Array& array(std::string_view name) const;
  double scalar(std::string_view name) const;
  const std::deque<Array>& arrays() const { return arrays_; }
  void keep();  // call before the first kernel runs

 private:
  Array& add(const char* name, std::size_t count, Array::Kind kind);

  bool emulated_;
  std::uint64_t state_;
  std::deque<Array> arrays_;
  std::vector<std::pair<std::string, float>> scalars_;
};

// A call of one or several kernels.
struct Case {
  const char* name;
  void (*run)(Values& values);
};
struct Cases {
  const Case* begin;
  std::size_t count;
};

// A number, and a bound of what a computation in float32 can be wrong by, whatever the order of its sums.
struct Approximate {
  double value = 0, error = 0;
};

// The expected values of the arrays whose values depend on the order of a sum; the others must be equal to the last
// bit.
struct Expected {
  std::string name;
  std::vector<Approximate> values;
};
std::vector<Expected> expected(std::string_view name, const Values& values);

}  // namespace kernel_test
