// SPDX-License-Identifier: Apache-2.0
// A watchdog's note, and what the ranks that receive it tell the user about it.
#include <string>
#include <string_view>
#include <vector>

#include "common/watchdog/note_message.h"
#include "common/watchdog/verdict.h"
#include "tests/fuzz/harness.h"

namespace {

using namespace workshop;

constexpr std::uint64_t kJob = 7;
constexpr int kWorld = 4;

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto note = read_note_message(kJob, kWorld, {reinterpret_cast<const char*>(data), size});
  if (!note) return 0;
  require(note->rank >= 0 && note->rank < kWorld, "a rank that there is none of");
  const auto again = read_note_message(kJob, kWorld, make_note_message(kJob, *note));
  require(again && make_note_message(kJob, *again) == make_note_message(kJob, *note),
          "a note that changes when it is sent");
  describe(*note);
  // Together with a second rank's note that has the same content.
  Note other = *note;
  other.rank = (note->rank + 1) % kWorld;
  find_verdict({*note, other}, kWorld);
  return 0;
}
