// SPDX-License-Identifier: Apache-2.0
#include "common/watchdog/note_message.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/base/untrusted.h"

namespace workshop {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CallNote, operation, communicator, communicator_id, number, count, type, peer, place,
                                   completed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicatorNote, id, rank, collectives)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Note, rank, seconds, in_call, in_place, error, calls, communicators)

namespace {

// Returns whether a number other than the time is floating-point. The parser also turns an integer that is too large
// for any integer type into a floating-point number.
bool has_fractions(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_structured() ? has_fractions(value) : value.is_number_float() && key != "seconds") return true;
  }
  return false;
}

}  // namespace

std::string make_note_message(std::uint64_t job, const Note& note) {
  const Json json = {{"job", job}, {"note", note}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // a library's error may be in any encoding
}

std::optional<Note> read_note_message(std::uint64_t job, int world, std::string_view message) try {
  const Json json = parse_json(message);
  if (has_fractions(json)) return std::nullopt;
  const Note note = json.at("note");
  // The JSON library's conversions would also accept `true` as a number, and truncate 2^32 + 5 to 5.
  if (note.rank < 0 || note.rank >= world || make_note_message(job, note) != message) return std::nullopt;
  return note;
} catch (const Json::exception&) {
  return std::nullopt;
} catch (const std::runtime_error&) {
  return std::nullopt;
}

}  // namespace workshop
