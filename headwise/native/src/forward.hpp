// The forward pass: output, log-sum-exp and statistics in one pass over the scores.
//
// A piece of work is some tiles of 64 queries and all query heads that share a key head. Keys and values are packed for
// it a chunk at a time, so that they stay in the cache; a tile walks through the chunk in steps of a few blocks of 64
// keys: scores, softmax, weights times values. What a row has so far (highest score, sum, output) is kept between chunks.
// A row meets its keys in their order, whatever the pieces are, so the number of threads changes no result.
#pragma once

#include "tile.hpp"

namespace ISA {

// What the rows of a tile have so far. x = (s - reference) log2(e): scores relative to a reference, in units of log 2.
struct Rows {
    float reference[TILE]; // a score at most SLACK below the highest; -inf before the first
    float total[TILE][W];  // sums of e = 2^x, each over the keys of one lane
    float product[TILE][W], distance[TILE][W]; // of e x and e |i - j|
};

template <class T>
struct Forward {
    typedef Packed<T> P;
    typedef typename P::Weight Weight;
    static constexpr int64_t ROWS = T::ROWS, COLUMNS = T::COLUMNS, BLOCKS = T::BLOCKS, SPAN = BLOCKS * TILE;

    const hw_attention& call;
    const int64_t b, g, first_tile, past_tile; // the piece
    const int64_t du = P::units(call.D);       // units of a query
    const int64_t width = up(call.E, COLUMNS); // of a packed value
    const int64_t of_key = 4 * du, of_value = 4 * width / T::PAIR; // bytes
    const int64_t heads = call.H / call.G, tiles = past_tile - first_tile;
    const int64_t size = call.dtype == HW_FLOAT32 ? 4 : 2;
    const bool plain = call.softcap == 0.0 && !call.bias.data && call.scale > 0.0;
    const float natural = plain ? (float)call.scale : 1.0f; // of products that are not transformed
    const float factor = natural * LOG2E;

    unit *keys = nullptr, *values = nullptr; // the chunk, packed
    uint8_t* is_packed = nullptr;            // [blocks of the chunk]
    int64_t chunk = 0, chunk_blocks = 0;     // its first block, and how many
    unit* query = nullptr;                   // [64, du]; rows that are missing are 0
    float* scores = nullptr;                 // [ROWS, SPAN]
    Weight* weights = nullptr;               // [ROWS, SPAN]: in place of the scores, or behind them
    float* outputs = nullptr;                // [tiles * heads, 64, width]
    Rows* rows = nullptr;                    // [tiles * heads]
    bool odd = false;

    bool prepare() {
        const int64_t all = (call.K + TILE - 1) / TILE, states = tiles * heads;
        chunk_blocks = least(all, most(1, PACKED / (TILE * (of_key + of_value))));
        char* packed = (char*)hw::scratch(0, TILE * chunk_blocks * (of_key + of_value) + chunk_blocks);
        char* tile = (char*)hw::scratch(1, 4 * TILE * du + ROWS * SPAN * (4 + sizeof(Weight)));
        char* kept = (char*)hw::scratch(2, states * (TILE * width * 4 + (int64_t)sizeof(Rows)));
        if (!packed || !tile || !kept) return false;
        keys = (unit*)packed, values = keys + TILE * chunk_blocks * du;
        is_packed = (uint8_t*)packed + TILE * chunk_blocks * (of_key + of_value);
        query = (unit*)tile, scores = (float*)(query + TILE * du);
        weights = T::PAIR > 1 ? (Weight*)(scores + ROWS * SPAN) : (Weight*)scores;
        outputs = (float*)kept, rows = (Rows*)(kept + states * TILE * width * 4);
        return true;
    }

    void run() {
        const Products products;
        int64_t first = call.K, past = 0; // blocks that some tile of the piece sees
        for (int64_t i = 0; i < tiles * heads; i++) {
            const Sight s = sight_of(call, b, g * heads + i % heads, first_tile + i / heads);
            if (s.first < s.past) first = least(first, s.block(s.first).number), past = most(past, s.block(s.past - 1).number + 1);
            std::memset(&rows[i], 0, sizeof(Rows));
            for (float& each : rows[i].reference) each = -INFINITY;
        }
        std::memset(outputs, 0, tiles * heads * TILE * width * 4);
        for (chunk = first; chunk < past; chunk += chunk_blocks) {
            std::memset(is_packed, 0, chunk_blocks);
            for (int64_t i = 0; i < tiles * heads; i++) walk(g * heads + i % heads, first_tile + i / heads, outputs + i * TILE * width, rows[i]);
        }
        for (int64_t i = 0; i < tiles * heads; i++) finish(g * heads + i % heads, first_tile + i / heads, outputs + i * TILE * width, rows[i]);
    }

