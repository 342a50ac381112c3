// SPDX-License-Identifier: Apache-2.0
// cuBLAS against plain loops. All values are small whole numbers, so results are exact in any order of summation.
#include <cuda_bf16.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/conformance/support.h"

namespace conformance {
namespace {

using workshop::DeviceBuffer;
using workshop::Memory;
using workshop::Stream;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> numbers(int count, int seed) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7 + seed * 13 + i / 5) % 9 - 4);
  return values;
}

class Blas : public testing::Test {
 protected:
  Blas() {
    CUBLAS_CHECK(cublasCreate(&handle_));
    CUBLAS_CHECK(cublasSetStream(handle_, stream_));
    CUBLAS_CHECK(cublasSetMathMode(
        handle_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    // cuBLAS may load a kernel at its first launch, and wait for the device: not while a test holds a stream.
    const DeviceBuffer<float> x = device({1});
    const float one = 1;
    float dot = 0;
    CUBLAS_CHECK(cublasSaxpy(handle_, 1, &one, x.data(), 1, x.data(), 1));
    CUBLAS_CHECK(cublasSdot(handle_, 1, x.data(), 1, x.data(), 1, &dot));
  }
  ~Blas() override { cublasDestroy(handle_); }

  DeviceBuffer<float> device(const std::vector<float>& host) {
    DeviceBuffer<float> buffer(host.size(), Memory::data);
    buffer.upload(host, stream_);
    return buffer;
  }
  std::vector<float> host(const DeviceBuffer<float>& buffer) {
    finish(stream_);
    return buffer.download(stream_);
  }

  Stream stream_;
  cublasHandle_t handle_ = nullptr;
};

// Returns element (i, j) of op(x), where x is column-major with `ld` rows.
float element(const std::vector<float>& x, cublasOperation_t op, int ld, int i, int j, int offset = 0) {
  return op == CUBLAS_OP_N ? x[offset + i + j * ld] : x[offset + j + i * ld];
}

// Computes in c what gemm must leave there. If beta is 0, a NaN in c must have no effect.
void plain_gemm(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, float alpha,
                const std::vector<float>& a, int lda, const std::vector<float>& b, int ldb, float beta,
                std::vector<float>& c, int ldc, int stride_a = 0, int stride_b = 0, int stride_c = 0, int batches = 1) {
  for (int batch = 0; batch < batches; ++batch) {
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < m; ++i) {
        float sum = 0;
        for (int l = 0; l < k; ++l) {
          sum += element(a, ta, lda, i, l, batch * stride_a) * element(b, tb, ldb, l, j, batch * stride_b);
        }
        float& value = c[batch * stride_c + i + j * ldc];
        value = alpha * sum + (beta == 0 ? 0 : beta * value);
      }
    }
  }
}

TEST_F(Blas, GemmInAllTransposes) {
  constexpr std::array<int, 3> sizes[] = {{1, 1, 1}, {3, 5, 4}, {17, 33, 9}, {64, 64, 64}, {100, 1, 31}};
  for (auto [m, n, k] : sizes) {
    for (auto ta : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        for (float beta : {0.0f, 1.0f, -2.0f}) {
          const int lda = (ta == CUBLAS_OP_N ? m : k) + 2, ldb = (tb == CUBLAS_OP_N ? k : n) + 1, ldc = m + 3;
          const auto a = numbers(lda * (ta == CUBLAS_OP_N ? k : m), 1),
                     b = numbers(ldb * (tb == CUBLAS_OP_N ? n : k), 2);
          auto c = beta == 0 ? std::vector<float>(ldc * n, kNaN) : numbers(ldc * n, 3);
          const auto da = device(a), db = device(b), dc = device(c);
          const float alpha = 2;
          CUBLAS_CHECK(
              cublasSgemm(handle_, ta, tb, m, n, k, &alpha, da.data(), lda, db.data(), ldb, &beta, dc.data(), ldc));
          plain_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
          const auto result = host(dc);
          for (int j = 0; j < n; ++j) {
            for (int i = 0; i < m; ++i) ASSERT_EQ(result[i + j * ldc], c[i + j * ldc]) << m << " " << n << " " << k;
          }
        }
      }
    }
  }
}

