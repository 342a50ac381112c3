// SPDX-License-Identifier: Apache-2.0
#include "common/nccl/gather.h"

#include <numeric>

#include "common/base/check.h"
#include "common/nccl/nccl_calls.h"

namespace workshop {
namespace {

// Device memory that is left out of the record of a run, because it serves only reporting, not the training.
struct Scratch {
  // Rounds up to a multiple of 16 bytes, because NCCL reads the last 16-byte word to its end.
  Scratch(std::size_t bytes, cudaStream_t stream) {
    const std::size_t whole = (bytes + 15) / 16 * 16;
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), whole));
    CUDA_CHECK(cudaMemsetAsync(data, 0, whole, stream));
  }
  ~Scratch() { CUDA_CHECK(cudaFree(data)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* data = nullptr;
};

void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

std::vector<char> gather_bytes(std::string_view mine, ncclComm_t comm, cudaStream_t stream) {
  const OffTheRecord off_the_record;
  int ranks = 0;
  NCCL_CHECK(ncclCommCount(comm, &ranks));
  std::vector<char> gathered(ranks * mine.size());
  const Scratch one(mine.size(), stream), all(gathered.size(), stream);
  copy(one.data, mine.data(), mine.size(), stream);
  NCCL_CHECK(ncclAllGather(one.data, all.data, mine.size(), ncclChar, comm, stream));
  copy(gathered.data(), all.data, gathered.size(), stream);
  return gathered;
}

std::vector<std::string> gather_text(const std::string& text, ncclComm_t comm, cudaStream_t stream, bool on_all_ranks) {
  const OffTheRecord off_the_record;
  const std::vector<std::size_t> sizes = gather_values(text.size(), comm, stream);
  const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  if (total == 0) return std::vector<std::string>(sizes.size());
  int rank = 0;
  NCCL_CHECK(ncclCommUserRank(comm, &rank));
  std::string gathered(rank == 0 || on_all_ranks ? total : 0, '\0');
  const Scratch mine(text.size(), stream), all(gathered.size(), stream);
  copy(mine.data, text.data(), text.size(), stream);
  NCCL_CHECK(ncclGroupStart());
  if (!text.empty()) NCCL_CHECK(ncclSend(mine.data, text.size(), ncclChar, 0, comm, stream));
  for (std::size_t peer = 0, offset = 0; rank == 0 && peer < sizes.size(); offset += sizes[peer++]) {
    if (sizes[peer] == 0) continue;
    NCCL_CHECK(ncclRecv(all.data + offset, sizes[peer], ncclChar, static_cast<int>(peer), comm, stream));
  }
  NCCL_CHECK(ncclGroupEnd());
  if (on_all_ranks) NCCL_CHECK(ncclBroadcast(all.data, all.data, total, ncclChar, 0, comm, stream));
  copy(gathered.data(), all.data, gathered.size(), stream);
  std::vector<std::string> texts;
  for (std::size_t peer = 0, offset = 0; !gathered.empty() && peer < sizes.size(); offset += sizes[peer++]) {
    texts.push_back(gathered.substr(offset, sizes[peer]));
  }
  return texts;
}

}  // namespace workshop
