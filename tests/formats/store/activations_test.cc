#include "formats/store/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/layout/half.h"
#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;
using made::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void put_all(ActivationsWriter& writer, const ActivationsSettings& settings) {
  for (int sample = 0; sample < settings.samples; ++sample) {
    for (int layer = 0; layer < settings.model.shape.layers; ++layer) {
      if (!writer.has(sample, layer)) writer.put(sample, layer, made::shard(settings, sample, layer));
    }
  }
}

void write_all(const std::string& folder, const ActivationsSettings& settings) {
  ActivationsWriter writer(folder, settings, false, false);
  put_all(writer, settings);
  writer.finish();
}

std::string error_of(const std::function<void()>& body, ErrorKind kind = ErrorKind::bad_input) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Activations, RoundTrip) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  write_all(folder / "a.acts", settings);
  const ActivationsReader reader(folder / "a.acts");
  EXPECT_EQ(reader.settings().text_name, settings.text_name);
  EXPECT_EQ(reader.settings().offsets, settings.offsets);
  EXPECT_EQ(reader.settings().sample_sha256, settings.sample_sha256);
  EXPECT_EQ(reader.settings().model.rope, settings.model.rope);
  EXPECT_EQ(reader.settings().model.shape, settings.model.shape);
  EXPECT_EQ(reader.shards().size(), 6u);
  for (int sample = 0; sample < 2; ++sample) {
    for (int layer = 0; layer < 3; ++layer) {
      const Shard read = reader.read(sample, layer), wanted = made::shard(settings, sample, layer);
      EXPECT_EQ(read.key, wanted.key);
      EXPECT_EQ(read.value, wanted.value);
      EXPECT_EQ(read.key_grad, wanted.key_grad);
      EXPECT_EQ(read.value_grad, wanted.value_grad);
    }
  }
  EXPECT_THAT(validate_activations(folder / "a.acts"), IsEmpty());
}

TEST(Activations, BfloatHalvesTheBytesAndRounds) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings(1, 1, 64);
  settings.acts_dtype = "bf16";
  ActivationsWriter writer(folder / "a", settings, false, false);
  Shard shard = made::shard(settings, 0, 0);
  for (float& x : shard.key) x = 0.1f + x / 3;
  writer.put(0, 0, shard);
  writer.finish();
  const Shard read = ActivationsReader(folder / "a").read(0, 0);
  for (size_t i = 0; i < shard.key.size(); ++i) {
    EXPECT_EQ(read.key[i], bfloat16_to_float(float_to_bfloat16(shard.key[i])));
  }
  EXPECT_LT(fs::file_size(folder / "a/s0000/l0000.h5"), 64 * 28 * 4 * 2u);
}

TEST(Activations, WithoutFisherThereAreNoGradients) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings();
  settings.fisher = false;
  write_all(folder / "a", settings);
  const Shard read = ActivationsReader(folder / "a").read(1, 2);
  EXPECT_FALSE(read.key.empty());
  EXPECT_TRUE(read.key_grad.empty());
  EXPECT_TRUE(read.value_grad.empty());
}

TEST(Activations, F50ShardsAreNamedByTheModelsLayerInNumericOrder) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings(1, 12, 2);
  for (int i = 0; i < 12; ++i) settings.layer_index[static_cast<size_t>(i)] = i < 10 ? i : i * 10;
  write_all(folder / "a", settings);
  EXPECT_TRUE(fs::exists(folder / "a/s0000/l0110.h5"));
  const ActivationsReader reader(folder / "a");
  for (int layer = 0; layer < 12; ++layer) {
    EXPECT_EQ(reader.read(0, layer).key, made::shard(settings, 0, layer).key) << layer;
  }
}

