// Where a prompt repeats token sequences served before: common prefix, and a left-to-right cover by long matches.
//
// Twin of the Python code in acmserve/plan/match.py, which states the rules. Both return identical results, hash
// collisions included. Linear time: grams of k tokens are hashed into an index of the sources. At each prompt position
// a bounded number of candidates is verified and extended. The search goes on behind an accepted match.
//
// Clients choose the tokens. So the hash has a key that no client knows, and a look-up ends after kMaxProbes slots. A
// gram that finds no place within them is not indexed, which costs a match and never time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace acm {

constexpr int64_t kMaxGram = 256;
constexpr int64_t kMaxProbes = 64;
constexpr int kMaxCandidates = 8;
constexpr int kMaxRefinements = 4;

// Two odd numbers, secret and drawn once for each process: the base of the polynomial, and what spreads it over slots.
struct HashKey {
    uint64_t base, mix;
};

struct Tokens {
    const int32_t* data;
    int64_t size;
};

struct Match {
    int64_t dst_start, source, src_start, num_tokens;
};

inline int64_t common_length(const int32_t* a, const int32_t* b, int64_t limit) {
    constexpr int64_t kChunk = 16;
    int64_t n = 0;
    while (n + kChunk <= limit && std::memcmp(a + n, b + n, kChunk * sizeof(int32_t)) == 0) n += kChunk;
    while (n < limit && a[n] == b[n]) ++n;
    return n;
}

// hashes[i] covers tokens [i, i + k): the polynomial in `base` modulo 2^64.
inline std::vector<uint64_t> gram_hashes(const int32_t* tokens, int64_t size, int64_t k, uint64_t base) {
    if (size < k) return {};
    std::vector<uint64_t> hashes(static_cast<size_t>(size - k + 1));
    const auto token = [&](int64_t i) { return uint64_t{static_cast<uint32_t>(tokens[i])}; };
    uint64_t hash = 0, leading = 1;
    for (int64_t i = 0; i < k; ++i) hash = hash * base + token(i);
    for (int64_t i = 0; i < k; ++i) leading *= base;
    hashes[0] = hash;
    for (int64_t i = 1; i + k <= size; ++i) {
        hash = hash * base + token(i + k - 1) - token(i - 1) * leading;
        hashes[static_cast<size_t>(i)] = hash;
    }
    return hashes;
}

// Grams of all sources by hash; positions with one hash are chained in increasing (source, position) order.
class GramIndex {
  public:
    GramIndex(const std::vector<Tokens>& sources, int64_t k, const HashKey& key) : key_(key) {
        int64_t num_tokens = 0, num_grams = 0;
        for (const Tokens& source : sources) {
            starts_.push_back(num_tokens);
            num_tokens += source.size;
            num_grams += std::max<int64_t>(source.size - k + 1, 0);
        }
        if (num_tokens >= int64_t{kNone}) throw std::invalid_argument("the sources hold 2^32 tokens or more");
        int bits = 4;
        while ((int64_t{1} << bits) < 2 * num_grams) ++bits;
        shift_ = 64 - bits;
        mask_ = (uint64_t{1} << bits) - 1;
        slots_.assign(size_t{1} << bits, {0, kNone});
        next_.assign(static_cast<size_t>(num_tokens), kNone);
        for (size_t s = sources.size(); s-- > 0;) add(sources[s], starts_[s], k);
    }

    // Calls visit(source, position) for the first kMaxCandidates positions with this hash.
    template <class Visit>
    void visit(uint64_t hash, Visit&& visit) const {
        const int64_t slot = find(hash);
        uint32_t at = slot < 0 ? kNone : slots_[static_cast<size_t>(slot)].head;
        for (int i = 0; i < kMaxCandidates && at != kNone; ++i, at = next_[at]) {
            const auto source = std::upper_bound(starts_.begin(), starts_.end(), int64_t{at}) - starts_.begin() - 1;
            visit(static_cast<int64_t>(source), int64_t{at} - starts_[static_cast<size_t>(source)]);
        }
    }

