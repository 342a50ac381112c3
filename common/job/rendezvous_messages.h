// SPDX-License-Identifier: Apache-2.0
// What ranks that meet without MPI say to each other. Rank 0 sends a challenge, the other rank its hello, rank 0 an
// answer. Hello and answer prove that their sender knows the job's key, for this conversation alone: each proof covers
// what the other side has just drawn at random. Strangers learn nothing from them, and can forge none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace workshop {

using Nonce = std::array<std::uint8_t, 16>;
Nonce make_nonce();

constexpr std::size_t kChallengeSize = 24, kHelloSize = 64, kAnswerSize = 48;  // the answer's text comes after it
constexpr std::size_t kLongestAnswer = 1 << 16;

// Of rank 0, with the nonce that a hello is to prove something of.
std::string make_challenge(const Nonce& nonce);
std::optional<Nonce> read_challenge(std::string_view bytes);

struct Hello {
  int rank, world;
  Nonce nonce;  // for the answer to prove something of
};
std::string make_hello(const std::string& key, const Nonce& challenge, const Hello& hello);
// Nothing if it is not whole, or its sender does not know the key.
std::optional<Hello> read_hello(const std::string& key, const Nonce& challenge, std::string_view bytes);

// False once nothing that follows can make a hello of it.
bool may_become_hello(std::string_view begun);

struct Answer {
  bool met;
  std::string text;  // the message if the ranks have met, else why they have not
};
std::string make_answer(const std::string& key, const Nonce& nonce, const Answer& answer);
// How long the text is that follows the first kAnswerSize bytes; nothing if they do not begin an answer.
std::optional<std::size_t> answer_text_size(std::string_view begun);
// Nothing if it is not whole, or its sender does not know the key.
std::optional<Answer> read_answer(const std::string& key, const Nonce& nonce, std::string_view bytes);

}  // namespace workshop