TEST(Activations, F45KilledRunResumesToTheSameBytes) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  write_all(folder / "whole", settings);
  {
    ActivationsWriter writer(folder / "killed", settings, false, false);
    writer.put(0, 0, made::shard(settings, 0, 0));
    writer.put(0, 1, made::shard(settings, 0, 1));
  }  // no finish(), as after kill -9; and what a kill in the middle of a shard and of a journal line leaves:
  write_text_file(folder / "killed/s0000/l0002.h5.partial", "half");
  write_text_file(folder / "killed/s0000/l0001.h5", "half");
  write_text_file(folder / "killed/manifest.journal",
                  read_text_file(folder / "killed/manifest.journal") + "s0001/l0000.h5 31");
  EXPECT_THAT(error_of([&] { ActivationsReader reader(folder / "killed"); }),
              AllOf(HasSubstr("5 of 6 shards missing or incomplete"), HasSubstr("s0000/l0001.h5"),
                    HasSubstr("--resume"), Not(HasSubstr("s0000/l0000.h5"))));
  ActivationsWriter writer(folder / "killed", settings, true, false);
  EXPECT_TRUE(writer.has(0, 0));
  EXPECT_FALSE(writer.has(0, 1));
  EXPECT_THAT(writer.dropped(), ElementsAre(HasSubstr("s0000/l0001.h5: truncated or changed")));
  EXPECT_FALSE(writer.has(1, 0));
  put_all(writer, settings);
  writer.finish();
  size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder / "killed")) {
    if (!file.is_regular_file()) continue;
    ++files;
    const std::string name = fs::relative(file.path(), folder / "killed").string();
    EXPECT_EQ(read_text_file(file.path().string()), read_text_file(folder / ("whole/" + name))) << name;
  }
  EXPECT_EQ(files, 7u) << "six shards and the manifest";
  EXPECT_EQ(ActivationsReader(folder / "killed").content_sha256(),
            ActivationsReader(folder / "whole").content_sha256());
}

TEST(Activations, F47ResumeUnderOtherSettingsIsRefusedFieldByField) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  write_all(folder / "a", settings);
  ActivationsSettings other = settings;
  other.seqlen = 7;
  other.model.weights_sha256 = "beef";
  other.offsets[1] = 108;
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "a", other, true, false); }),
              AllOf(HasSubstr("seqlen: 5 there, 7 now"), HasSubstr("model.weights_sha256"), HasSubstr("\"beef\" now"),
                    HasSubstr("offsets[1]: 107 there, 108 now"), HasSubstr("--force"), Not(HasSubstr("seed"))));
  EXPECT_EQ(ActivationsReader(folder / "a").settings().seqlen, 5) << "nothing was touched";
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "a", settings, false, false); }), HasSubstr("--resume"));
  ActivationsSettings renamed = settings;
  renamed.model.name = "moved elsewhere";
  renamed.text_name = "renamed.txt";
  EXPECT_TRUE(ActivationsWriter(folder / "a", renamed, true, false).has(1, 2)) << "names are for people";
  ActivationsWriter forced(folder / "a", other, true, true);
  EXPECT_FALSE(forced.has(0, 0));
  EXPECT_FALSE(fs::exists(folder / "a/s0000/l0000.h5"));
}

TEST(Activations, F47ADecodersConfigurationDecidesToo) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings();
  settings.decoder_json = "";
  write_all(folder / "old", settings);  // a folder that says nothing of it
  settings.decoder_json = R"({"norm_epsilon":1e-05,"hidden":48})";
  write_all(folder / "a", settings);
  EXPECT_EQ(ActivationsReader(folder / "a").settings().decoder_json, settings.decoder_json);
  EXPECT_NE(ActivationsReader(folder / "a").content_sha256(), ActivationsReader(folder / "old").content_sha256());
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "old", settings, true, false); }), HasSubstr("decoder: null"));
  settings.decoder_json = R"({"norm_epsilon":1e-06,"hidden":48})";
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "a", settings, true, false); }),
              HasSubstr("decoder.norm_epsilon: 1e-05 there, 1e-06 now"));
}