// Products so large that the cpu backend splits them among the cores, by columns or by rows.
TEST_F(Blas, LargeGemm) {
  constexpr std::array<int, 3> sizes[] = {{131, 203, 97}, {203, 131, 97}, {1, 2051, 1031}, {2051, 1, 1031}};
  for (auto [m, n, k] : sizes) {
    for (auto ta : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        const int lda = ta == CUBLAS_OP_N ? m : k, ldb = tb == CUBLAS_OP_N ? k : n, ldc = m + 1;
        const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
        auto c = numbers(ldc * n, 3);
        const auto da = device(a), db = device(b), dc = device(c);
        const float alpha = 1, beta = -1;
        CUBLAS_CHECK(
            cublasSgemm(handle_, ta, tb, m, n, k, &alpha, da.data(), lda, db.data(), ldb, &beta, dc.data(), ldc));
        plain_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        ASSERT_EQ(host(dc), c) << m << " " << n << " " << k;
      }
    }
  }
}

TEST_F(Blas, GemmOfNothing) {
  auto c = device({kNaN, kNaN});
  const float alpha = 1, beta = 0;
  CUBLAS_CHECK(
      cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 2, 1, 0, &alpha, c.data(), 2, c.data(), 1, &beta, c.data(), 2));
  EXPECT_EQ(host(c), (std::vector<float>{0, 0}));
  EXPECT_EQ(
      cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 0, 1, 1, &alpha, c.data(), 1, c.data(), 1, &beta, c.data(), 1),
      CUBLAS_STATUS_SUCCESS);
}

TEST_F(Blas, GemmKeepsNaN) {
  const auto a = device({kNaN, 1}), b = device({0, 1});
  auto c = device({0});
  const float alpha = 1, beta = 0;
  CUBLAS_CHECK(
      cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 2, &alpha, a.data(), 1, b.data(), 2, &beta, c.data(), 1));
  EXPECT_TRUE(std::isnan(host(c)[0]));
}

TEST_F(Blas, BatchedGemm) {
  constexpr std::array<int, 4> sizes[] = {{4, 3, 5, 6}, {40, 70, 80, 13}};
  for (auto [m, n, k, batches] : sizes) {
    const auto a = numbers(m * k * batches, 1), b = numbers(k * n * batches, 2);
    auto c = std::vector<float>(m * n * batches, kNaN);
    const auto da = device(a), db = device(b), dc = device(c);
    const float alpha = 1, beta = 0;
    CUBLAS_CHECK(cublasSgemmStridedBatched(handle_, CUBLAS_OP_N, CUBLAS_OP_T, m, n, k, &alpha, da.data(), m, m * k,
                                           db.data(), n, k * n, &beta, dc.data(), m, m * n, batches));
    plain_gemm(CUBLAS_OP_N, CUBLAS_OP_T, m, n, k, 1, a, m, b, n, 0, c, m, m * k, k * n, m * n, batches);
    EXPECT_EQ(host(dc), c);
  }
}

std::vector<__nv_bfloat16> rounded(const std::vector<float>& values) { return {values.begin(), values.end()}; }
std::vector<float> floats(const std::vector<__nv_bfloat16>& values) { return {values.begin(), values.end()}; }

