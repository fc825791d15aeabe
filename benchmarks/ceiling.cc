// Measures how many binary multiply-adds per second one core can do at most with an instruction
// set: the instructions that count, on registers and the first cache, without the epilogue, the
// border or the memory of a network. benchmarks/engine.py compiles it once for each instruction set
// of the engine, with the flags that choose it here, and calls it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

alignas(64) volatile uint32_t sink;

template <class Run>
double rate(double seconds, double multiply_adds, Run run) {
    using clock = std::chrono::steady_clock;
    double best = 0;
    const auto end = clock::now() + std::chrono::duration<double>(seconds);
    do {
        const auto begin = clock::now();
        for (int i = 0; i < 500; ++i) run();
        const double took = std::chrono::duration<double>(clock::now() - begin).count();
        const double found = 500.0 * multiply_adds / took;
        if (found > best) best = found;
    } while (clock::now() < end);
    return best;
}

#if defined(__AVX2__) && !defined(__AVX512VPOPCNTDQ__)

// Shuffles count 4 channels of 2 pixels, as engine/src/pair_kernel.h explains.
#if defined(__AVX512BW__)
#define METHOD "AVX-512BW tables of pairs"
struct Bytes {
    __m512i v;
    static Bytes zero() { return {_mm512_setzero_si512()}; }
    static Bytes load(const uint8_t *from) { return {_mm512_load_si512(from)}; }
    static Bytes table(const uint8_t *from) {
        return {_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(from)))};
    }
    Bytes operator+(Bytes b) const { return {_mm512_add_epi8(v, b.v)}; }
    Bytes operator[](Bytes index) const { return {_mm512_shuffle_epi8(v, index.v)}; }
    Bytes right() const { return {_mm512_srli_epi16(v, 4)}; }
    void keep() { asm("" : "+v"(v)); }
    uint32_t some() const {
        return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(v)));
    }
};
#else
#define METHOD "AVX2 tables of pairs"
struct Bytes {
    __m256i v;
    static Bytes zero() { return {_mm256_setzero_si256()}; }
    static Bytes load(const uint8_t *from) {
        return {_mm256_load_si256(reinterpret_cast<const __m256i *>(from))};
    }
    static Bytes table(const uint8_t *from) {
        return {
            _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(from)))};
    }
    Bytes operator+(Bytes b) const { return {_mm256_add_epi8(v, b.v)}; }
    Bytes operator[](Bytes index) const { return {_mm256_shuffle_epi8(v, index.v)}; }
    Bytes right() const { return {_mm256_srli_epi16(v, 4)}; }
    void keep() { asm("" : "+x"(v)); }
    uint32_t some() const {
        return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(v)));
    }
};
#endif

constexpr int kThrees = 21;
alignas(64) uint8_t tables[256][16];
alignas(64) uint8_t weights[6][kThrees * 3][sizeof(Bytes)];
uint16_t offsets[kThrees * 3];

template <int groups>
__attribute__((noinline)) void tile() {
    Bytes total[groups], high[groups];
    for (int g = 0; g < groups; ++g) total[g] = high[g] = Bytes::zero();
#pragma GCC unroll 1
    for (int k = 0; k < 3 * kThrees; k += 3) {
        Bytes table[3];
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) table[i] = Bytes::table(tables[0] + offsets[k + i]);
#pragma GCC unroll 8
        for (int g = 0; g < groups; ++g) {
            Bytes three = table[0][Bytes::load(weights[g][k])];
            three = three + table[1][Bytes::load(weights[g][k + 1])];
            three = three + table[2][Bytes::load(weights[g][k + 2])];
            three.keep();
            total[g] = total[g] + three;
            total[g].keep();
            high[g] = high[g] + three.right();
            high[g].keep();
        }
    }
    for (int g = 0; g < groups; ++g) sink = sink + total[g].some() + high[g].some();
}

template <int groups>
double rate_of(double seconds) {
    const double lookups = 3.0 * kThrees * groups;
    return rate(seconds, lookups * 4 * 2 * sizeof(Bytes), tile<groups>);
}