TEST(Activations, OneWriterAFolder) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  {
    ActivationsWriter writer(folder / "a", settings, false, false);
    make_folder(folder / "a/s0000");
    const std::string half_written = folder / "a/s0000/l0000.h5.partial";
    write_text_file(half_written, "the first writer's");
    for (const bool force : {false, true}) {
      EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "a", settings, true, force); }),
                  AllOf(HasSubstr(folder / "a"), HasSubstr("another process is writing it")));
    }
    EXPECT_TRUE(fs::exists(half_written));
  }
  ActivationsWriter(folder / "a", settings, true, false);  // free again
}

TEST(Activations, ContentHashFollowsContent) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings();
  write_all(folder / "a", settings);
  write_all(folder / "b", settings);
  settings.seed = 4;
  write_all(folder / "c", settings);
  const std::string hash = ActivationsReader(folder / "a").content_sha256();
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(hash, ActivationsReader(folder / "b").content_sha256());
  EXPECT_NE(hash, ActivationsReader(folder / "c").content_sha256());
}

TEST(Activations, DamageIsNamed) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  write_all(folder / "a", settings);
  const std::string shard = folder / "a/s0001/l0001.h5";
  const std::string bytes = read_text_file(shard);
  std::string flipped = bytes;
  flipped[flipped.size() / 2] ^= 1;
  write_text_file(shard, flipped);
  const ActivationsReader reader(folder / "a");
  EXPECT_THAT(error_of([&] { reader.read(1, 1); }), AllOf(HasSubstr("s0001/l0001.h5"), HasSubstr("sha256")));
  EXPECT_THAT(validate_activations(folder / "a"), ElementsAre(HasSubstr("s0001/l0001.h5: its sha256")));
  write_text_file(shard, read_text_file(folder / "a/s0000/l0001.h5"));  // a sound file of another sample
  EXPECT_THAT(error_of([&] { reader.read(1, 1, false); }), HasSubstr("sample"));
  fs::remove(shard);
  EXPECT_THAT(error_of([&] { ActivationsReader again(folder / "a"); }),
              HasSubstr("1 of 6 shards missing or incomplete: s0001/l0001.h5"));
}

TEST(Activations, HintsNameTheProgramThatMadeTheFolder) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  ActivationsSettings merged = settings;
  merged.sources = {{"text", "beef", "raw", 3}};
  merged.sample_source = {0, 0};
  merged.sample_number = {0, 1};
  write_all(folder / "run", settings);
  write_all(folder / "merged", merged);
  for (const auto& [name, verb] : {std::pair("run", "collect"), {"merged", "merge"}}) {
    const std::string path = folder / name, hint = std::string("'kvcc ") + verb + " --resume'";
    const std::string shard = path + "/s0001/l0001.h5";
    const ActivationsReader reader(path);
    std::string bytes = read_text_file(shard);
    bytes[bytes.size() / 2] ^= 1;
    write_text_file(shard, bytes);
    EXPECT_THAT(error_of([&] { reader.read(1, 1); }), AllOf(HasSubstr("sha256"), HasSubstr(hint)));
    fs::remove(shard);
    EXPECT_THAT(error_of([&] { ActivationsReader again(path); }),
                AllOf(HasSubstr("1 of 6 shards missing"), HasSubstr(hint)));
  }
  EXPECT_THAT(error_of([&] { ActivationsReader none(folder / "none"); }),
              HasSubstr("a folder that kvcc collect or kvcc merge wrote"));
}

