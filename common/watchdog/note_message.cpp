#include "common/watchdog/note_message.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "common/run/untrusted.h"

namespace workshop {
namespace {

using Json = nlohmann::json;

// A whole number in the range of its type: get() would convert what is neither.
template <typename T>
T whole(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (value.is_number_unsigned() && std::in_range<T>(value.get<std::uint64_t>())) return value.get<T>();
  if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<T>(value.get<std::int64_t>())) {
    return value.get<T>();
  }
  throw std::runtime_error(key);
}

std::string text(const Json& json, const char* key) { return json.at(key).get<std::string>(); }

Json to_json(const CallNote& call) {
  return {{"operation", call.operation},
          {"communicator", call.communicator},
          {"communicator_id", call.communicator_id},
          {"number", call.number},
          {"count", call.count},
          {"type", call.type},
          {"peer", call.peer},
          {"place", call.place},
          {"completed", call.completed}};
}

CallNote read_call(const Json& json) {
  return {text(json, "operation"),
          text(json, "communicator"),
          whole<std::uint64_t>(json, "communicator_id"),
          whole<std::int64_t>(json, "number"),
          whole<std::uint64_t>(json, "count"),
          text(json, "type"),
          whole<int>(json, "peer"),
          text(json, "place"),
          json.at("completed").get<bool>()};
}

Json to_json(const CommunicatorNote& communicator) {
  return {{"id", communicator.id}, {"rank", communicator.rank}, {"collectives", communicator.collectives}};
}

CommunicatorNote read_communicator(const Json& json) {
  return {whole<std::uint64_t>(json, "id"), whole<int>(json, "rank"), whole<std::int64_t>(json, "collectives")};
}

template <typename T>
Json list(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T& value : values) json.push_back(to_json(value));
  return json;
}

Note read_note(const Json& json) {
  Note note{whole<int>(json, "rank"),
            json.at("seconds").get<double>(),
            text(json, "in_call"),
            text(json, "in_place"),
            text(json, "error"),
            {},
            {}};
  for (const Json& call : json.at("calls")) note.calls.push_back(read_call(call));
  for (const Json& known : json.at("communicators")) note.communicators.push_back(read_communicator(known));
  return note;
}

}  // namespace

std::string make_note_message(std::uint64_t job, const Note& note) {
  const Json json = {{"job", job},
                     {"note",
                      {{"rank", note.rank},
                       {"seconds", note.seconds},
                       {"in_call", note.in_call},
                       {"in_place", note.in_place},
                       {"error", note.error},
                       {"calls", list(note.calls)},
                       {"communicators", list(note.communicators)}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // a library's error may be in any encoding
}

std::optional<Note> read_note_message(std::uint64_t job, int world, std::string_view message) try {
  const Json json = parse_json(message);
  if (whole<std::uint64_t>(json, "job") != job) return std::nullopt;
  Note note = read_note(json.at("note"));
  if (note.rank < 0 || note.rank >= world) return std::nullopt;
  return note;
} catch (const Json::exception&) {
  return std::nullopt;
} catch (const std::runtime_error&) {
  return std::nullopt;
}

}  // namespace workshop
