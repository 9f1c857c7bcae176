// The forward pass: output, log-sum-exp and statistics in one pass over the scores.
//
// A piece of work is some tiles of 64 queries and all query heads that share a key head. Keys and values are packed for
// it a chunk at a time, so that they stay in the cache; a tile walks through the chunk in steps of a few blocks of 64
// keys: scores, softmax, weights times values. The state of a row (highest score, sum, output) is kept between chunks.
// A row meets its keys in their order, however the work is cut, so the number of threads does not change the result.
#pragma once

#include "softmax.hpp"

namespace ISA {

template <class T>
struct Forward {
    typedef Packed<T> P;
    typedef typename P::Weight Weight;
    static constexpr int64_t ROWS = T::ROWS, COLUMNS = T::COLUMNS, BLOCKS = T::BLOCKS, SPAN = BLOCKS * TILE;

    const hw_attention& call;
    const int64_t b, g, first_tile, past_tile; // the piece of work
    const int64_t du = P::units(call.D);       // units of a query
    const int64_t width = up(call.E, COLUMNS); // width of a packed value
    const int64_t of_key = 4 * du, of_value = 4 * width / T::PAIR; // bytes
    const int64_t heads = call.H / call.G, tiles = past_tile - first_tile;
    const int64_t size = call.dtype == HW_FLOAT32 ? 4 : 2;
    Softmax<T> softmax{call, b, width};

    unit *keys = nullptr, *values = nullptr; // the chunk, packed
    uint8_t* is_packed = nullptr;            // [blocks of the chunk]
    int64_t chunk = 0, chunk_blocks = 0;     // its first block, and how many
    unit* query = nullptr;                   // [64, du]; rows that are missing are 0
    const unit* left = nullptr;              // the queries of a tile: packed, or in place
    int64_t left_step = 0;                   // step from row to row
    float* scores = nullptr;                 // [ROWS, SPAN]
    Weight* weights = nullptr;               // [ROWS, SPAN]: in the memory of the scores, or after it
    float* outputs = nullptr;                // [tiles * heads, 64, width]
    Row* rows = nullptr;                     // [tiles * heads, 64]

    // Floats whose rows have no gaps are read in place: the queries of a whole tile, and values.
    bool is_plain(const hw_tensor& t) const { return T::PAIR == 1 && call.dtype == HW_FLOAT32 && t.stride[3] == 1; }
    const bool plain_values = is_plain(call.v) && width == call.E;

    bool prepare() {
        const int64_t all = (call.K + TILE - 1) / TILE, states = tiles * heads;
        chunk_blocks = least(all, most(1, PACKED / (TILE * (of_key + of_value))));
        char* packed = (char*)hw::scratch(0, TILE * chunk_blocks * (of_key + of_value) + chunk_blocks);
        char* tile = (char*)hw::scratch(1, 4 * TILE * du + ROWS * SPAN * (4 + sizeof(Weight)));
        char* kept = (char*)hw::scratch(2, states * TILE * (width * 4 + (int64_t)sizeof(Row)));
        if (!packed || !tile || !kept) return false;
        keys = (unit*)packed, values = keys + TILE * chunk_blocks * du;
        is_packed = (uint8_t*)packed + TILE * chunk_blocks * (of_key + of_value);
        query = (unit*)tile, scores = (float*)(query + TILE * du);
        weights = T::PAIR > 1 ? (Weight*)(scores + ROWS * SPAN) : (Weight*)scores;
        outputs = (float*)kept, rows = (Row*)(kept + states * TILE * width * 4);
        return true;
    }

    void run() {
        const Products products;
        int64_t first = call.K, past = 0; // blocks that some tile of the piece sees
        for (int64_t i = 0; i < tiles * heads; i++) {
            const Sight s = sight_of(call, b, g * heads + i % heads, first_tile + i / heads);
            if (s.first < s.past) first = least(first, s.block(s.first).number), past = most(past, s.block(s.past - 1).number + 1);
        }
        for (int64_t i = 0; i < tiles * heads * TILE; i++) rows[i].clear();
        std::memset(outputs, 0, tiles * heads * TILE * width * 4);
        for (chunk = first; chunk < past; chunk += chunk_blocks) {
            std::memset(is_packed, 0, chunk_blocks);
            for (int64_t i = 0; i < tiles * heads; i++) walk(g * heads + i % heads, first_tile + i / heads, outputs + i * TILE * width, rows + i * TILE);
        }
        for (int64_t i = 0; i < tiles * heads; i++) {
            const int64_t q = (first_tile + i / heads) * TILE, some = least(TILE, call.Q - q);
            for (int64_t r = 0; r < some; r++) softmax.finish(g * heads + i % heads, q + r, outputs + (i * TILE + r) * width, rows[i * TILE + r]);
        }
    }

    // Walk through the chunk, for one tile of one head.
    void walk(int64_t h, int64_t tile, float* out, Row* mine) {
        const Sight sight = sight_of(call, b, h, tile);
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q);
        int64_t at = sight.from(chunk);
        if (at == sight.past || sight.block(at).number >= chunk + chunk_blocks) return;
        const hw_tensor& t = call.q;
        const char* x = (const char*)t.data + size * (b * t.stride[0] + h * t.stride[1] + q * t.stride[2]);
        const bool direct = is_plain(t) && some == TILE;
        if (!direct) P::left(call.dtype, x, t.stride[2], t.stride[3], some, TILE, call.D, query);
        left = direct ? (const unit*)x : query, left_step = direct ? t.stride[2] : du;
        while (at < sight.past && sight.block(at).number < chunk + chunk_blocks) {
            Block blocks[BLOCKS]; // side by side
            int64_t n = 0;
            do {
                blocks[n] = sight.block(at++);
                pack(blocks[n++].number);
            } while (n < BLOCKS && at < sight.past && sight.block(at).number == blocks[n - 1].number + 1 && blocks[n - 1].number + 1 < chunk + chunk_blocks);
            for (int64_t r = 0; r < some; r += ROWS) attend(h, q, r, least(some, r + ROWS), sight, blocks, n, out, mine);
        }
    }

