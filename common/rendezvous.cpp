#include "common/rendezvous.h"

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

namespace workshop {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What a rank says when it comes, and how rank 0 answers; a text of `size` bytes follows the answer. The ranks of a job
// run the same program on machines of one kind, so that memory is sent as it is.
constexpr char kMagic[8] = {'w', 's', '-', 'm', 'e', 'e', 't', '1'};
struct Hello {
  char magic[8];
  std::int32_t rank, world;
  char job[112];
};
enum Verdict : std::int32_t { kMet, kFailedToMeet };
struct Answer {
  char magic[8];
  Verdict verdict;
  std::int32_t size;
};
constexpr std::int32_t kLongest = 1 << 16;  // answer that is believed to be one

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

Hello hello_of(const std::string& job, int rank, int world) {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.rank = rank;
  hello.world = world;
  // The end of a long name tells more than its beginning.
  const std::size_t length = std::min(job.size(), sizeof hello.job);
  std::memcpy(hello.job, job.data() + job.size() - length, length);
  return hello;
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

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void send_answer(int fd, Verdict verdict, const std::string& text) {
  Answer answer{{}, verdict, static_cast<std::int32_t>(text.size())};
  std::memcpy(answer.magic, kMagic, sizeof kMagic);
  send_all(fd, std::string(bytes_of(answer)) + text);  // who has gone meanwhile needs no answer
}

// ---- rank 0 --------------------------------------------------------------------------------------------------------

// Listens on all addresses of this node: MASTER_ADDR may be a name that means another one here than elsewhere.
Socket listen_on(const MeetingPoint& point) {
  const auto start = Clock::now();
  for (;;) {
    Socket listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool v6 = listener >= 0;
    if (!v6) listener = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1, off = 0;
    // What is left of the connections of the job before on this port does not matter.
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
      throw MeetingFailed("rank 0 cannot listen on port " + std::to_string(point.port) + ": " + std::strerror(error) +
                          (error == EADDRINUSE ? "; another job uses it, or another process has rank 0 too" : ""));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

// A connection to rank 0. It is a rank's once its hello is complete; until then anybody may be at its other end.
struct Guest {
  Socket socket;
  std::string received;
  int rank = -1;
};

class Host {
 public:
  Host(const MeetingPoint& point, const std::string& job, int world)
      : point_(point), expected_(hello_of(job, 0, world)), listener_(listen_on(point)) {}

  // Waits until all ranks are here; tells them `message`, or why not all are.
  void gather(const std::string& message) {
    try {
      const auto deadline = Clock::now() + std::chrono::seconds(point_.seconds);
      while (!missing().empty()) wait(deadline);
    } catch (const MeetingFailed& failure) {
      answer_all(kFailedToMeet, failure.what());
      throw;
    }
    answer_all(kMet, message);
  }

 private:
  void wait(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) give_up();
    std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
    for (const auto& guest : guests_) waiting.push_back({guest->socket, POLLIN, 0});
    if (poll(waiting.data(), waiting.size(), static_cast<int>(std::min<long>(left, 1000))) <= 0) return;
    for (std::size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0 && !listen_to(*guests_[i - 1])) guests_[i - 1].reset();
    }
    std::erase(guests_, nullptr);
    if (waiting[0].revents == 0) return;
    Socket guest(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (guest >= 0) guests_.push_back(std::make_unique<Guest>(Guest{std::move(guest), "", -1}));
  }

  // Reads what has come from a guest; false if it is to be turned out.
  bool listen_to(Guest& guest) {
    char buffer[sizeof(Hello)];
    const ssize_t count =
        recv(guest.socket, buffer, sizeof buffer - std::min(sizeof buffer, guest.received.size()), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (guest.rank >= 0) throw MeetingFailed("rank " + std::to_string(guest.rank) + " ended before all had come");
    if (count <= 0) return false;
    guest.received.append(buffer, static_cast<std::size_t>(count));
    const std::size_t begun = std::min(sizeof kMagic, guest.received.size());
    if (std::memcmp(guest.received.data(), kMagic, begun) != 0) return false;  // a stranger: a port scanner, a browser
    if (guest.received.size() == sizeof(Hello)) return welcome(guest);
    return true;
  }

  bool welcome(Guest& guest) {
    Hello hello;
    std::memcpy(&hello, guest.received.data(), sizeof hello);
    const bool named = hello.job[0] != '\0' && expected_.job[0] != '\0';
    if (named && std::memcmp(hello.job, expected_.job, sizeof hello.job) != 0) {
      send_answer(guest.socket, kFailedToMeet,
                  "another job meets at " + place(point_) + "; each job needs a MASTER_PORT of its own");
      return false;
    }
    const std::string rank = std::to_string(hello.rank);
    if (hello.world != expected_.world) {
      guest.rank = hello.rank;  // so that it is told too
      throw MeetingFailed("rank " + rank + " says that WORLD_SIZE is " + std::to_string(hello.world) +
                          ", rank 0 that it is " + std::to_string(expected_.world));
    }
    if (hello.rank < 1 || hello.rank >= hello.world) return false;
    const auto same = [&](const auto& other) { return other != nullptr && other->rank == hello.rank; };
    const bool twice = std::any_of(guests_.begin(), guests_.end(), same);
    guest.rank = hello.rank;
    if (twice)
      throw MeetingFailed("two processes say that they are rank " + rank + " of " + std::to_string(hello.world));
    return true;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < expected_.world; ++rank) {
      const auto is_it = [rank](const auto& guest) { return guest->rank == rank; };
      if (std::none_of(guests_.begin(), guests_.end(), is_it)) ranks.push_back(rank);
    }
    return ranks;
  }

  [[noreturn]] void give_up() const {
    constexpr std::size_t kNamed = 8;
    const std::vector<int> ranks = missing();
    std::string names;
    for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
      names += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    }
    if (ranks.size() > kNamed) names += ", …";
    const int world = expected_.world;
    throw MeetingFailed(std::to_string(world - static_cast<int>(ranks.size())) + " of " + std::to_string(world) +
                        " ranks came to " + place(point_) + " " + in_time(point_) + "; missing: " +
                        std::to_string(ranks.size()) + (ranks.size() == 1 ? ", rank " : ", ranks ") + names);
  }

  void answer_all(Verdict verdict, const std::string& text) const {
    for (const auto& guest : guests_) {
      if (guest != nullptr && guest->rank >= 0) send_answer(guest->socket, verdict, text);
    }
  }

  const MeetingPoint& point_;
  const Hello expected_;
  Socket listener_;
  std::vector<std::unique_ptr<Guest>> guests_;
};

// ---- the others ----------------------------------------------------------------------------------------------------

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

// Lets no call on this socket wait for longer.
void limit_waiting(int fd, Clock::duration left) {
  const long long us = std::max<long long>(1000, std::chrono::duration_cast<std::chrono::microseconds>(left).count());
  const timeval limit{static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // connect() too
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

// A client whose own port happens to be the one that it asks for, while nobody listens there, is connected to itself.
bool connected_to_itself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

// Tries once every address that the name has; sets `reason` where none answers.
Socket try_to_connect(const MeetingPoint& point, Clock::time_point deadline, std::string& reason) {
  AddressList addresses;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  if (const int error =
          getaddrinfo(point.address.c_str(), std::to_string(point.port).c_str(), &hints, &addresses.first)) {
    reason = gai_strerror(error);  // the name may only be on its way, as those of new containers are
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
      throw MeetingFailed("rank 0 is not to be found at MASTER_ADDR:MASTER_PORT, " + place(point) + ", " +
                          in_time(point) + ": " + reason);
    }
    std::this_thread::sleep_for(milliseconds(50));  // rank 0 may only be starting
  }
}

std::string ask(const MeetingPoint& point, const Hello& hello) {
  const Socket host = connect_to_host(point);
  // Rank 0 waits as long as this for the others and then says so; only who is no rank 0 keeps silent for longer.
  limit_waiting(host, std::chrono::seconds(point.seconds + 5));
  send_all(host, bytes_of(hello));
  Answer answer;
  const ssize_t count = recv(host, &answer, sizeof answer, MSG_WAITALL);
  if (count == 0 || (count < 0 && errno == ECONNRESET)) throw MeetingFailed("rank 0 ended before all had come");
  if (count != sizeof answer || std::memcmp(answer.magic, kMagic, sizeof kMagic) != 0 || answer.size < 0 ||
      answer.size > kLongest) {
    throw MeetingFailed("what listens at MASTER_ADDR:MASTER_PORT, " + place(point) + ", is not this job's rank 0");
  }
  std::string text(static_cast<std::size_t>(answer.size), '\0');
  if (recv(host, text.data(), text.size(), MSG_WAITALL) != answer.size) {
    throw MeetingFailed("rank 0 ended before all had come");
  }
  if (answer.verdict != kMet) throw MeetingFailed(text);
  return text;
}

}  // namespace

std::string meet(const MeetingPoint& point, const std::string& job, int rank, int world, const std::string& message) {
  if (rank > 0) return ask(point, hello_of(job, rank, world));
  Host(point, job, world).gather(message);
  return message;
}

}  // namespace workshop