TEST(Activations, MergedManifestsAreCheckedFurther) {
  const TemporaryFolder folder;
  ActivationsSettings settings = made::settings();
  settings.sources = {{"text", "beef", "raw", 3}};
  settings.sample_source = {0, 0};
  settings.sample_number = {0, 1};
  write_all(folder / "a", settings);
  const std::string path = folder / "a/manifest.json", good = read_text_file(path);
  const auto edited = [&](const std::function<void(nlohmann::ordered_json&)>& edit) {
    auto document = nlohmann::ordered_json::parse(good);
    edit(document);
    write_text_file(path, document.dump());
    return error_of([&] { ActivationsReader reader(folder / "a"); });
  };
  EXPECT_THAT(edited([](auto& d) {
                d["left_out"] = {{{"sample", 0}, {"reason", "NaN"}}};
              }),
              HasSubstr("left_out in a merged folder"));
  EXPECT_THAT(edited([](auto& d) { d["settings"]["sample_number"] = {0}; }), HasSubstr("sample_number has 1 entries"));
  for (const char* name : {"sample_source", "sample_number"}) {
    EXPECT_THAT(edited([&](auto& d) {
                  d["settings"]["sources"] = nlohmann::ordered_json::array();
                  d["settings"]["sample_source"] = d["settings"]["sample_number"] = nlohmann::ordered_json::array();
                  d["settings"][name] = {0};
                }),
                HasSubstr("without sources"));
  }
}

TEST(Activations, F17ValidateNamesWhatIsNotFinite) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  ActivationsWriter writer(folder / "a", settings, false, false);
  Shard bad = made::shard(settings, 0, 0);
  bad.value[2 * 12 + 3] = std::numeric_limits<float>::quiet_NaN();
  writer.put(0, 0, bad);
  put_all(writer, settings);
  writer.finish();
  EXPECT_THAT(validate_activations(folder / "a"),
              ElementsAre(AllOf(HasSubstr("s0000/l0000.h5: /value: nan at token 2"))));
}

TEST(Activations, ManifestIsCheckedFieldByField) {
  const TemporaryFolder folder;
  write_all(folder / "a", made::settings());
  const std::string path = folder / "a/manifest.json", good = read_text_file(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_text_file(path, text.replace(at, from.size(), to));
    return error_of([&] { ActivationsReader reader(folder / "a"); });
  };
  EXPECT_THAT(with("\"schema_version\": 1", "\"schema_version\": 4"),
              HasSubstr("activations format 4, this build reads up to 3"));
  EXPECT_THAT(with("\"seqlen\": 5", "\"seqlen\": \"5\""), HasSubstr("'seqlen' is \"5\""));
  EXPECT_THAT(with("\"seqlen\": 5", "\"seqlen\": -5"), HasSubstr("samples of -5 tokens"));
  EXPECT_THAT(with("\"kv_heads\": 2", "\"kv_heads\": 2.5"), HasSubstr("'kv_heads' is 2.5"));
  EXPECT_THAT(with("\"seed\": 3,", ""), HasSubstr("'seed' is missing"));
  EXPECT_THAT(with("s0000/l0000.h5", "../../etc/passwd"), HasSubstr("not of these settings"));
  EXPECT_THAT(with("kvcc-activations", "other"), HasSubstr("format is 'other'"));
  write_text_file(path, good.substr(0, good.size() / 2));
  EXPECT_THAT(error_of([&] { ActivationsReader reader(folder / "a"); }), HasSubstr("truncated"));
  EXPECT_THAT(error_of([&] { ActivationsReader reader(folder / "none"); }), HasSubstr("no manifest.json"));
}

TEST(Activations, OtherPeoplesFoldersAreLeftAlone) {
  const TemporaryFolder folder;
  write_text_file(folder / "mine.txt", "x");
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder.path(), made::settings(), true, true); }),
              HasSubstr("not empty"));
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "mine.txt", made::settings(), true, true); }),
              HasSubstr("is a file"));
  EXPECT_EQ(read_text_file(folder / "mine.txt"), "x");
}

