// SPDX-License-Identifier: Apache-2.0
// Records copies between devices. With the linker option --wrap=cudaMemcpyPeerAsync, every call of a program to
// cudaMemcpyPeerAsync() becomes one to __wrap_cudaMemcpyPeerAsync(), and __real_cudaMemcpyPeerAsync() is CUDA's
// function. So the ledger and the timeline show these copies next to NCCL's calls, without any code in the chapters.
#include "common/record/record.h"
#include "common/record/recorder.h"

extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier)
cudaError_t __real_cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                       cudaStream_t stream);

cudaError_t __wrap_cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                       cudaStream_t stream) {
  const workshop::Range range("cudaMemcpyPeerAsync", stream);
  const cudaError_t status = __real_cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  if (status == cudaSuccess) workshop::count_copy(from_device, to_device, bytes);
  return status;
}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
