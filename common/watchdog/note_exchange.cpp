// SPDX-License-Identifier: Apache-2.0
#include "common/watchdog/note_exchange.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>

#include "common/base/check.h"
#include "common/watchdog/note_message.h"

namespace workshop {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kAgain = 100ms;  // interval at which a note is sent again
constexpr auto kAnswer = 2s;    // time for the other ranks to answer
constexpr std::size_t kLongest = 1 << 16;

// Opens a socket bound to a free port on this address of the machine and sets the port in `address`. Returns -1 and
// sets errno if that fails.
int bound_socket(sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof address;
  address.sin_port = 0;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0) return fd;
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

}  // namespace

bool uses_interface(const Environment& env, const Ranks& ranks, const std::string& name, bool loopback) {
  if (ranks.local_world == ranks.world) return loopback;
  const char* value = env("NCCL_SOCKET_IFNAME");
  std::string_view list = value == nullptr ? "" : value;
  if (list.empty()) return !loopback;
  const auto begins_with = [&](char sign) {
    if (!list.starts_with(sign)) return false;
    list.remove_prefix(1);
    return true;
  };
  const bool excluded = begins_with('^'), exact = begins_with('=');
  while (!list.empty()) {
    const std::string_view listed = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), listed.size() + 1));
    if (exact ? name == listed : !listed.empty() && name.starts_with(listed)) return !excluded;
  }
  return excluded;
}

NoteExchange::Address NoteExchange::open(const Ranks& ranks) {
  Address self{};
  std::random_device random;
  self.job = static_cast<std::uint64_t>(random()) << 32 | random();
  buffer_.resize(kLongest);
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  for (const ifaddrs* i = list; i != nullptr && sockets_.size() < self.sockets.size(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
    if (!uses_interface(process_environment, ranks, i->ifa_name, (i->ifa_flags & IFF_LOOPBACK) != 0)) continue;
    auto address = *reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    const int fd = bound_socket(address);
    if (fd < 0) continue;
    self.sockets[sockets_.size()] = {address.sin_addr.s_addr, address.sin_port};
    sockets_.push_back({fd, POLLIN, 0});
  }
  if (list != nullptr) freeifaddrs(list);
  if (sockets_.empty()) {
    fail(kFailed,
         "the watchdog found no interface with an IPv4 address that the job may use (check NCCL_SOCKET_IFNAME); "
         "WORKSHOP_TIMEOUT=0 turns the watchdog off");
  }
  return self;
}

void NoteExchange::connect(int rank, const std::vector<Address>& addresses) {
  rank_ = rank;
  addresses_ = addresses;
  connected_ = true;
}

// Sends from every interface to every interface, because it is not known which of them can reach each other. Receivers
// ignore datagrams of other jobs.
void NoteExchange::send(const std::string& text) {
  for (std::size_t rank = 0; rank < addresses_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    for (const auto& [host, port] : addresses_[rank].sockets) {
      if (host == 0) continue;
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = host;
      to.sin_port = port;
      for (const pollfd& from : sockets_) {
        sendto(from.fd, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
      }
    }
  }
}

std::optional<Note> NoteExchange::receive(std::chrono::milliseconds patience) {
  const bool connected = connected_;  // if not, only waits for `patience`
  if (poll(connected ? sockets_.data() : nullptr, connected ? sockets_.size() : 0,
           static_cast<int>(patience.count())) <= 0) {
    return std::nullopt;
  }
  for (const pollfd& ready : sockets_) {
    if (ready.revents == 0) continue;
    const ssize_t length = recv(ready.fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (length <= 0) continue;
    const std::string_view message(buffer_.data(), static_cast<std::size_t>(length));
    const auto note = read_note_message(addresses_[0].job, static_cast<int>(addresses_.size()), message);
    if (note) return note;
  }
  return std::nullopt;
}

std::map<int, Note> NoteExchange::exchange(const Note& mine) {
  std::map<int, Note> notes = {{mine.rank, mine}};
  if (!connected_) return notes;
  const std::string text = make_note_message(addresses_[0].job, mine);
  const auto all_are_here = [&] { return notes.size() == addresses_.size(); };
  for (int again = 0; again < kAnswer / kAgain && !all_are_here(); ++again) {
    send(text);
    const auto next = Clock::now() + kAgain;
    while (Clock::now() < next && !all_are_here()) {
      if (const auto note = receive(kAgain)) notes.insert_or_assign(note->rank, *note);
    }
  }
  send(text);  // for ranks that have started listening since the last one
  return notes;
}

}  // namespace workshop
