// SPDX-License-Identifier: Apache-2.0
#include "common/data/stories.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace workshop {
namespace {

const std::vector<Slot> kSlots = {
    {"hero",
     {"name", "animal", "he", "his"},
     {{"Mina", "hare", "she", "her"},
      {"Otto", "bear", "he", "his"},
      {"Pia", "owl", "she", "her"},
      {"Rufus", "fox", "he", "his"},
      {"Tilda", "otter", "she", "her"},
      {"Hugo", "mole", "he", "his"},
      {"Nora", "squirrel", "she", "her"},
      {"Emil", "hedgehog", "he", "his"}}},
    {"friend",
     {"name", "animal", "he", "his", "him"},
     {{"Wanda", "goose", "she", "her", "her"},
      {"Theo", "badger", "he", "his", "him"},
      {"Greta", "duck", "she", "her", "her"},
      {"Bruno", "beaver", "he", "his", "him"},
      {"Luisa", "mouse", "she", "her", "her"},
      {"Anton", "frog", "he", "his", "him"}}},
    {"thing",
     {"name", "look", "used"},
     {{"bell", "silver/tiny", "rang"},
      {"flute", "wooden/slender", "played"},
      {"drum", "wooden/painted", "played"},
      {"letter", "folded/secret", "read"},
      {"book", "heavy/dusty", "read"},
      {"map", "folded/faded", "studied"},
      {"lantern", "brass/paper", "lit"},
      {"kite", "red/paper", "flew"},
      {"key", "rusty/brass", "polished"},
      {"boat", "tiny/painted", "sailed"},
      {"ball", "red/striped", "bounced"},
      {"hat", "striped/velvet", "wore"}}},
    {"place",
     {"name", "spots"},
     {{"river", "reeds/pebbles"},
      {"forest", "ferns/roots"},
      {"hill", "rocks/thistles"},
      {"meadow", "daisies/poppies"},
      {"lake", "lilies/shells"},
      {"garden", "roses/beans"},
      {"mill", "sacks/barrels"},
      {"market", "baskets/stalls"}}},
    {"weather",
     {"name", "noun", "did"},
     {{"rainy", "rain", "fell"},
      {"windy", "wind", "sang"},
      {"snowy", "snow", "glittered"},
      {"sunny", "sun", "shone"},
      {"misty", "mist", "drifted"}}},
    {"feeling", {"name"}, {{"lonely"}, {"bored"}, {"sad"}, {"restless"}, {"grumpy"}}},
    {"kind", {"name"}, {{"little"}, {"clever"}, {"brave"}, {"gentle"}, {"shy"}}},
    {"glad", {"name"}, {{"glad"}, {"happy"}, {"proud"}}},
    {"daytime", {"name"}, {{"morning"}, {"afternoon"}, {"day"}}},
    {"later", {"name"}, {{"noon"}, {"dusk"}, {"supper"}, {"midnight"}}},
    {"softly", {"name"}, {{"softly"}, {"merrily"}, {"quietly"}}},
    {"walked", {"name"}, {{"walked"}, {"ran"}, {"wandered"}, {"hopped"}}},
    {"spied", {"name"}, {{"spied"}, {"found"}, {"discovered"}}},
    {"called", {"name"}, {{"called"}, {"said"}, {"laughed"}, {"whispered"}}},
    {"pocket", {"name"}, {{"pocket"}, {"bag"}, {"den"}}},
    {"dish", {"name", "food"}, {{"pumpkin", "soup"}, {"apple", "pie"}, {"honey", "bread"}, {"nut", "cake"}}},
};

const std::vector<Rule> kRules = {
    {"story", 2, "one WEATHER DAYTIME HERO the hero.animal WALKED to the PLACE .", "find"},
    {"story", 2, "one WEATHER DAYTIME HERO the hero.animal WALKED to the PLACE .", "weather"},
    {"story", 3, "HERO the KIND hero.animal lived near the PLACE .", "habit"},
    {"story", 3, "HERO the KIND hero.animal was FEELING .", "feeling"},

    {"weather", 1, "the weather.noun weather.did SOFTLY .", "find"},
    {"weather", 1, "the weather.noun weather.did , and hero.he sang a song .", "find"},
    {"habit", 1, "every DAYTIME hero.he looked for treasure there .", "find"},
    {"feeling", 1, "to feel less feeling , hero.he WALKED to the PLACE .", "find"},

    {"find", 3, "hero.he SPIED a THING.look thing among the place.spots .", "found"},
    {"find", 2, "there lay a THING.look thing among the place.spots .", "found"},
    {"find", 3, "there FRIEND the friend.animal was looking for friend.his THING .", "search"},

    {"found", 3, "hero.he picked it up and thing.used it SOFTLY .", "picked up"},
    {"found", 2, "then FRIEND the friend.animal came by .", "ask"},
    {"picked up", 2, "then hero.he put the thing down and went home .", "end"},
    {"picked up", 1, "then hero.he put the thing in hero.his POCKET .", "end"},
    {"picked up", 2, "then FRIEND the friend.animal came by .", "ask"},

    {"ask", 1, "\" is that your thing ? \" asked friend .", "answer"},
    {"answer", 1, "\" yes , but you may use it , \" CALLED hero .", "share"},
    {"answer", 1, "\" no , i found it here , \" CALLED hero .", "give"},
    {"share", 1, "they thing.used the thing together until LATER .", "farewell"},
    {"give", 1, "so hero gave friend.him the thing .", "thanks"},

    {"search", 1, "hero.he looked among the place.spots and found the thing .", "thanks"},
    {"thanks", 1, "\" thank you , hero , \" CALLED friend .", "farewell"},
    {"thanks", 1, "friend was so GLAD that friend.he thing.used it until LATER .", "end"},

    {"farewell", 1, "they went home and ate DISH dish.food .", "end"},
    {"farewell", 1, "hero and friend were friends from that day on .", "end"},
    {"farewell", 1, "<eos>", "story"},
    {"end", 1, "<eos>", "story"},
};

}  // namespace

const Grammar& story_grammar() {
  static const Grammar grammar(kSlots, kRules);
  return grammar;
}

Text write_stories(std::uint64_t seed, int words, int vocabulary) {
  const Grammar& grammar = story_grammar();
  std::mt19937_64 random(seed);
  const int others = std::max(words / 10, 1000);
  Text text;
  text.vocabulary = grammar.words();
  text.train = grammar.write(words, random);
  text.valid = grammar.write(others, random);
  text.test = grammar.write(others, random);
  keep_most_frequent(text, vocabulary);
  return text;
}

double best_loss(const std::vector<std::string>& vocabulary, const std::vector<std::int32_t>& stream, int context) {
  Reader reader(story_grammar(), vocabulary);
  const std::size_t samples = stream.empty() ? 0 : (stream.size() - 1) / context;
  double sum = 0;
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::int32_t* tokens = stream.data() + sample * context;
    reader.start();
    reader.read(tokens[0]);
    for (int i = 1; i <= context; ++i) sum -= std::log(reader.read(tokens[i]));
  }
  return sum / static_cast<double>(samples * context);
}

}  // namespace workshop
