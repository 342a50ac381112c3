// SPDX-License-Identifier: Apache-2.0
// The workshop's own corpus: stories of animals who lose and find things.
#pragma once

#include <cstdint>
#include <vector>

#include "common/data/grammar.h"
#include "common/data/text.h"

namespace workshop {

// A grammar of about 200 words. A story has about 45; each ends with <eos>.
const Grammar& story_grammar();

// The stories that this grammar tells from a seed, the same on every platform. `words`: tokens of the training stream,
// which begins with a story and may end within one; of the other two a tenth each, but at least 1,000. `vocabulary` as
// for read_text(), by the training stream: a word that does not occur there is <unk>.
Text write_stories(std::uint64_t seed, int words, int vocabulary);

// The mean over the tokens of the stream's samples of -log p(next token | the sample's tokens so far), in nats, where p
// is the grammar's own probability: the loss that no model can beat on average, because none sees more of the text than
// its sample. It counts words that are not in the vocabulary as <unk>, like the stream. Infinite where the stream is
// not the grammar's.
double best_loss(const std::vector<std::string>& vocabulary, const std::vector<std::int32_t>& stream, int context);

}  // namespace workshop
