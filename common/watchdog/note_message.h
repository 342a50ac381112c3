// SPDX-License-Identifier: Apache-2.0
// A watchdog's note as it is sent: JSON, with the number of its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/watchdog/verdict.h"

namespace workshop {

std::string make_note_message(std::uint64_t job, const Note& note);

// Nothing if it is not one of this job, whose ranks are [0, world).
std::optional<Note> read_note_message(std::uint64_t job, int world, std::string_view message);

}  // namespace workshop