    // The chunk, for one tile of one head.
    void walk(int64_t h, int64_t tile, float* out, Rows& mine) {
        const Sight sight = sight_of(call, b, h, tile);
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q);
        int64_t at = sight.first;
        while (at < sight.past && sight.block(at).number < chunk) at++;
        if (at == sight.past || sight.block(at).number >= chunk + chunk_blocks) return;
        const hw_tensor& t = call.q;
        P::left(call.dtype, (const char*)t.data + size * (b * t.stride[0] + h * t.stride[1] + q * t.stride[2]), t.stride[2], t.stride[3], some, TILE, call.D, query);
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
        if (!call.out.data) return;
        x = (const char*)vt.data + size * (b * vt.stride[0] + g * vt.stride[1] + k * vt.stride[2]);
        P::right(call.dtype, x, vt.stride[2], vt.stride[3], some, call.E, width, values + at * TILE / T::PAIR * width);
    }

    // The rows [r0, r1) of a tile, which begins at query q, and the keys of n blocks.
    void attend(int64_t h, int64_t q, int64_t r0, int64_t r1, const Sight& sight, const Block* blocks, int64_t n, float* out, Rows& mine) {
        const int64_t place = blocks->number - chunk, key = blocks->number * TILE, count = r1 - r0;
        int64_t lo = n * TILE, hi = 0; // the columns that some row sees
        for (int64_t r = r0; r < r1; r++)
            if (sight.lo[r] < sight.hi[r]) lo = least(lo, most(0, sight.lo[r] - key)), hi = most(hi, least(n * TILE, sight.hi[r] - key));
        if (sight.blocks) lo = most(lo, first_seen(r0, r1, blocks, n)), hi = least(hi, past_seen(r0, r1, blocks, n));
        if (lo >= hi) return;
        lo = lo / COLUMNS * COLUMNS;
        const int64_t past = up(hi, COLUMNS);
        for (int64_t j = lo / TILE; j * TILE < past; j++) {
            const int64_t from = most(lo - j * TILE, 0), some = least(past - j * TILE, TILE) - from;
            T::product(count, query + r0 * du, du, 1, (const float*)(keys + (place + j) * TILE * du) + from, TILE, du, scores + j * TILE + from, SPAN, some, false);
        }
        for (int64_t r = r0; r < r1; r++) {
            float* s = scores + (r - r0) * SPAN;
            Weight* p = weights + (r - r0) * SPAN;
            if (lo == 0 && past == SPAN) soften(h, q, r, sight, blocks, 0, SPAN, s, p, out + r * width, mine);
            else soften(h, q, r, sight, blocks, lo, past, s, p, out + r * width, mine);
        }
        if (!call.out.data) return;
        const int64_t depth = (T::UNITS > 1 ? past : up(hi, T::PAIR)) - lo;
        const float* packed = (const float*)(values + (place * TILE + lo) / T::PAIR * width);
        T::product(count, (const unit*)(weights + lo), SPAN / T::PAIR, 1, packed, width, depth / T::PAIR, out + r0 * width, width, width, true);
    }

    // Which columns of a block some of these rows see.
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

    // The weights p of one row from its scores s, in the columns [from, past) of some blocks.
    inline __attribute__((always_inline)) void soften(int64_t h, int64_t q, int64_t r, const Sight& sight, const Block* blocks, int64_t from, int64_t past, float* s, Weight* p, float* out, Rows& mine) {
        const int64_t key = blocks->number * TILE;
        if (!plain) transform(call, b, h, q + r, key, from, past, s);
        hide(call, sight, blocks, r, from, past, s);
        vf top = load(s + from);
        for (int64_t x = from + W; x < past; x += W) top = max(load(s + x), top);
        const vf f = splat(factor);
        if (any(top > splat(mine.reference[r] + SLACK / factor))) refer(highest(top), r, out, mine);
        const float reference = mine.reference[r];
        if (reference == -INFINITY) { // nothing is seen yet, or nothing but NaN
            vf total = load(mine.total[r]);
            for (int64_t x = from; x < past; x += W) {
                const vf e = load(s + x) == -INFINITY ? vf{} : load(s + x);
                total += e;
                P::weights(p + x, e);
            }
            store(mine.total[r], total);
            return;
        }
        const vf m = splat(plain ? -reference * factor : reference);
        vf total = load(mine.total[r]);
        if (!call.entropy && !call.distance) {
            for (int64_t x = from; x < past; x += W) {
                const vf e = exp2<T::DEGREE>(plain ? fma(load(s + x), f, m) : (load(s + x) - m) * f);
                total += e;
                P::weights(p + x, e);
            }
        } else {
            vf product = load(mine.product[r]), distance = load(mine.distance[r]);
            const vi place = lanes() + splat((int32_t)(key - (q + r + call.K - call.Q)));
            for (int64_t x = from; x < past; x += W) {
                const vf y = plain ? fma(load(s + x), f, m) : (load(s + x) - m) * f, e = exp2<T::DEGREE>(y);
                total += e;
                product = fma(e, max(y, splat(-200.0f)), product); // not 0 times -inf
                const vf far = __builtin_convertvector(place + splat((int32_t)x), vf);
                distance = fma(e, far < 0.0f ? -far : far, distance);
                P::weights(p + x, e);
            }
            store(mine.product[r], product), store(mine.distance[r], distance);
        }
        store(mine.total[r], total);
        if (call.dropout > 0) {
            const uint32_t row = row_of_drops(call, b, h, q + r);
            for (int64_t x = from; x < past; x += W) {
                const vi kept = keeps(call, splat((int32_t)row), lanes() + splat((int32_t)(key + x)));
                for (int64_t j = 0; j < W; j++) p[x + j] = kept[j] ? p[x + j] : Weight{};
            }
        }
    }

