// SPDX-License-Identifier: Apache-2.0
// The workshop's own corpus: stories of animals who lose and find things.
#pragma once

#include <cstdint>
#include <vector>

#include "common/data/grammar.h"
#include "common/data/text.h"

namespace workshop {

// A grammar with 213 words, <eos> among them. A story has 60 of them on average and ends with <eos>.
const Grammar& story_grammar();

// Writes stories from a seed, the same on every platform: one after the other, for the training stream, then validation
// and test. `words`, at least 1, is the number of tokens of the training stream; the others have a tenth of that each,
// but at least 1,000. A stream begins with a story and may end within one. Vocabulary as in read_text(): `vocabulary`
// entries at most (0: all), and words that do not occur in the training stream are <unk> too.
Text write_stories(std::uint64_t seed, int words, int vocabulary);

// The mean over the tokens of the stream's samples (common/data/text.h) of -log p(next token | the sample's tokens so
// far), in nats, where p is the grammar's own probability: no model that sees `context` tokens can have a lower loss on
// average. A token 0 counts as any of the words that are not in the vocabulary. Infinite where the stream cannot have
// come from the grammar; NaN where it has no sample.
double best_loss(const std::vector<std::string>& vocabulary, const std::vector<std::int32_t>& stream, int context);

}  // namespace workshop
