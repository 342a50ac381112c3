// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API on a machine without a GPU: the part that the workshop uses, with the names, values and
// semantics of the real header. backend_cpu/semantics.md lists the differences.
#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

// A kernel is a plain function: one call works on its whole range.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline

// glibc has vector versions of these functions in libmvec, within 4 ulp, but declares them only under -ffast-math,
// which would also allow the compiler to assume that there are no NaNs. A kernel that calls them vectorizes with this.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__FAST_MATH__)
#if __GLIBC_PREREQ(2, 35)
extern "C" {
__attribute__((__simd__("notinbranch"))) float expf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float logf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float erff(float) noexcept;
__attribute__((__simd__("notinbranch"))) float tanhf(float) noexcept;
}
#endif
#endif

// Functions that CUDA declares for kernels, and C++ only in namespace std, or not at all. As in CUDA, the result of two
// types is of the type that arithmetic between them has, and a NaN loses against a number.
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x != x || y < x ? y : x;
}
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x != x || y > x ? y : x;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

extern "C" {

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void* user_data);

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorNotPermitted = 800,
} cudaError_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventWaitDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02

typedef struct CUuuid_st {
  char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;  // bytes: WORKSHOP_DEVICE_MEMORY
};

enum cudaDeviceP2PAttr {
  cudaDevP2PAttrPerformanceRank = 1,
  cudaDevP2PAttrAccessSupported = 2,
  cudaDevP2PAttrNativeAtomicSupported = 3,
  cudaDevP2PAttrCudaArrayAccessSupported = 4,
};

enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
};
#define cudaInvalidDeviceId ((int)-2)

struct cudaPointerAttributes {
  enum cudaMemoryType type;
  int device;  // the current one when the memory was allocated
  void* devicePointer;
  void* hostPointer;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceGetP2PAttribute(int* value, enum cudaDeviceP2PAttr attribute, int from, int to);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream = nullptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaMemset(void* pointer, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

}  // extern "C"

inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int flags) {
  return cudaEventCreateWithFlags(event, flags);
}
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <typename T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}

namespace workshop::cpu {

// Arguments of an operation are stored in the stream's queue, so enqueueing allocates nothing.
inline constexpr std::size_t kTaskBytes = 176;

// Enqueues `run(copy of task)` as a kernel. `operations` determines its time on a simulated machine.
void enqueue_kernel(cudaStream_t stream, double operations, void (*run)(void*), const void* task, std::size_t bytes);

// Call when a kernel is about to be launched (WORKSHOP_BLOCKING).
void load_kernel(const void* kernel);

// Returns true if the calling thread may launch a kernel on the stream; otherwise cudaGetLastError() says why not.
bool may_launch(cudaStream_t stream);

// Enqueues a call of `kernel`, a function object that holds the arguments, as CUDA's <<<>>> does.
template <typename Kernel>
void enqueue_kernel(cudaStream_t stream, double operations, const Kernel& kernel) {
  static_assert(sizeof(Kernel) <= kTaskBytes && alignof(Kernel) <= 16, "too many kernel arguments");
  static_assert(std::is_trivially_copyable_v<Kernel>, "kernel arguments must be trivially copyable");
  enqueue_kernel(
      stream, operations, [](void* task) { (*static_cast<Kernel*>(task))(); }, &kernel, sizeof(Kernel));
}

// The calling thread's share of a kernel's range: part `index` of `count` equal parts.
struct Share {
  int index = 0, count = 1;
};
inline thread_local Share share;

// A kernel of at least this many iterations is worth waking other cores for.
inline constexpr int kSharedElements = 1 << 16;

// Calls `kernel` on every core that this rank has to itself, each with its share, and waits for all of them.
void run_shared(void (*kernel)(const void*), const void* task);
template <typename Kernel>
void run_shared(const Kernel& kernel) {
  run_shared([](const void* task) { (*static_cast<const Kernel*>(task))(); }, &kernel);
}

// Calls `kernel` for one share after the other, so that work that every thread would do is done more than once.
template <typename Kernel>
void run_in_turn(const Kernel& kernel) {
  for (int index = 0; index < 2; ++index) {
    share = {index, 2};
    kernel();
  }
  share = {};
}

}  // namespace workshop::cpu
