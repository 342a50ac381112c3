// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace workshop {

// As long as it lives, NCCL calls enter neither ledger nor timeline: they report on what the program does.
class OffTheRecord {
 public:
  OffTheRecord();
  ~OffTheRecord();
  OffTheRecord(const OffTheRecord&) = delete;
  OffTheRecord& operator=(const OffTheRecord&) = delete;

 private:
  bool before_;
};

}  // namespace workshop