// The sums are whole numbers that a float holds exactly, so only a result of bfloat16s is rounded.
TEST_F(Blas, Bfloat16ProductsAreAddedUpInFloat) {
  constexpr std::array<int, 4> sizes[] = {{3, 5, 4, 1}, {17, 33, 300, 1}, {130, 200, 100, 1}, {6, 7, 50, 3}};
  for (auto [m, n, k, batches] : sizes) {
    for (auto ta : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        for (float beta : {0.0f, 1.0f}) {
          const int lda = ta == CUBLAS_OP_N ? m : k, ldb = tb == CUBLAS_OP_N ? k : n;
          const auto a = numbers(m * k * batches, 1), b = numbers(k * n * batches, 2);
          auto c = beta == 0 ? std::vector<float>(m * n * batches, kNaN) : numbers(m * n * batches, 3);
          DeviceBuffer<__nv_bfloat16> da(a.size(), Memory::data), db(b.size(), Memory::data),
              dc(c.size(), Memory::data);
          const auto dc_in_float = device(c);
          da.upload(rounded(a), stream_);
          db.upload(rounded(b), stream_);
          dc.upload(rounded(c), stream_);
          const float alpha = 1;
          const auto multiply = [&, m = m, n = n, k = k, batches = batches](void* result, cudaDataType type) {
            CUBLAS_CHECK(cublasGemmStridedBatchedEx(handle_, ta, tb, m, n, k, &alpha, da.data(), CUDA_R_16BF, lda,
                                                    m * k, db.data(), CUDA_R_16BF, ldb, k * n, &beta, result, type, m,
                                                    m * n, batches, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
          };
          multiply(dc.data(), CUDA_R_16BF);
          multiply(dc_in_float.data(), CUDA_R_32F);
          plain_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, m, m * k, k * n, m * n, batches);
          finish(stream_);
          EXPECT_EQ(floats(dc.download(stream_)), floats(rounded(c))) << m << " " << n << " " << k;
          EXPECT_EQ(host(dc_in_float), c) << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(Bfloat16, IsRoundedToTheNearestAndThenToEven) {
  const float last = 1.0f / 128;  // spacing of bfloat16s from 1 to 2
  const std::pair<float, float> roundings[] = {{1, 1},
                                               {1 + 0.49f * last, 1},
                                               {1 + 0.5f * last, 1},
                                               {1 + 0.51f * last, 1 + last},
                                               {1 + 1.5f * last, 1 + 2 * last},
                                               {-1 - 1.5f * last, -1 - 2 * last},
                                               {3.4e38f, std::numeric_limits<float>::infinity()},
                                               {0, 0}};
  for (const auto& [value, expected] : roundings)
    EXPECT_EQ(__bfloat162float(__float2bfloat16(value)), expected) << value;
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16(kNaN))));
}

TEST_F(Blas, GeamAddsAndTransposes) {
  const int m = 3, n = 4;
  const auto a = numbers(m * n, 1), b = numbers(m * n, 2);
  const auto da = device(a), db = device(b);
  auto c = device(std::vector<float>(m * n, kNaN));
  float alpha = 2, beta = -1;
  CUBLAS_CHECK(
      cublasSgeam(handle_, CUBLAS_OP_T, CUBLAS_OP_N, m, n, &alpha, da.data(), n, &beta, db.data(), m, c.data(), m));
  auto result = host(c);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) ASSERT_EQ(result[i + j * m], 2 * a[j + i * n] - b[i + j * m]);
  }
  alpha = 1, beta = 0;
  auto d = device(std::vector<float>(m * n, kNaN));
  CUBLAS_CHECK(
      cublasSgeam(handle_, CUBLAS_OP_T, CUBLAS_OP_N, m, n, &alpha, da.data(), n, &beta, d.data(), m, d.data(), m));
  EXPECT_EQ(host(d)[1], a[n]);
}

TEST_F(Blas, GemvInBothTransposes) {
  const int m = 7, n = 5, lda = 9;
  const auto a = numbers(lda * n, 1), x = numbers(2 * (m + n), 2);
  const auto da = device(a), dx = device(x);
  for (auto op : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    for (float beta : {0.0f, 3.0f}) {
      const int rows = op == CUBLAS_OP_N ? m : n, columns = op == CUBLAS_OP_N ? n : m;
      auto y = beta == 0 ? std::vector<float>(rows, kNaN) : numbers(rows, 4);
      const auto dy = device(y);
      const float alpha = -1;
      CUBLAS_CHECK(cublasSgemv(handle_, op, m, n, &alpha, da.data(), lda, dx.data(), 2, &beta, dy.data(), 1));
      for (int i = 0; i < rows; ++i) {
        float sum = 0;
        for (int j = 0; j < columns; ++j) sum += element(a, op, lda, i, j) * x[2 * j];
        y[i] = -sum + (beta == 0 ? 0 : beta * y[i]);
      }
      EXPECT_EQ(host(dy), y);
    }
  }
}