    void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[first_slot(hash)]); }

    // The longest look-up of any gram of the sources: how well the key spreads them. kMaxProbes where one has no place.
    int64_t num_probes(const std::vector<Tokens>& sources, int64_t k) const {
        int64_t longest = 0;
        for (const Tokens& source : sources)
            for (const uint64_t hash : gram_hashes(source.data, source.size, k, key_.base)) {
                const int64_t slot = find(hash);
                const auto first = static_cast<int64_t>(first_slot(hash));
                longest = std::max(longest, slot < 0 ? kMaxProbes : ((slot - first) & static_cast<int64_t>(mask_)) + 1);
            }
        return longest;
    }

  private:
    static constexpr uint32_t kNone = 0xffffffffu;
    static constexpr size_t kAhead = 12;  // table look-ups in flight; hides the latency of the outer caches
    struct Slot {
        uint64_t hash;
        uint32_t head;
    };

    uint64_t first_slot(uint64_t hash) const { return (hash ^ hash >> 32) * key_.mix >> shift_; }

    // The slot of this hash, or the empty one where it belongs; -1 where neither is among the first kMaxProbes.
    int64_t find(uint64_t hash) const {
        uint64_t slot = first_slot(hash);
        for (int64_t i = 0; i < kMaxProbes; ++i, slot = (slot + 1) & mask_)
            if (slots_[slot].head == kNone || slots_[slot].hash == hash) return static_cast<int64_t>(slot);
        return -1;
    }

    void add(const Tokens& source, int64_t start, int64_t k) {
        const std::vector<uint64_t> hashes = gram_hashes(source.data, source.size, k, key_.base);
        for (size_t i = hashes.size(); i-- > 0;) {
            if (i >= kAhead) prefetch(hashes[i - kAhead]);
            const int64_t found = find(hashes[i]);
            if (found < 0) continue;
            Slot& slot = slots_[static_cast<size_t>(found)];
            const auto at = static_cast<uint32_t>(start + static_cast<int64_t>(i));
            next_[at] = slot.head;
            slot = {hashes[i], at};
        }
    }

    HashKey key_;
    std::vector<int64_t> starts_;
    std::vector<Slot> slots_;
    std::vector<uint32_t> next_;
    int shift_ = 0;
    uint64_t mask_ = 0;
};

class Matcher {
  public:
    Matcher(const Tokens& prompt, const std::vector<Tokens>& sources, int64_t start, int64_t stop, int64_t min_tokens,
            const HashKey& key)
        : prompt_(prompt.data),
          sources_(sources),
          start_(start),
          stop_(stop),
          min_tokens_(min_tokens),
          k_(std::min(min_tokens, kMaxGram)),
          index_(sources, k_, key),
          hashes_(gram_hashes(prompt.data + start, stop - start, k_, key.base)) {}

    std::vector<Match> run() const {
        std::vector<Match> matches;
        constexpr size_t kAhead = 12;
        for (int64_t at = start_; at + min_tokens_ <= stop_;) {
            const size_t ahead = static_cast<size_t>(at - start_) + kAhead;
            if (ahead < hashes_.size()) index_.prefetch(hashes_[ahead]);
            const Match best = longest(at, matches.empty() ? nullptr : &matches.back());
            if (best.num_tokens >= min_tokens_) {
                matches.push_back(best);
                at += best.num_tokens;
            } else {
                ++at;
            }
        }
        return matches;
    }

  private:
    Match longest(int64_t at, const Match* previous) const {
        Match best{at, 0, 0, 0};
        if (previous != nullptr) offer(best, at, previous->source, at + previous->src_start - previous->dst_start);
        index_.visit(gram(at), [&](int64_t source, int64_t position) { offer(best, at, source, position); });
        for (int i = 0; i < kMaxRefinements && best.num_tokens >= k_; ++i) {
            const int64_t beyond = at + best.num_tokens - k_ + 1;
            if (beyond + k_ > stop_) break;
            const int64_t before = best.num_tokens;
            index_.visit(gram(beyond), [&](int64_t source, int64_t position) {
                offer(best, at, source, position - (beyond - at));
            });
            if (best.num_tokens == before) break;
        }
        return best;
    }

    // Replaces `best` where the source, from `position` on, agrees with the prompt for longer.
    void offer(Match& best, int64_t at, int64_t source, int64_t position) const {
        const Tokens& tokens = sources_[static_cast<size_t>(source)];
        if (position < 0 || position >= tokens.size) return;
        const int64_t limit = std::min(stop_ - at, tokens.size - position);
        if (limit <= best.num_tokens) return;
        const int64_t length = common_length(prompt_ + at, tokens.data + position, limit);
        if (length > best.num_tokens) best = {at, source, position, length};
    }

    uint64_t gram(int64_t at) const { return hashes_[static_cast<size_t>(at - start_)]; }

    const int32_t* prompt_;
    const std::vector<Tokens>& sources_;
    int64_t start_, stop_, min_tokens_, k_;
    GramIndex index_;
    std::vector<uint64_t> hashes_;
};

inline std::vector<Match> find_matches(const Tokens& prompt, const std::vector<Tokens>& sources, int64_t start,
                                       int64_t stop, int64_t min_tokens, const HashKey& key) {
    if (start < 0 || start > stop || stop > prompt.size)
        throw std::invalid_argument("[start, stop) is outside of the prompt");
    if (min_tokens < 1) throw std::invalid_argument("min_tokens must be at least 1");
    return Matcher(prompt, sources, start, stop, min_tokens, key).run();
}

}  // namespace acm
