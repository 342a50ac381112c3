// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <cuda_bf16.h>

#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "checker/emulated_gpu/emulated_gpu.h"

namespace kernel_test {

Values::Values(const Shape& shape, bool emulated)
    : rows(shape.rows), columns(shape.columns), shape(shape), emulated_(emulated), state_(shape.seed) {}

Values::~Values() {
  if (emulated_) emulated_gpu::watch_nothing();
}

int Values::random(int below) {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(below));
}

std::size_t Values::Array::element() const { return kind == bytes ? 1 : kind == bfloats ? 2 : 4; }

Values::Array& Values::add(const char* name, std::size_t count, Array::Kind kind) {
  Array& array = arrays_.emplace_back();
  array.name = name;
  array.kind = kind;
  array.count = count;
  array.memory.assign(count * array.element() + 2 * emulated_gpu::kMargin, 0xff);
  array.data = array.memory.data() + emulated_gpu::kMargin;
  if (emulated_) emulated_gpu::watch(array.name.c_str(), array.data, count, array.element());
  return array;
}

template <typename T>
static constexpr Values::Array::Kind kind_of() {
  if (std::is_same_v<T, float>) return Values::Array::floats;
  if (std::is_same_v<T, __nv_bfloat16>) return Values::Array::bfloats;
  return std::is_same_v<T, std::int32_t> ? Values::Array::integers : Values::Array::bytes;
}

template <typename T>
T* Values::unset(const char* name, std::size_t count) {
  return reinterpret_cast<T*>(add(name, count, kind_of<T>()).data);
}

template <typename T>
T* Values::numbers(const char* name, std::size_t count) {
  T* values = unset<T>(name, count);
  for (std::size_t i = 0; i < count; ++i) {
    const int number = random(1 << 20);
    // One in 16 is a multiple of a quarter.
    values[i] =
        T(number % 16 == 0 ? static_cast<float>(number / 16 % 17 - 8) / 4 : static_cast<float>(number) / (1 << 18) - 2);
  }
  return values;
}

template <typename T>
T* Values::positive(const char* name, std::size_t count) {
  T* values = unset<T>(name, count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T(static_cast<float>(1 + random(1 << 20)) / (1 << 19));
  return values;
}

std::int32_t* Values::integers(const char* name, std::size_t count, int below) {
  auto* values = unset<std::int32_t>(name, count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random(below);
  return values;
}

template float* Values::unset(const char*, std::size_t);
template __nv_bfloat16* Values::unset(const char*, std::size_t);
template std::int32_t* Values::unset(const char*, std::size_t);
template std::uint8_t* Values::unset(const char*, std::size_t);
template float* Values::numbers(const char*, std::size_t);
template __nv_bfloat16* Values::numbers(const char*, std::size_t);
template float* Values::positive(const char*, std::size_t);
template __nv_bfloat16* Values::positive(const char*, std::size_t);

float Values::scalar(const char* name, float value) {
  scalars_.emplace_back(name, value);
  return value;
}

double Values::scalar(std::string_view name) const {
  for (const auto& [known, value] : scalars_) {
    if (known == name) return value;
  }
  throw std::logic_error("no scalar " + std::string(name));
}

const Values::Array& Values::array(std::string_view name) const {
  for (const Array& array : arrays_) {
    if (array.name == name) return array;
  }
  throw std::logic_error("no array " + std::string(name));
}

void Values::keep() {
  for (Array& array : arrays_) {
    if (array.begin.empty()) array.begin = array.memory;
  }
}

static double number(const Values::Array& array, const unsigned char* data, std::size_t i) {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  };
  switch (array.kind) {
    case Values::Array::floats:
      return as(float());
    case Values::Array::bfloats:
      return static_cast<float>(as(__nv_bfloat16()));
    case Values::Array::integers:
      return as(std::int32_t());
    default:
      return data[i];
  }
}

double Values::Array::operator[](std::size_t i) const { return number(*this, data, i); }
double Values::Array::at_begin(std::size_t i) const { return number(*this, begin.data() + emulated_gpu::kMargin, i); }

}  // namespace kernel_test