    void pack(int64_t block) {
        const int64_t at = block - chunk, k = block * TILE, some = least(TILE, call.K - k);
        if (is_packed[at]) return;
        is_packed[at] = 1;
        const hw_tensor &kt = call.k, &vt = call.v;
        const char* x = (const char*)kt.data + size * (b * kt.stride[0] + g * kt.stride[1] + k * kt.stride[2]);
        P::transposed(call.dtype, x, kt.stride[2], kt.stride[3], some, call.D, keys + at * TILE * du);
        if (!call.out.data || plain_values) return;
        x = (const char*)vt.data + size * (b * vt.stride[0] + g * vt.stride[1] + k * vt.stride[2]);
        P::right(call.dtype, x, vt.stride[2], vt.stride[3], some, call.E, width, values + at * TILE / T::PAIR * width);
    }

    // Attend with the rows [r0, r1) of a tile, which begins at query q, to the keys of n blocks.
    void attend(int64_t h, int64_t q, int64_t r0, int64_t r1, const Sight& sight, const Block* blocks, int64_t n, float* out, Row* mine) {
        const int64_t place = blocks->number - chunk, key = blocks->number * TILE, count = r1 - r0;
        int64_t lo = n * TILE, hi = 0; // the columns that some row sees
        for (int64_t r = r0; r < r1; r++)
            if (sight.lo[r] < sight.hi[r]) lo = least(lo, most(0, sight.lo[r] - key)), hi = most(hi, least(n * TILE, sight.hi[r] - key));
        if (sight.runs) lo = most(lo, first_seen(r0, r1, blocks, n)), hi = least(hi, past_seen(r0, r1, blocks, n));
        if (lo >= hi) return;
        lo = lo / COLUMNS * COLUMNS;
        const int64_t past = up(hi, COLUMNS);
        for (int64_t j = lo / TILE; j * TILE < past; j++) {
            const int64_t from = most(lo - j * TILE, 0), some = least(past - j * TILE, TILE) - from;
            T::product(count, left + r0 * left_step, left_step, 1, (const float*)(keys + (place + j) * TILE * du) + from, TILE, du, scores + j * TILE + from, SPAN, some, false);
        }
        for (int64_t r = r0; r < r1; r++) {
            float* s = scores + (r - r0) * SPAN;
            Weight* p = weights + (r - r0) * SPAN;
            if (lo == 0 && past == SPAN) softmax.soften(h, q, r, sight, blocks, 0, SPAN, s, p, out + r * width, mine[r]);
            else softmax.soften(h, q, r, sight, blocks, lo, past, s, p, out + r * width, mine[r]);
        }
        if (!call.out.data) return;
        const int64_t depth = (T::UNITS > 1 ? past : up(hi, T::PAIR)) - lo;
        const hw_tensor& t = call.v;
        const float* right = plain_values ? (const float*)t.data + b * t.stride[0] + g * t.stride[1] + (key + lo) * t.stride[2] : (const float*)(values + (place * TILE + lo) / T::PAIR * width);
        T::product(count, (const unit*)(weights + lo), SPAN / T::PAIR, 1, right, plain_values ? t.stride[2] : width, depth / T::PAIR, out + r0 * width, width, width, true);
    }

    // The columns of a block that some of these rows see, as bits.
    uint64_t seen(int64_t r0, int64_t r1, const Block& block) const {
        uint64_t columns = block.bits < 0 ? ~UINT64_C(0) : 0;
        for (int64_t r = r0; block.bits >= 0 && r < r1; r++) columns |= call.words[block.bits + r];
        return columns;
    }
    int64_t first_seen(int64_t r0, int64_t r1, const Block* blocks, int64_t n) const {
        for (int64_t j = 0; j < n; j++)
            if (const uint64_t columns = seen(r0, r1, blocks[j])) return j * TILE + __builtin_ctzll(columns);
        return n * TILE;
    }
    int64_t past_seen(int64_t r0, int64_t r1, const Block* blocks, int64_t n) const {
        for (int64_t j = n; j > 0; j--)
            if (const uint64_t columns = seen(r0, r1, blocks[j - 1])) return j * TILE - __builtin_clzll(columns);
        return 0;
    }
};

template <class T>
static int64_t forward(const hw_attention& call) {
    const int64_t heads = call.H / call.G, all = (call.Q + TILE - 1) / TILE;
    int64_t tiles = most(1, PIECE / TILE / heads); // tiles of a piece
    while (tiles > 1 && call.B * call.G * ((all + tiles - 1) / tiles) < 4 * call.threads) tiles = (tiles + 1) / 2;
    const int64_t groups = (all + tiles - 1) / tiles, pieces = call.B * call.G * groups;
    return over_with_memory(call.threads, pieces, [&](int64_t i) {
        const int64_t piece = pieces - 1 - i; // with a causal mask the last pieces have the most work, so they begin
        const int64_t first = piece % groups * tiles, matrix = piece / groups;
        Forward<T> forward{call, matrix / call.G, matrix % call.G, first, least(all, first + tiles)};
        if (!forward.prepare()) return false;
        forward.run();
        forward.softmax.tell_odd();
        return true;
    });
}

} // namespace ISA