TEST(Activations, F43FullDisk) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings(1, 1, 512);
  ActivationsWriter writer(folder / "a", settings, false, false);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight = {20'000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string message = error_of([&] { writer.put(0, 0, made::shard(settings, 0, 0)); }, ErrorKind::resource);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, AllOf(HasSubstr("needed"), HasSubstr("free")));
  EXPECT_TRUE(fs::is_empty(folder / "a/s0000"));
  EXPECT_FALSE(writer.has(0, 0));
  // Checked before the first shard as well: no disk has room for this.
  ActivationsSettings huge = made::settings(900'000, 3, 1 << 20);
  EXPECT_THAT(error_of([&] { ActivationsWriter(folder / "b", huge, false, false); }, ErrorKind::resource),
              AllOf(HasSubstr("TiB needed"), HasSubstr("--acts-dtype bf16")));
}

TEST(Activations, F36SamplesLeftOutAreRenumberedAndRemembered) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings(3, 3, 4);
  {
    ActivationsWriter writer(folder / "a", settings, false, false);
    writer.put(1, 0, made::shard(settings, 1, 0));
    writer.leave_out(1, "NaN in layer 1");
    EXPECT_FALSE(fs::exists(folder / "a/s0001/l0000.h5"));
    for (const int sample : {0, 2}) {
      for (int layer = 0; layer < 3; ++layer) writer.put(sample, layer, made::shard(settings, sample, layer));
    }
    writer.finish();
  }
  const ActivationsReader reader(folder / "a");
  EXPECT_EQ(reader.settings().samples, 2);
  EXPECT_THAT(reader.settings().offsets, ElementsAre(settings.offsets[0], settings.offsets[2]));
  EXPECT_EQ(reader.read(1, 2).key, made::shard(settings, 2, 2).key);
  EXPECT_THAT(error_of([&] { reader.read(2, 0); }, ErrorKind::failed), HasSubstr("no shard of sample 2"));
  EXPECT_THAT(validate_activations(folder / "a"), IsEmpty());
  EXPECT_EQ(ActivationsWriter(folder / "a", settings, true, false).left_out().at(1), "NaN in layer 1");
  write_all(folder / "two", made::settings(2, 3, 4));
  EXPECT_NE(reader.content_sha256(), ActivationsReader(folder / "two").content_sha256());
}

TEST(Activations, PutRefusesWrongSizes) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings();
  ActivationsWriter writer(folder / "a", settings, false, false);
  Shard shard = made::shard(settings, 0, 0);
  shard.key.pop_back();
  EXPECT_THAT(error_of([&] { writer.put(0, 0, shard); }, ErrorKind::failed), HasSubstr("/key"));
  EXPECT_THAT(error_of([&] { writer.put(2, 0, shard); }, ErrorKind::failed), HasSubstr("sample 2"));
  EXPECT_THAT(error_of([&] { writer.finish(); }, ErrorKind::failed), HasSubstr("0 shards"));
}

TEST(Activations, ReadsFromSeveralThreads) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings(4, 3, 16);
  write_all(folder / "a", settings);
  const ActivationsReader reader(folder / "a");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        const int sample = (t + i) % 4, layer = i % 3;
        wrong[static_cast<size_t>(t)] += reader.read(sample, layer).key != made::shard(settings, sample, layer).key;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Activations, CostOfAShardDoesNotGrowWithTheirNumber) {
  const TemporaryFolder folder;
  const ActivationsSettings settings = made::settings(20, 3, 1);
  ActivationsWriter writer(folder / "a", settings, false, false);
  put_all(writer, settings);
  // One line a shard: the bookkeeping of 60 shards is 60 lines, whatever came before.
  const std::string journal = read_text_file(folder / "a/manifest.journal");
  EXPECT_EQ(std::count(journal.begin(), journal.end(), '\n'), 60);
  EXPECT_LT(fs::file_size(folder / "a/manifest.json"), 5'000u) << "not rewritten with each shard";
  writer.finish();
  EXPECT_FALSE(fs::exists(folder / "a/manifest.journal"));
  EXPECT_EQ(ActivationsReader(folder / "a").shards().size(), 60u);
}

}  // namespace
}  // namespace kvcc
