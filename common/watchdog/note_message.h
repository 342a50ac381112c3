// SPDX-License-Identifier: Apache-2.0
// A watchdog's note as a message: JSON, with the number of the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/watchdog/verdict.h"

namespace workshop {

std::string make_note_message(std::uint64_t job, const Note& note);

// Returns the note, or nothing if the message is invalid or does not belong to this job of `world` ranks.
std::optional<Note> read_note_message(std::uint64_t job, int world, std::string_view message);

}  // namespace workshop