    // Another reference for what a row has so far.
    __attribute__((noinline)) void refer(float to, int64_t r, float* out, Rows& mine) {
        const bool nothing = mine.reference[r] == -INFINITY;
        const float down = (mine.reference[r] - to) * factor;
        mine.reference[r] = to;
        if (nothing) return;
        const vf by = splat(std::exp2(down)), total = load(mine.total[r]);
        store(mine.product[r], by * (load(mine.product[r]) + splat(down > -200.0f ? down : -200.0f) * total)); // not 0 times inf
        store(mine.total[r], by * total);
        store(mine.distance[r], by * load(mine.distance[r]));
        for (int64_t e = 0; e < width; e += W) store(out + e, by * load(out + e));
    }

    void finish(int64_t h, int64_t tile, const float* out, const Rows& mine) {
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q);
        for (int64_t r = 0; r < some; r++) {
            float m = mine.reference[r] * natural, total = sum(load(mine.total[r])), by = 1.0f, product = sum(load(mine.product[r]));
            if (call.sinks && call.sinks[h] != -INFINITY) { // one more key, whose value is 0
                const float sink = call.sinks[h], to = sink > m ? sink : m, down = (m - to) * LOG2E, share = std::exp2((sink - to) * LOG2E);
                by = m == -INFINITY ? 0.0f : std::exp2(down);
                product = (m == -INFINITY ? 0.0f : by * (product + down * total)) + share * (sink - to) * LOG2E;
                total = total * by + share, m = to;
            }
            const bool empty = m == -INFINITY && total == 0.0f;
            const float inverse = empty ? 0.0f : by / total;
            const int64_t at = (b * call.H + h) * call.Q + q + r;
            if (call.highest) call.highest[at] = empty ? 0.0f : m;
            if (call.log_sum) call.log_sum[at] = empty ? -INFINITY : std::log(total);
            if (call.entropy) call.entropy[at] = empty ? 0.0f : std::log(total) - LN2 * product / total;
            if (call.distance) call.distance[at] = sum(load(mine.distance[r])) * inverse;
            if (call.out.data) write(h, q + r, out + r * width, inverse * kept_scale(call));
        }
    }

    void write(int64_t h, int64_t row, const float* x, float inverse) {
        const hw_tensor& t = call.out;
        const int64_t place = b * t.stride[0] + h * t.stride[1] + row * t.stride[2];
        vf check{};
        for (int64_t e = 0; e < call.E; e += W) {
            const vf y = load(x + e) * splat(inverse);
            check += y - y; // 0, or NaN
            const int64_t count = least(W, call.E - e);
            if (call.dtype == HW_FLOAT32 && t.stride[3] == 1 && count == W) {
                store((float*)t.data + place + e, y);
            } else if (T::PAIR == 2 && call.dtype == HW_BFLOAT16 && t.stride[3] == 1 && count == W) {
                P::weights((Weight*)t.data + place + e, y);
            } else {
                float row_of[W];
                store(row_of, y);
                for (int64_t j = 0; j < count; j++) write_number(call.dtype, t.data, place + (e + j) * t.stride[3], row_of[j]);
            }
        }
        odd |= sum(check) != 0.0f;
    }
};

template <class T>
static void forward_piece(void* work, int64_t piece);

struct Work {
    const hw_attention* call;
    int64_t pieces, tiles; // tiles of a piece
    bool failed;
};

template <class T>
static void forward_piece(void* given, int64_t piece) {
    Work& work = *(Work*)given;
    const hw_attention& call = *work.call;
    const int64_t all = (call.Q + TILE - 1) / TILE, groups = (all + work.tiles - 1) / work.tiles;
    piece = work.pieces - 1 - piece; // of a causal mask the last have the most to do, and begin
    const int64_t first = piece % groups * work.tiles, matrix = piece / groups;
    Forward<T> forward{call, matrix / call.G, matrix % call.G, first, least(all, first + work.tiles)};
    if (!forward.prepare()) {
        work.failed = true;
        return;
    }
    forward.run();
    if (forward.odd && call.odd) *call.odd = 1;
}

template <class T>
static int64_t forward(const hw_attention* call) {
    const int64_t heads = call->H / call->G, all = (call->Q + TILE - 1) / TILE;
    Work work{call, 0, most(1, PIECE / TILE / heads), false};
    while (work.tiles > 1 && call->B * call->G * ((all + work.tiles - 1) / work.tiles) < 4 * call->threads) work.tiles = (work.tiles + 1) / 2;
    work.pieces = call->B * call->G * ((all + work.tiles - 1) / work.tiles);
    hw::on_threads(call->threads, work.pieces, forward_piece<T>, &work);
    return work.failed ? 1 : 0;
}

} // namespace ISA
