// SPDX-License-Identifier: Apache-2.0
#include "common/job/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/format.h"
#include "common/job/rendezvous_messages.h"

namespace workshop {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How many connections, in addition to the job's ranks, may be silent, and for how long.
constexpr std::size_t kStrangers = 256;
constexpr auto kHelloTimeout = std::chrono::seconds(5);

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  operator int() const { return fd_; }

 private:
  int fd_;
};

std::string place(const MeetingPoint& point) { return point.address + ":" + std::to_string(point.port); }

std::string in_time(const MeetingPoint& point) {
  return "within " + std::to_string(point.seconds) + " s (WORKSHOP_JOIN_TIMEOUT)";
}

MeetingFailed not_rank_0(const MeetingPoint& point) {
  return MeetingFailed(
      "the process that listens at MASTER_ADDR:MASTER_PORT, " + place(point) +
      ", is not this job's rank 0; each job needs its own MASTER_PORT, and all its ranks need the same "
      "WORKSHOP_JOB_TOKEN");
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// ---- rank 0 --------------------------------------------------------------------------------------------------------

// Listens on all addresses of this node, because MASTER_ADDR may be a name that has a different address here than on
// other nodes.
Socket listen_on(const MeetingPoint& point) {
  const auto start = Clock::now();
  for (;;) {
    Socket listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool v6 = listener >= 0;
    if (!v6) listener = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1, off = 0;
    // Ignores the remains of an earlier job's connections on this port.
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (v6) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(point.port));
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_port = any6.sin6_port;
    const auto* any = v6 ? reinterpret_cast<const sockaddr*>(&any6) : reinterpret_cast<const sockaddr*>(&any4);
    if (bind(listener, any, v6 ? sizeof any6 : sizeof any4) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
    const int error = errno;
    if (error != EADDRINUSE || Clock::now() - start > std::chrono::seconds(2)) {
      throw MeetingFailed(
          formatted("rank 0 cannot listen on port %d: %s%s", point.port, std::strerror(error),
                    error == EADDRINUSE ? "; another job uses it, or another process is rank 0 too" : ""));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

// A connection to rank 0. The peer is a rank once its hello is complete; until then it may be anyone.
struct Guest {
  Socket socket;
  Nonce challenge;
  Clock::time_point came;
  std::string received;
  int rank = -1;
  Nonce nonce{};  // the rank's
};

class Host {
 public:
  Host(const MeetingPoint& point, const std::string& key, int world)
      : point_(point), key_(key), world_(world), listener_(listen_on(point)) {}

  // Waits until all ranks have arrived and sends them `message`. If not all arrive, sends the reason and throws.
  void gather(const std::string& message) {
    try {
      const auto deadline = Clock::now() + std::chrono::seconds(point_.seconds);
      while (!missing().empty()) wait(deadline);
    } catch (const MeetingFailed& failure) {
      answer_all({false, failure.what()});
      throw;
    }
    answer_all({true, message});
  }

 private:
  void wait(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) give_up();
    std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
    for (const auto& guest : guests_) waiting.push_back({guest->socket, POLLIN, 0});
    const int ready = poll(waiting.data(), waiting.size(), static_cast<int>(std::min<long>(left, 1000)));
    for (std::size_t i = 1; ready > 0 && i < waiting.size(); ++i) {
      if (waiting[i].revents != 0 && !listen_to(*guests_[i - 1])) guests_[i - 1].reset();
    }
    std::erase(guests_, nullptr);
    std::erase_if(guests_, [now = Clock::now()](const auto& guest) {
      return guest->rank < 0 && now - guest->came > kHelloTimeout;
    });
    if (ready > 0 && waiting[0].revents != 0) let_in();
  }

  void let_in() {
    Socket socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket < 0) {
      const int error = errno;
      if (error != EMFILE && error != ENFILE) return;  // the peer has disconnected
      if (turn_out_oldest()) return;
      throw MeetingFailed("rank 0 cannot accept connections: " + std::string(std::strerror(error)) + " (ulimit -n)");
    }
    const Nonce challenge = make_nonce();
    const std::string text = make_challenge(challenge);
    send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // a new connection has room for it
    guests_.push_back(std::make_unique<Guest>(Guest{std::move(socket), challenge, Clock::now(), "", -1}));
    const auto silent =
        std::count_if(guests_.begin(), guests_.end(), [](const auto& guest) { return guest->rank < 0; });
    if (static_cast<std::size_t>(silent) > kStrangers + static_cast<std::size_t>(world_)) turn_out_oldest();
  }

  // Disconnects the oldest guest that has not identified itself; returns false if all have.
  bool turn_out_oldest() {
    const auto oldest = std::find_if(guests_.begin(), guests_.end(), [](const auto& guest) { return guest->rank < 0; });
    if (oldest == guests_.end()) return false;
    guests_.erase(oldest);
    return true;
  }

  // Reads what a guest has sent; returns false if the guest must be disconnected.
  bool listen_to(Guest& guest) {
    char buffer[kHelloSize];
    const ssize_t count = recv(guest.socket, buffer, kHelloSize - guest.received.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (guest.rank >= 0) throw MeetingFailed(formatted("rank %d ended before all ranks arrived", guest.rank));
    if (count <= 0) return false;
    guest.received.append(buffer, static_cast<std::size_t>(count));
    if (!may_become_hello(guest.received)) return false;  // a stranger, such as a port scanner or a browser
    return guest.received.size() < kHelloSize || welcome(guest);
  }

  bool welcome(Guest& guest) {
    const auto hello = read_hello(key_, guest.challenge, guest.received);
    if (!hello) {
      ++refused_;
      // A rank of another job cannot verify this answer, and so learns that this is not its rank 0.
      answer(guest, {false, ""});
      return false;
    }
    if (hello->rank < 1 || hello->rank >= hello->world) return false;
    const bool twice =
        std::any_of(guests_.begin(), guests_.end(), [&](auto& other) { return other && other->rank == hello->rank; });
    guest.rank = hello->rank;  // set before the checks, so that this guest gets an answer too
    guest.nonce = hello->nonce;
    if (hello->world != world_) {
      throw MeetingFailed(formatted("rank %d has WORLD_SIZE %d, but rank 0 has %d", hello->rank, hello->world, world_));
    }
    if (twice) {
      throw MeetingFailed(formatted("two processes claim to be rank %d of %d", hello->rank, hello->world));
    }
    return true;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < world_; ++rank) {
      const auto is_it = [rank](const auto& guest) { return guest->rank == rank; };
      if (std::none_of(guests_.begin(), guests_.end(), is_it)) ranks.push_back(rank);
    }
    return ranks;
  }

  [[noreturn]] void give_up() const {
    const std::vector<int> ranks = missing();
    const int absent = static_cast<int>(ranks.size());
    std::string text = formatted("%d of %d ranks reached %s %s; missing: %d, %s", world_ - absent, world_,
                                 place(point_).c_str(), in_time(point_).c_str(), absent, list_of_ranks(ranks).c_str());
    if (refused_ > 0) text += "; disconnected without this job's WORKSHOP_JOB_TOKEN: " + std::to_string(refused_);
    throw MeetingFailed(text);
  }

  void answer(const Guest& guest, const Answer& answer) const {
    // Ignores errors: a guest that has disconnected needs no answer.
    send_all(guest.socket, make_answer(key_, guest.nonce, answer));
  }

  void answer_all(const Answer& text) const {
    for (const auto& guest : guests_) {
      if (guest != nullptr && guest->rank >= 0) answer(*guest, text);
    }
  }

  const MeetingPoint& point_;
  const std::string& key_;
  const int world_;
  Socket listener_;
  std::vector<std::unique_ptr<Guest>> guests_;  // in order of arrival
  int refused_ = 0;
};

// ---- the other ranks -----------------------------------------------------------------------------------------------

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

// Limits how long each call on this socket may wait.
void limit_waiting(int fd, Clock::duration left) {
  const long long us = std::max<long long>(1000, std::chrono::duration_cast<std::chrono::microseconds>(left).count());
  const timeval limit{static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // applies to connect() too
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

// A client is connected to itself if no rank listens on the port that it connects to, and the system happens to give it
// the same port.
bool connected_to_itself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

// Tries each address of the name once. If none answers, sets `reason` and returns no socket.
Socket try_to_connect(const MeetingPoint& point, Clock::time_point deadline, std::string& reason) {
  AddressList addresses;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  if (const int error =
          getaddrinfo(point.address.c_str(), std::to_string(point.port).c_str(), &hints, &addresses.first)) {
    reason = gai_strerror(error);  // may be temporary: names of new containers can take a while to appear
    return Socket();
  }
  for (const addrinfo* to = addresses.first; to != nullptr; to = to->ai_next) {
    Socket connection(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    limit_waiting(connection, deadline - Clock::now());
    if (connect(connection, to->ai_addr, to->ai_addrlen) == 0) {
      if (!connected_to_itself(connection)) return connection;
      errno = ECONNREFUSED;
    }
    reason = std::strerror(errno == EINPROGRESS ? ETIMEDOUT : errno);
  }
  return Socket();
}

Socket connect_to_host(const MeetingPoint& point) {
  const auto deadline = Clock::now() + std::chrono::seconds(point.seconds);
  std::string reason;
  for (;;) {
    Socket connection = try_to_connect(point, deadline, reason);
    if (connection >= 0) return connection;
    if (Clock::now() >= deadline) {
      throw MeetingFailed("rank 0 cannot be reached at MASTER_ADDR:MASTER_PORT, " + place(point) + ", " +
                          in_time(point) + ": " + reason);
    }
    std::this_thread::sleep_for(milliseconds(50));  // rank 0 may still be starting
  }
}

// Rank 0 has closed the connection.
struct Closed : MeetingFailed {
  Closed() : MeetingFailed("rank 0 ended before all ranks arrived") {}
};

// Receives the next `size` bytes from rank 0.
std::string receive(int host, std::size_t size, const MeetingPoint& point) {
  std::string bytes(size, '\0');
  const ssize_t count = size == 0 ? 0 : recv(host, bytes.data(), size, MSG_WAITALL);
  if (count == static_cast<ssize_t>(size)) return bytes;
  if (count > 0) throw not_rank_0(point);
  if (count < 0 && errno == EAGAIN) {
    throw MeetingFailed("rank 0 at MASTER_ADDR:MASTER_PORT, " + place(point) + ", did not answer " + in_time(point));
  }
  throw Closed();
}

std::string ask(int host, const MeetingPoint& point, const std::string& key, int rank, int world) {
  // Rank 0 waits for `point.seconds` and then reports which ranks are missing. If it is silent for longer, it is
  // stopped.
  limit_waiting(host, std::chrono::seconds(point.seconds + 5));
  const auto challenge = read_challenge(receive(host, kChallengeSize, point));
  if (!challenge) throw not_rank_0(point);
  const Hello hello{rank, world, make_nonce()};
  send_all(host, make_hello(key, *challenge, hello));
  std::string bytes = receive(host, kAnswerSize, point);
  const auto size = answer_text_size(bytes);
  if (!size) throw not_rank_0(point);
  bytes += receive(host, *size, point);
  const auto answer = read_answer(key, hello.nonce, bytes);
  if (!answer) throw not_rank_0(point);
  if (!answer->met) throw MeetingFailed(answer->text);
  return answer->text;
}

std::string ask(const MeetingPoint& point, const std::string& key, int rank, int world) {
  Socket host = connect_to_host(point);
  for (;;) {
    try {
      return ask(host, point, key, rank, world);
    } catch (const Closed&) {
      // Among many connections, rank 0 may have taken this rank for a silent stranger. Then rank 0 is still there.
      std::string reason;
      host = try_to_connect(point, Clock::now() + std::chrono::seconds(1), reason);
      if (host < 0) throw;
    }
  }
}

}  // namespace

std::string meet(const MeetingPoint& point, const std::string& key, int rank, int world, const std::string& message) {
  if (rank > 0) return ask(point, key, rank, world);
  Host(point, key, world).gather(message);
  return message;
}

}  // namespace workshop
