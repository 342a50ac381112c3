// SPDX-License-Identifier: Apache-2.0
#include "common/watchdog/verdict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/environment.h"
#include "common/base/format.h"

namespace workshop {
namespace {

bool is_send(const CallNote& call) { return call.operation == "ncclSend"; }
bool is_receive(const CallNote& call) { return call.operation == "ncclRecv"; }
bool is_message(const CallNote& call) { return is_send(call) || is_receive(call); }

std::string describe(const CallNote& call) {
  std::string text = call.operation;
  if (!call.type.empty()) text += " of " + std::to_string(call.count) + " " + call.type;
  const std::string of = " of '" + call.communicator + "'", number = std::to_string(call.number);
  if (is_message(call)) {  // `peer` is a rank within the communicator
    text += (is_send(call) ? " to rank " : " from rank ") + std::to_string(call.peer) + of + " (number " + number;
  } else {
    if (call.peer >= 0) text += ", root " + std::to_string(call.peer);
    text += " (collective " + number + of;
  }
  return text + (call.place.empty() ? "" : ", " + call.place) + ")";
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

const CallNote* first_pending(const Note& note) {
  const auto found = std::find_if(note.calls.begin(), note.calls.end(), [](auto& call) { return !call.completed; });
  return found == note.calls.end() ? nullptr : &*found;
}

const CommunicatorNote* membership(const Note& note, std::uint64_t communicator) {
  const auto found = std::find_if(note.communicators.begin(), note.communicators.end(),
                                  [&](auto& known) { return known.id == communicator; });
  return found == note.communicators.end() ? nullptr : &*found;
}

// Returns the note of a communicator's rank, or null if that rank has not answered.
const Note* member(const std::vector<Note>& notes, std::uint64_t communicator, int rank) {
  for (const Note& note : notes) {
    const CommunicatorNote* known = membership(note, communicator);
    if (known != nullptr && known->rank == rank) return &note;
  }
  return nullptr;
}

// Describes the call that a rank's program is in.
std::string host_call(const Note& note) {
  return note.in_call + (note.in_place.empty() ? "" : " (" + note.in_place + ")");
}

// Says what a rank is doing instead of making an expected call.
std::string whereabouts(const Note& note) {
  if (const CallNote* pending = first_pending(note)) return "it waits in " + describe(*pending);
  if (note.in_call.empty()) return "it is in no call";
  const std::string& call = note.in_call;  // ~Job makes the last two calls
  const bool ended = call == "exit()" || call.starts_with("MPI_Barrier") || call == "ncclCommDestroy(comm())";
  return (ended ? "its program has reached its end, " : "it is in ") + host_call(note);
}

// The key that calls of several ranks share if they belong to one operation.
struct Meeting {
  std::uint64_t communicator;
  int from, to;  // the ranks of a message; -1 for a collective
  std::int64_t number;
  auto operator<=>(const Meeting&) const = default;
};

std::optional<Meeting> meeting(const Note& note, const CallNote& call) {
  if (!is_message(call)) return Meeting{call.communicator_id, -1, -1, call.number};
  const CommunicatorNote* self = membership(note, call.communicator_id);
  if (self == nullptr) return std::nullopt;
  if (is_send(call)) return Meeting{call.communicator_id, self->rank, call.peer, call.number};
  return Meeting{call.communicator_id, call.peer, self->rank, call.number};
}

// Says in what two matching calls differ; nullptr if they agree.
const char* difference(const CallNote& a, const CallNote& b) {
  if (!is_message(a) && a.operation != b.operation) return "different operations";
  if (a.count != b.count) return "different counts";
  if (a.type != b.type) return "different data types";
  if (!is_message(a) && a.peer != b.peer) return "different roots";
  return nullptr;
}

// Returns a communicator's collective with this number; nullptr if the note does not contain it.
const CallNote* collective(const Note& note, std::uint64_t communicator, std::int64_t number) {
  const auto found = std::find_if(note.calls.begin(), note.calls.end(), [=](auto& call) {
    return !is_message(call) && call.communicator_id == communicator && call.number == number;
  });
  return found == note.calls.end() ? nullptr : &*found;
}

// `other` is a call in `note`. Returns whether `call`, of another rank, agrees with the collective after `other`.
bool left_out(const CallNote& call, const Note& note, const CallNote& other) {
  const CallNote* next = is_message(other) ? nullptr : collective(note, other.communicator_id, other.number + 1);
  return next != nullptr && difference(call, *next) == nullptr;
}

std::string tell_left_out(const Note& note, const CallNote& call, const Note& other, const CallNote& other_call) {
  return "missing call: " + rank_name(note.rank) + " skips the call that " + rank_name(other.rank) + " makes, " +
         describe(other_call) + ", and goes on to " + describe(call);
}

// Finds a call that `note` makes and `other` skips, even if the next calls look alike and so hide the skip. Goes back
// from collective `end` as long as call n of `other` has the same place in the source as call n + 1 of `note`, but
// another place than call n of `note`. Returns the earliest such call n of `note`, or null.
const CallNote* one_more(const Note& note, const Note& other, std::uint64_t communicator, std::int64_t end) {
  const CallNote* extra = nullptr;
  for (std::int64_t number = end - 1;; --number) {
    const CallNote* mine = collective(note, communicator, number);
    const CallNote* theirs = collective(other, communicator, number);
    const CallNote* next = collective(note, communicator, number + 1);
    if (mine == nullptr || theirs == nullptr || next == nullptr || mine->place == theirs->place ||
        next->place != theirs->place) {
      return extra;
    }
    extra = mine;
  }
}

// Says what is wrong with two matching calls; empty if they agree.
std::string compare(const Note& a, const CallNote& call_a, const Note& b, const CallNote& call_b) {
  const char* what = difference(call_a, call_b);
  if (what == nullptr) return "";
  if (!is_message(call_a)) {
    const std::uint64_t communicator = call_a.communicator_id;
    if (const CallNote* extra = one_more(a, b, communicator, call_a.number)) {
      return tell_left_out(b, *collective(b, communicator, extra->number), a, *extra);
    }
    if (const CallNote* extra = one_more(b, a, communicator, call_b.number)) {
      return tell_left_out(a, *collective(a, communicator, extra->number), b, *extra);
    }
  }
  if (left_out(call_b, a, call_a)) return tell_left_out(b, call_b, a, call_a);
  if (left_out(call_a, b, call_b)) return tell_left_out(a, call_a, b, call_b);
  return std::string(what) + ": " + rank_name(a.rank) + " calls " + describe(call_a) + ", " + rank_name(b.rank) +
         " calls " + describe(call_b);
}

std::string find_difference(const std::vector<Note>& notes) {
  std::map<Meeting, std::pair<const Note*, const CallNote*>> first;
  std::map<Meeting, std::string> found;
  for (const Note& note : notes) {
    for (const CallNote& call : note.calls) {
      const auto key = meeting(note, call);
      if (!key) continue;
      const auto [entry, is_new] = first.try_emplace(*key, &note, &call);
      if (is_new) continue;
      const auto& [other_note, other] = entry->second;
      const std::string what = compare(*other_note, *other, note, call);
      if (!what.empty()) found.try_emplace(*key, what);
    }
  }
  // The first mismatch: later ones are only its consequences.
  return found.empty() ? "" : found.begin()->second;
}

std::string find_missing_ranks(const std::vector<Note>& notes, int world) {
  std::vector<int> missing;
  for (int rank = 0; rank < world; ++rank) {
    if (std::none_of(notes.begin(), notes.end(), [=](auto& note) { return note.rank == rank; }))
      missing.push_back(rank);
  }
  if (missing.empty()) return "";
  return "missing rank: " + list_of_ranks(missing) + (missing.size() == 1 ? " does" : " do") +
         " not answer: stopped, ended or cut off";
}

// Finds the first collective that a rank waits in and another rank of its communicator has not called.
std::string find_missing_call(const std::vector<Note>& notes) {
  for (const Note& note : notes) {
    for (const CallNote& call : note.calls) {
      if (call.completed || is_message(call)) continue;
      for (const Note& other : notes) {
        const CommunicatorNote* known = membership(other, call.communicator_id);
        if (known == nullptr || known->collectives >= call.number) continue;
        return "missing call: " + rank_name(other.rank) + " has not made the call that " + rank_name(note.rank) +
               " waits in, " + describe(call) + "; " + whereabouts(other);
      }
    }
  }
  return "";
}

// Returns the waiting ranks if all of them wait in messages of this kind and only for each other; otherwise "". Also
// returns "" if they have enqueued messages of the other kind, as in a group, but none that fits: then the peers are
// wrong, not the order.
std::string find_all_in(const std::vector<Note>& notes, bool (*kind)(const CallNote&)) {
  std::vector<int> ranks;
  bool have_others = false, have_these = false;
  for (const Note& note : notes) {
    const CallNote* pending = first_pending(note);
    if (pending == nullptr) continue;
    const Note* peer = member(notes, pending->communicator_id, pending->peer);
    if (!kind(*pending) || peer == nullptr || first_pending(*peer) == nullptr) return "";
    ranks.push_back(note.rank);
    for (const CallNote& other : peer->calls) {
      have_others = have_others || (!other.completed && is_message(other) && !kind(other));
      have_these = have_these || (!kind(other) && meeting(*peer, other) == meeting(note, *pending));
    }
  }
  return ranks.size() < 2 || (have_others && !have_these) ? "" : list_of_ranks(ranks);
}

std::string find_unmet_message(const std::vector<Note>& notes) {
  if (const auto ranks = find_all_in(notes, is_send); !ranks.empty()) {
    return "all send first: " + ranks +
           " wait in ncclSend, none receives. In one group (ncclGroupStart, ncclGroupEnd) " +
           "sends and receives do not wait for each other";
  }
  if (const auto ranks = find_all_in(notes, is_receive); !ranks.empty()) {
    return "all receive first: " + ranks + " wait in ncclRecv, none sends";
  }
  // If the peer waits too, the problem starts elsewhere. So first try peers that do not wait.
  for (const bool for_a_waiting_rank : {false, true}) {
    for (const Note& note : notes) {
      const CallNote* call = first_pending(note);
      if (call == nullptr || !is_message(*call)) continue;
      const Note* peer = member(notes, call->communicator_id, call->peer);
      if (peer == nullptr || (first_pending(*peer) != nullptr) != for_a_waiting_rank) continue;
      const auto key = meeting(note, *call);
      const auto meets = [&](const CallNote& other) { return &other != call && meeting(*peer, other) == key; };
      if (std::any_of(peer->calls.begin(), peer->calls.end(), meets)) continue;
      return "missing call: no rank " + std::string(is_send(*call) ? "receives" : "sends") + " what " +
             rank_name(note.rank) + (is_send(*call) ? " sends in " : " receives in ") + describe(*call) + "; " +
             rank_name(peer->rank) + ": " + whereabouts(*peer);
    }
  }
  return "";
}

// A rank and its first pending call. That call waits for another rank, which makes the matching call only after its own
// first pending call.
struct Wait {
  const Note* note;
  const CallNote* call;
};

// Returns the note of the rank that `note` waits for in this way; nullptr if the matching call has begun or was not
// made.
const Note* waits_for(const std::vector<Note>& notes, const Note& note) {
  const CallNote* call = first_pending(note);
  const auto key = call == nullptr ? std::nullopt : meeting(note, *call);
  if (!key) return nullptr;
  for (const Note& other : notes) {
    const CallNote* pending = first_pending(other);
    if (&other == &note || pending == nullptr || meeting(other, *pending) == key) continue;
    const auto is_part = [&](const CallNote& later) { return !later.completed && meeting(other, later) == key; };
    if (std::any_of(other.calls.begin(), other.calls.end(), is_part)) return &other;
  }
  return nullptr;
}

// Finds ranks that wait for each other in a circle, because calls on one communicator or stream begin one after the
// other.
std::string find_circle(const std::vector<Note>& notes) {
  for (const Note& start : notes) {
    std::vector<Wait> circle;
    const Note* note = &start;
    do {
      circle.push_back({note, first_pending(*note)});
      note = waits_for(notes, *note);
    } while (note != nullptr && note != &start && circle.size() < notes.size());
    if (note != &start) continue;
    std::string text = "deadlock: ";
    for (std::size_t i = 0; i < circle.size(); ++i) {
      const Note& next = *circle[(i + 1) % circle.size()].note;
      text += (i > 0 ? "; " : "") + rank_name(circle[i].note->rank) + " waits in " + describe(*circle[i].call) +
              " for " + rank_name(next.rank);
    }
    return text + ". On each rank, the call that the previous rank waits for comes after the call that this rank " +
           "waits in: calls on one communicator or stream begin in the order in which a rank makes them. In one "
           "group, or on separate communicators and streams, they do not wait for each other";
  }
  return "";
}

std::string find_error(const std::vector<Note>& notes) {
  for (const Note& note : notes) {
    if (!note.error.empty()) return "an error on " + rank_name(note.rank) + ": " + note.error;
  }
  return "";
}

}  // namespace

std::string describe(const Note& note) {
  const std::string seconds = formatted(" for %.1f s", note.seconds);
  const CallNote* pending = first_pending(note);
  const std::string call = host_call(note);
  std::string text = rank_name(note.rank);
  if (pending != nullptr) {
    text += " waits in " + describe(*pending) + seconds + (call.empty() ? "" : "; the program is in " + call);
  } else {
    text +=
        " waits in no NCCL call" + (call.empty() ? " or other call: its own code runs" : ", is in " + call + seconds);
  }
  const auto last = std::find_if(note.calls.rbegin(), note.calls.rend(), [](auto& call) { return call.completed; });
  text += "; last completed: " + (last == note.calls.rend() ? "none" : describe(*last));
  if (!note.error.empty()) text += "; error: " + note.error;
  return text;
}

std::string find_verdict(const std::vector<Note>& notes, int world) {
  for (const std::string& verdict : {find_difference(notes), find_missing_ranks(notes, world), find_missing_call(notes),
                                     find_unmet_message(notes), find_circle(notes), find_error(notes)}) {
    if (!verdict.empty()) return verdict;
  }
  return "the calls of the ranks match: something else takes longer than WORKSHOP_TIMEOUT";
}

}  // namespace workshop
