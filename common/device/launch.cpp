// SPDX-License-Identifier: Apache-2.0
#include "common/device/launch.h"

#include <array>
#include <map>
#include <mutex>
#include <utility>

namespace workshop {

const CallSite& launch_site(const char* file, int line) {
  thread_local std::array<const CallSite*, 256> known = {};  // every training step repeats the same launches
  const CallSite*& site = known[static_cast<unsigned>(line) % known.size()];
  if (site != nullptr && site->file == file && site->line == line) return *site;
  static std::mutex& mutex = *new std::mutex;
  static auto& sites = *new std::map<std::pair<const char*, int>, CallSite>;
  const std::lock_guard lock(mutex);
  site = &sites.try_emplace({file, line}, CallSite{"the launch of a kernel", file, line}).first->second;
  return *site;
}

}  // namespace workshop
