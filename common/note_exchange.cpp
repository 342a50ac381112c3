#include "common/note_exchange.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "common/check.h"

namespace workshop {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CallNote, operation, communicator, communicator_id, number, count, type, peer, place,
                                   completed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicatorNote, id, rank, collectives)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Note, rank, seconds, in_call, in_place, error, calls, communicators)

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kAgain = 100ms;  // until a note is sent once more
constexpr auto kAnswer = 2s;    // for the others to answer

}  // namespace

NoteExchange::Address NoteExchange::open() {
  Address self{};
  std::random_device random;
  self.job = static_cast<std::uint64_t>(random()) << 32 | random();
  socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr*>(&any), size) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&any), &size) != 0) {
    fail(kFailed,
         std::string("the watchdog has no socket: ") + std::strerror(errno) + "; WORKSHOP_TIMEOUT=0 does without");
  }
  self.port = any.sin_port;
  ifaddrs* list = nullptr;
  std::size_t count = 0;
  if (getifaddrs(&list) != 0) return self;
  for (const ifaddrs* i = list; i != nullptr && count < self.hosts.size(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
    self.hosts[count++] = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr;
  }
  freeifaddrs(list);
  return self;
}

void NoteExchange::connect(int rank, const std::vector<Address>& addresses) {
  rank_ = rank;
  addresses_ = addresses;
  connected_ = true;
}

// To all addresses of all other ranks: which of them lead there is not known, and who is not meant does not mind.
void NoteExchange::send(const std::string& text) {
  for (std::size_t rank = 0; rank < addresses_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    for (const in_addr_t host : addresses_[rank].hosts) {
      if (host == 0) continue;
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = host;
      to.sin_port = addresses_[rank].port;
      sendto(socket_, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
}

std::optional<Note> NoteExchange::receive(std::chrono::milliseconds patience) {
  pollfd ready{connected_ ? socket_ : -1, POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  static std::array<char, 1 << 16> buffer;
  const ssize_t length = recv(ready.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (length <= 0) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(buffer.data(), buffer.data() + length);
    if (json.at("job") == addresses_[0].job) return json.at("note").get<Note>();
  } catch (const nlohmann::json::exception&) {
    // not from a watchdog
  }
  return std::nullopt;
}

std::map<int, Note> NoteExchange::exchange(const Note& mine) {
  std::map<int, Note> notes = {{mine.rank, mine}};
  if (!connected_) return notes;
  const std::string text = nlohmann::json{{"job", addresses_[0].job}, {"note", mine}}.dump();
  const auto all_are_here = [&] { return notes.size() == addresses_.size(); };
  for (int again = 0; again < kAnswer / kAgain && !all_are_here(); ++again) {
    send(text);
    const auto next = Clock::now() + kAgain;
    while (Clock::now() < next && !all_are_here()) {
      if (const auto note = receive(kAgain)) notes.insert_or_assign(note->rank, *note);
    }
  }
  send(text);  // for those that came after the last one
  return notes;
}

}  // namespace workshop
