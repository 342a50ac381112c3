// SPDX-License-Identifier: Apache-2.0
// The messages of ranks that meet without MPI. Rank 0 sends a challenge, the other rank its hello, and rank 0 an
// answer. Hello and answer prove that their sender knows the job's key. A proof is valid only in this conversation,
// because it covers a nonce that the other side has just drawn at random. A stranger learns nothing from the messages
// and cannot forge them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace workshop {

using Nonce = std::array<std::uint8_t, 16>;
Nonce make_nonce();

constexpr std::size_t kChallengeSize = 24, kHelloSize = 64, kAnswerSize = 48;  // without the answer's text
constexpr std::size_t kLongestAnswer = 1 << 16;

// Makes rank 0's challenge. The proof in the hello must cover its nonce.
std::string make_challenge(const Nonce& nonce);
std::optional<Nonce> read_challenge(std::string_view bytes);

struct Hello {
  int rank, world;
  Nonce nonce;  // which the proof in the answer must cover
};
std::string make_hello(const std::string& key, const Nonce& challenge, const Hello& hello);
// Returns nothing if the hello is incomplete or its sender does not know the key.
std::optional<Hello> read_hello(const std::string& key, const Nonce& challenge, std::string_view bytes);

// Returns false if `begun` cannot be the beginning of a hello.
bool may_become_hello(std::string_view begun);

struct Answer {
  bool met;
  std::string text;  // rank 0's message if the ranks have met, else the reason why they have not
};
std::string make_answer(const std::string& key, const Nonce& nonce, const Answer& answer);
// Returns the size of the text that follows the first kAnswerSize bytes, or nothing if these do not begin an answer.
std::optional<std::size_t> answer_text_size(std::string_view begun);
// Returns nothing if the answer is incomplete or its sender does not know the key.
std::optional<Answer> read_answer(const std::string& key, const Nonce& nonce, std::string_view bytes);

}  // namespace workshop
