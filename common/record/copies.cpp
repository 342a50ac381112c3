// SPDX-License-Identifier: Apache-2.0
// Every cudaMemcpyPeerAsync() of a program passes through here once: the linker, told --wrap=cudaMemcpyPeerAsync, has
// those who call it call __wrap_cudaMemcpyPeerAsync(), and __real_cudaMemcpyPeerAsync() is CUDA's. So ledger and
// timeline have the copies between devices beside NCCL's calls, and chapters contain nothing for it.
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
