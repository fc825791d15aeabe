#include "nearest.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace burn {
namespace {

// A code and its distance, in the order in which they are found.
using Found = std::pair<uint32_t, int64_t>;

// Codes that are compared with every query while they lie in the cache.
constexpr size_t kBlockBytes = size_t{1} << 14;

// Distances that are compared at once with the largest that is wanted, by vector instructions.
constexpr size_t kStride = 32;

bool none_below(const uint32_t *distances, uint32_t most) {
    uint32_t below = 0;
    for (size_t i = 0; i < kStride; ++i) below |= static_cast<uint32_t>(distances[i] < most);
    return below == 0;
}

}  // namespace

void nearest(const Tier &tier, const uint8_t *codes, size_t count, size_t bytes,
             const uint8_t *queries, size_t num_queries, size_t k, int64_t *positions,
             uint32_t *distances) {
    const size_t block = std::max<size_t>(64, kBlockBytes / bytes);
    std::vector<uint32_t> differing(std::min(block, count));
    // The largest of a query's k nearest is first, so that one comparison refuses most codes.
    std::vector<Found> heaps(num_queries * k);
    size_t held = 0;  // the same for each query
    for (size_t begin = 0; begin < count; begin += block) {
        const size_t size = std::min(block, count - begin);
        const size_t filling = std::min(size, k - held);
        for (size_t q = 0; q < num_queries; ++q) {
            tier.hamming(queries + q * bytes, codes + begin * bytes, size, bytes, differing.data());
            const auto heap = heaps.begin() + static_cast<ptrdiff_t>(q * k);
            auto end = heap + static_cast<ptrdiff_t>(held);
            const auto found = [&](size_t i) {
                return Found(differing[i], static_cast<int64_t>(begin + i));
            };
            for (size_t i = 0; i < filling; ++i) {
                *end++ = found(i);
                std::push_heap(heap, end);
            }
            uint32_t most = heap->first;
            for (size_t i = filling; i < size;) {
                if (i + kStride <= size && none_below(&differing[i], most)) {
                    i += kStride;
                    continue;
                }
                for (const size_t stop = std::min(i + kStride, size); i < stop; ++i) {
                    if (differing[i] >= most) continue;
                    std::pop_heap(heap, end);
                    end[-1] = found(i);
                    std::push_heap(heap, end);
                    most = heap->first;
                }
            }
        }
        held += filling;
    }
    for (size_t q = 0; q < num_queries; ++q) {
        const auto heap = heaps.begin() + static_cast<ptrdiff_t>(q * k);
        std::sort_heap(heap, heap + static_cast<ptrdiff_t>(k));
        for (size_t i = 0; i < k; ++i) {
            distances[q * k + i] = heap[static_cast<ptrdiff_t>(i)].first;
            positions[q * k + i] = heap[static_cast<ptrdiff_t>(i)].second;
        }
    }
}

}  // namespace burn
