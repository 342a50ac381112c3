// SPDX-License-Identifier: Apache-2.0
#include "common/job/rendezvous_messages.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "common/job/hmac.h"

namespace workshop {
namespace {

constexpr char kMagic[8] = {'w', 's', '-', 'm', 'e', 'e', 't', '2'};

// Messages are sent as they are in memory, because the ranks of a job run the same program on machines of one kind.
struct ChallengeBytes {
  char magic[8];
  Nonce nonce;
};
struct HelloBytes {
  char magic[8];
  std::int32_t rank, world;
  Nonce nonce;
  Proof proof;
};
struct AnswerBytes {
  char magic[8];
  std::uint32_t met, size;
  Proof proof;
};
static_assert(sizeof(ChallengeBytes) == kChallengeSize);
static_assert(sizeof(HelloBytes) == kHelloSize);
static_assert(sizeof(AnswerBytes) == kAnswerSize);

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <typename T>
T with_magic() {
  T message{};
  std::memcpy(message.magic, kMagic, sizeof kMagic);
  return message;
}

// Returns the message at the beginning of `bytes`, or nothing if they are too short or have the wrong magic.
template <typename T>
std::optional<T> read(std::string_view bytes) {
  if (bytes.size() < sizeof(T) || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return std::nullopt;
  T message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

// Computes the proof of a message. It covers the speaker, so that no process accepts an echo of its own message.
template <typename T>
Proof prove(const std::string& key, const char* speaker, const Nonce& nonce, T message, std::string_view text = "") {
  message.proof = {};
  return hmac_sha256(key, speaker + bytes_of(nonce) + bytes_of(message) + std::string(text));
}

}  // namespace

Nonce make_nonce() {
  std::random_device random;
  Nonce nonce;
  for (std::uint8_t& byte : nonce) byte = static_cast<std::uint8_t>(random());
  return nonce;
}

std::string make_challenge(const Nonce& nonce) {
  auto message = with_magic<ChallengeBytes>();
  message.nonce = nonce;
  return bytes_of(message);
}

std::optional<Nonce> read_challenge(std::string_view bytes) {
  const auto message = read<ChallengeBytes>(bytes);
  if (!message || bytes.size() != sizeof *message) return std::nullopt;
  return message->nonce;
}

std::string make_hello(const std::string& key, const Nonce& challenge, const Hello& hello) {
  auto message = with_magic<HelloBytes>();
  message.rank = hello.rank;
  message.world = hello.world;
  message.nonce = hello.nonce;
  message.proof = prove(key, "rank", challenge, message);
  return bytes_of(message);
}

std::optional<Hello> read_hello(const std::string& key, const Nonce& challenge, std::string_view bytes) {
  const auto message = read<HelloBytes>(bytes);
  if (!message || bytes.size() != sizeof *message) return std::nullopt;
  if (!equal_in_constant_time(message->proof, prove(key, "rank", challenge, *message))) return std::nullopt;
  return Hello{message->rank, message->world, message->nonce};
}

bool may_become_hello(std::string_view begun) {
  return begun.size() <= kHelloSize && std::memcmp(begun.data(), kMagic, std::min(sizeof kMagic, begun.size())) == 0;
}

std::string make_answer(const std::string& key, const Nonce& nonce, const Answer& answer) {
  auto message = with_magic<AnswerBytes>();
  message.met = answer.met;
  message.size = static_cast<std::uint32_t>(answer.text.size());
  message.proof = prove(key, "rank 0", nonce, message, answer.text);
  return bytes_of(message) + answer.text;
}

std::optional<std::size_t> answer_text_size(std::string_view begun) {
  const auto message = read<AnswerBytes>(begun);
  if (!message || message->size > kLongestAnswer) return std::nullopt;
  return message->size;
}

std::optional<Answer> read_answer(const std::string& key, const Nonce& nonce, std::string_view bytes) {
  const auto message = read<AnswerBytes>(bytes);
  if (!message || bytes.size() != sizeof *message + message->size) return std::nullopt;
  const std::string_view text = bytes.substr(sizeof *message);
  if (!equal_in_constant_time(message->proof, prove(key, "rank 0", nonce, *message, text))) return std::nullopt;
  return Answer{message->met == 1, std::string(text)};
}

}  // namespace workshop
