// SPDX-License-Identifier: Apache-2.0
// The messages of ranks that meet without MPI. A sender without the key must not be believed, and a sender with the key
// may still send anything. So the input is tried as it is, and as a message with a valid proof.
#include <cstring>
#include <string>
#include <string_view>

#include "common/job/rendezvous_messages.h"
#include "tests/fuzz/harness.h"

namespace {

using namespace workshop;

const std::string kKey = "a secret\njob";
constexpr Nonce kNonce = {1, 2, 3};

void read_as_it_is(std::string_view input) {
  may_become_hello(input);
  read_challenge(input);
  answer_text_size(input);
  require(!read_hello(kKey, kNonce, input), "a hello without a proof");
  require(!read_answer(kKey, kNonce, input), "an answer without a proof");
}

// The first bytes of the input are the rank and the world size.
void read_hello_of(std::string_view input) {
  Hello said{0, 0, kNonce};
  if (input.size() < 8) return;
  std::memcpy(&said.rank, input.data(), 4);
  std::memcpy(&said.world, input.data() + 4, 4);
  const std::string bytes = make_hello(kKey, kNonce, said);
  for (std::size_t begun = 0; begun < bytes.size(); ++begun) {
    require(may_become_hello(bytes.substr(0, begun)), "a hello that is turned out");
    require(!read_hello(kKey, kNonce, bytes.substr(0, begun)), "half a hello");
  }
  const auto heard = read_hello(kKey, kNonce, bytes);
  require(heard && heard->rank == said.rank && heard->world == said.world, "another hello");
}

void read_answer_of(std::string_view input) {
  const bool met = !input.empty() && input[0] % 2 == 1;
  const std::string bytes = make_answer(kKey, kNonce, {met, std::string(input)});
  const auto size = answer_text_size(std::string_view(bytes).substr(0, kAnswerSize));
  require(size.has_value() == (input.size() <= kLongestAnswer) && size.value_or(input.size()) == input.size(),
          "another length");
  const auto heard = read_answer(kKey, kNonce, bytes);
  require(heard && heard->met == met && heard->text == input, "another answer");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  read_as_it_is(input);
  read_hello_of(input);
  read_answer_of(input);
  return 0;
}