TEST_F(Blas, VectorOperations) {
  const int n = 1001;
  const auto x = numbers(n, 1), y = numbers(n, 2);
  const auto dx = device(x), dy = device(y);
  float dot = 0, squares = 0, result = -1;
  for (int i = 0; i < n; ++i) dot += x[i] * y[i], squares += x[i] * x[i];
  CUBLAS_CHECK(cublasSdot(handle_, n, dx.data(), 1, dy.data(), 1, &result));
  EXPECT_EQ(result, dot);
  CUBLAS_CHECK(cublasSnrm2(handle_, n, dx.data(), 1, &result));
  EXPECT_NEAR(result, std::sqrt(squares), 1e-4);
  CUBLAS_CHECK(cublasSdot(handle_, 0, dx.data(), 1, dy.data(), 1, &result));
  EXPECT_EQ(result, 0);
  const float alpha = 3;
  CUBLAS_CHECK(cublasSaxpy(handle_, n, &alpha, dx.data(), 1, dy.data(), 1));
  EXPECT_EQ(host(dy)[17], y[17] + 3 * x[17]);
  CUBLAS_CHECK(cublasSscal(handle_, n, &alpha, dy.data(), 1));
  EXPECT_EQ(host(dy)[17], 3 * (y[17] + 3 * x[17]));
  CUBLAS_CHECK(cublasScopy(handle_, n / 2, dx.data(), 2, dy.data(), 1));
  EXPECT_EQ(host(dy)[17], x[34]);
}

TEST_F(Blas, ScalingByZeroKeepsNaN) {
  auto x = device({kNaN, 1});
  const float zero = 0;
  CUBLAS_CHECK(cublasSscal(handle_, 2, &zero, x.data(), 1));
  const auto result = host(x);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_EQ(result[1], 0);
}

TEST_F(Blas, HostScalarsAreTakenAtTheCall) {
  const auto x = device({1, 2});
  auto y = device({0, 0});
  float alpha = 10;
  {
    Gate gate(stream_);
    CUBLAS_CHECK(cublasSaxpy(handle_, 2, &alpha, x.data(), 1, y.data(), 1));
    alpha = 0;
  }
  EXPECT_EQ(host(y), (std::vector<float>{10, 20}));
}

TEST_F(Blas, DeviceScalarsAreReadWhenTheOperationRuns) {
  const auto x = device({1, 2});
  auto y = device({0, 0});
  auto alpha = device({0}), result = device({kNaN});
  const workshop::HostBuffer<float> five(1);  // pinned: with pageable memory CUDA may wait for the copy
  *five.data() = 5;
  CUBLAS_CHECK(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_DEVICE));
  {
    Gate gate(stream_);
    CUDA_CHECK(cudaMemcpyAsync(alpha.data(), five.data(), five.bytes(), cudaMemcpyHostToDevice, stream_));
    CUBLAS_CHECK(cublasSaxpy(handle_, 2, alpha.data(), x.data(), 1, y.data(), 1));
    CUBLAS_CHECK(cublasSdot(handle_, 2, x.data(), 1, y.data(), 1, result.data()));
    EXPECT_FALSE(finished(stream_));
  }
  EXPECT_EQ(host(y), (std::vector<float>{5, 10}));
  EXPECT_EQ(host(result)[0], 25);
  cublasPointerMode_t mode;
  CUBLAS_CHECK(cublasGetPointerMode(handle_, &mode));
  EXPECT_EQ(mode, CUBLAS_POINTER_MODE_DEVICE);
}

TEST_F(Blas, WrongArgumentsAreRefused) {
  auto x = device(numbers(16, 1));
  float* p = x.data();
  const float one = 1;
  const auto N = CUBLAS_OP_N;
  EXPECT_EQ(cublasSgemm(nullptr, N, N, 1, 1, 1, &one, p, 1, p, 1, &one, p, 1), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasSgemm(handle_, N, N, -1, 1, 1, &one, p, 1, p, 1, &one, p, 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSgemm(handle_, N, N, 4, 2, 2, &one, p, 2, p, 2, &one, p, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSgemm(handle_, N, N, 4, 2, 2, &one, p, 4, p, 2, &one, p, 2), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSgemv(handle_, N, 2, 2, &one, p, 1, p, 1, &one, p, 1), CUBLAS_STATUS_INVALID_VALUE);
  if (kCpu) {
    EXPECT_EQ(cublasSgemv(handle_, N, 2, 2, &one, p, 2, p, 0, &one, p, 1), CUBLAS_STATUS_INVALID_VALUE);
  }
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cublasGetStream(handle_, &stream), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(stream, static_cast<cudaStream_t>(stream_));
  EXPECT_STREQ(cublasGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE");
}

}  // namespace
}  // namespace conformance