double best_rate(double seconds) {
    for (auto &table : tables) {
        for (uint8_t &entry : table) entry = static_cast<uint8_t>(std::rand());
    }
    for (uint16_t &offset : offsets) offset = static_cast<uint16_t>(std::rand() % 256 * 16);
    for (auto &group : weights) {
        for (auto &vector : group) {
            for (uint8_t &w : vector) w = static_cast<uint8_t>(std::rand() % 16);
        }
    }
    double best = 0;
    for (const double found : {rate_of<2>(seconds / 4), rate_of<3>(seconds / 4),
                               rate_of<4>(seconds / 4), rate_of<5>(seconds / 4)}) {
        if (found > best) best = found;
    }
    return best;
}

#else

#if defined(__AVX512VPOPCNTDQ__)
#define METHOD "AVX-512 VPOPCNTDQ"
struct Vector {
    __m512i v;
    static Vector zero() { return {_mm512_setzero_si512()}; }
    static Vector load(const uint32_t *from) { return {_mm512_loadu_si512(from)}; }
    Vector plus_difference(Vector w, uint32_t a) const {
        const __m512i x = _mm512_xor_si512(w.v, _mm512_set1_epi32(static_cast<int>(a)));
        return {_mm512_add_epi32(v, _mm512_popcnt_epi32(x))};
    }
    void store(uint32_t *to) const { _mm512_storeu_si512(to, v); }
};
constexpr int kWords = 16;
#elif defined(__aarch64__)
#define METHOD "NEON cnt"
struct Vector {
    uint8x16_t v;
    static Vector zero() { return {vdupq_n_u8(0)}; }
    static Vector load(const uint32_t *from) {
        return {vld1q_u8(reinterpret_cast<const uint8_t *>(from))};
    }
    Vector plus_difference(Vector w, uint32_t a) const {
        return {vaddq_u8(v, vcntq_u8(veorq_u8(w.v, vdupq_n_u8(static_cast<uint8_t>(a)))))};
    }
    void store(uint32_t *to) const { vst1q_u8(reinterpret_cast<uint8_t *>(to), v); }
};
constexpr int kWords = 4;
#else
#define METHOD "the compiler's population count"
struct Vector {
    uint32_t v;
    static Vector zero() { return {0}; }
    static Vector load(const uint32_t *from) { return {*from}; }
    Vector plus_difference(Vector w, uint32_t a) const {
        return {v + static_cast<uint32_t>(__builtin_popcount(w.v ^ a))};
    }
    void store(uint32_t *to) const { *to = v; }
};
constexpr int kWords = 1;
#endif

constexpr int kDepth = 72;  // vectors of weights: a 3 × 3 kernel over 256 channels
alignas(64) uint32_t weights[kDepth * kWords];
alignas(64) uint32_t activations[64 * 32];

template <int pixels>
__attribute__((noinline)) void tile() {
    Vector sums[pixels];
    for (Vector &sum : sums) sum = Vector::zero();
    for (int k = 0; k < kDepth; ++k) {
        const Vector w = Vector::load(weights + k * kWords);
#pragma GCC unroll 32
        for (int p = 0; p < pixels; ++p) {
            sums[p] = sums[p].plus_difference(w, activations[p * 32 + k % 32]);
        }
    }
    uint32_t out[kWords];
    for (const Vector &sum : sums) {
        sum.store(out);
        sink = sink + out[0];
    }
}

template <int pixels>
double rate_of(double seconds) {
    return rate(seconds, 32.0 * kDepth * pixels * kWords, tile<pixels>);
}

double best_rate(double seconds) {
    for (uint32_t &w : weights) w = static_cast<uint32_t>(std::rand()) * 2654435761u;
    for (uint32_t &a : activations) a = static_cast<uint32_t>(std::rand()) * 2654435761u;
    double best = 0;
    for (const double found : {rate_of<7>(seconds / 4), rate_of<10>(seconds / 4),
                               rate_of<14>(seconds / 4), rate_of<20>(seconds / 4)}) {
        if (found > best) best = found;
    }
    return best;
}

#endif

}  // namespace

extern "C" const char *ceiling_method(void) { return METHOD; }

// Returns the best rate of several tile sizes, in multiply-adds per second; each is measured for a
// share of `seconds`.
extern "C" double ceiling(double seconds) { return best_rate(seconds); }
