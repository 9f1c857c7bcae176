// Statistics of the weights of whole rows: everything that the forward pass returns besides the output, and statistics
// that need all weights of a row at once (the largest, how many hold most) or each of them (sums of columns, small
// pictures).
//
// A piece of work is a key head, or some of its queries. The scores of a few rows and of all keys that they may see are
// side by side in a strip, which stays in the cache of a core; then the scores of one row after the other become
// weights. How the work is cut depends only on the shapes, so the number of threads does not change the result.
#pragma once

#include "select.hpp"
#include "tile.hpp"

namespace ISA {

constexpr int64_t STRIP = 1 << 20; // bytes of a strip, unless the fewest rows need more

// The columns and pictures of a head, so far. A band: rows that are in the same cells of the pictures.
struct Columns {
    float *sums, *greatest;           // [K], of the columns of the band
    float* received;                  // [K]
    float *mean, *greatest_of;        // [height, width]
};

template <class T>
struct Look {
    typedef Packed<T> P;
    static constexpr int64_t ROWS = T::ROWS;

    const hw_attention& call;
    const int64_t b, g, first_tile, past_tile; // the piece of work
    float* kept;                               // [heads, size_of_columns]
    const int64_t du = P::units(call.D), blocks = (call.K + TILE - 1) / TILE;
    const int64_t heads = call.H / call.G, size = call.dtype == HW_FLOAT32 ? 4 : 2;
    const bool pictures = call.mean || call.greatest, columns = pictures || call.received;
    const bool plain = are_products(call);                  // then scores are kept as products
    const float natural = plain ? (float)call.scale : 1.0f; // the factor from products to scores

    unit *keys = nullptr, *query = nullptr; // [blocks, du, 64], [64, du]
    uint8_t* is_packed = nullptr;           // [blocks]
    float *strip = nullptr, *spare = nullptr; // [rows, span], [span + 64]

    static int64_t size_of_columns(const hw_attention& call) { return 3 * up(call.K, TILE) + 2 * call.height * call.width; }

    Columns columns_of(int64_t head) const {
        const int64_t padded = up(call.K, TILE);
        float* at = kept + head * size_of_columns(call);
        return {at, at + padded, at + 2 * padded, at + 3 * padded, at + 3 * padded + call.height * call.width};
    }

    bool prepare() {
        keys = (unit*)hw::scratch(0, blocks * (TILE * (du + 1) * 4 + 1) + TILE * 4);
        query = (unit*)hw::scratch(1, TILE * du * 4);
        if (!keys || !query) return false;
        spare = (float*)(keys + blocks * TILE * du), is_packed = (uint8_t*)(spare + (blocks + 1) * TILE);
        std::memset(is_packed, 0, blocks);
        return true;
    }

    bool run() {
        const Products products;
        for (int64_t head = 0; head < heads; head++) {
            const Columns mine = columns_of(head);
            if (columns) std::memset(kept + head * size_of_columns(call), 0, 4 * size_of_columns(call));
            for (int64_t tile = first_tile; tile < past_tile; tile++)
                if (!look(g * heads + head, tile, mine)) return false;
            if (columns) close(least(call.Q, past_tile * TILE) - 1, mine);
        }
        return true;
    }

    // Look at the rows of a tile.
    bool look(int64_t h, int64_t tile, const Columns& mine) {
        const Sight sight = sight_of(call, b, h, tile);
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q), span = (sight.past - sight.first) * TILE;
        const hw_tensor& t = call.q;
        P::left(call.dtype, (const char*)t.data + size * (b * t.stride[0] + h * t.stride[1] + q * t.stride[2]), t.stride[2], t.stride[3], some, TILE, call.D, query);
        int64_t rows = TILE;
        while (rows > ROWS && rows * span * 4 > STRIP) rows /= 2;
        rows = up(rows, ROWS);
        strip = (float*)hw::scratch(2, 4 * (rows * span + W));
        if (!strip) return false;
        for (int64_t r0 = 0; r0 < some; r0 += rows) {
            const int64_t r1 = least(some, r0 + rows);
            for (int64_t i = sight.first; i < sight.past; i++) {
                const int64_t number = sight.block(i).number;
                pack(number);
                for (int64_t r = r0; r < r1; r += ROWS)
                    T::product(least(ROWS, r1 - r), query + r * du, du, 1, (const float*)(keys + number * TILE * du), TILE, du, strip + (r - r0) * span + (i - sight.first) * TILE, span, TILE, false);
            }
            for (int64_t r = r0; r < r1; r++) {
                look_at(h, q, r, sight, strip + (r - r0) * span, span, mine);
                if (pictures && ends_band(q + r)) close(q + r, mine);
            }
        }
        return true;
    }

    void pack(int64_t block) {
        if (is_packed[block]) return;
        is_packed[block] = 1;
        const hw_tensor& t = call.k;
        const int64_t k = block * TILE;
        P::transposed(call.dtype, (const char*)t.data + size * (b * t.stride[0] + g * t.stride[1] + k * t.stride[2]), t.stride[2], t.stride[3], least(TILE, call.K - k), call.D, keys + k * du);
    }

    // Look at one row: its scores become weights times the sum of all.
    void look_at(int64_t h, int64_t q, int64_t r, const Sight& sight, float* s, int64_t span, const Columns& mine) {
        const int64_t row = q + r;
        vf top = splat(-INFINITY);
        for (int64_t i = sight.first; i < sight.past; i++) {
            const Block block = sight.block(i);
            float* x = s + (i - sight.first) * TILE;
            if (!plain) transform(call, b, h, row, block.number * TILE, 0, TILE, x);
            hide(call, sight, &block, r, 0, TILE, x);
            for (int64_t j = 0; j < TILE; j += W) top = max(load(x + j), top);
        }
        const float highest_score = highest(top);
        vf totals{}, products{}, lengths{};
        if (highest_score == -INFINITY) { // the row sees no key, or only NaN
            for (int64_t x = 0; x < span; x += W) {
                const vf e = load(s + x) == -INFINITY ? vf{} : load(s + x);
                totals += e;
                store(s + x, e);
            }
        } else {
            const vf m = splat(highest_score), f = splat(natural * LOG2E);
            for (int64_t i = sight.first; i < sight.past; i++) {
                const vi place = lanes() + splat((int32_t)(sight.block(i).number * TILE - (row + call.K - call.Q)));
                float* x = s + (i - sight.first) * TILE;
                for (int64_t j = 0; j < TILE; j += W) {
                    const vf y = (load(x + j) - m) * f, e = exp2<6>(y);
                    totals += e;
                    products = fma(e, max(y, splat(-200.0f)), products); // not 0 times -inf
                    lengths = fma(e, distances(place + splat((int32_t)j)), lengths);
                    store(x + j, e);
                }
            }
        }
        const float on_keys = sum(totals);
        const float inverse = answer(call, b, h, row, scored(highest_score, natural), on_keys, sum(products), sum(lengths));
        const int64_t at = (b * call.H + h) * call.Q + row;
        for (int64_t i = 0; i < call.offset_count; i++) call.at_offsets[at * call.offset_count + i] = weight_at(sight, s, row + call.K - call.Q - call.offsets[i]) * inverse;
        if (call.at_keys) {
            call.at_keys[at] = 0.0f;
            for (int64_t i = 0; i < call.key_count; i++) call.at_keys[at] += weight_at(sight, s, call.keys[(b * call.H + h) * call.key_count + i]) * inverse;
        }
        if (columns && on_keys != 0.0f) add(sight, s, inverse, mine);
        if (call.needed) call.needed[at] = fewest(s, span, on_keys, call.share, spare);
        if (call.top) largest(sight, s, span, inverse, call.top_weights + at * call.top, call.top_keys + at * call.top);
    }

    // The weight on a key, times the sum of all weights.
    float weight_at(const Sight& sight, const float* s, int64_t key) const {
        const int64_t i = key < 0 || key >= call.K ? -1 : sight.find(key / TILE);
        return i < 0 ? 0.0f : s[(i - sight.first) * TILE + key % TILE];
    }

    // Add one row's share to the columns.
    void add(const Sight& sight, const float* s, float inverse, const Columns& mine) {
        for (int64_t i = sight.first; i < sight.past; i++) {
            const int64_t key = sight.block(i).number * TILE;
            const float* x = s + (i - sight.first) * TILE;
            for (int64_t j = 0; j < TILE; j += W) {
                const vf a = load(x + j) * splat(inverse);
                store(mine.sums + key + j, load(mine.sums + key + j) + a);
                if (call.greatest) store(mine.greatest + key + j, max(a, load(mine.greatest + key + j)));
            }
        }
    }

    // The cells of a picture that a row or column is in: [first, past).
    static int64_t first_cell(int64_t at, int64_t cells, int64_t n) { return at * cells / n; }
    static int64_t past_cell(int64_t at, int64_t cells, int64_t n) { return ((at + 1) * cells + n - 1) / n; }

    bool ends_band(int64_t row) const {
        return row + 1 < call.Q && (first_cell(row, call.height, call.Q) != first_cell(row + 1, call.height, call.Q) || past_cell(row, call.height, call.Q) != past_cell(row + 1, call.height, call.Q));
    }

    // Add the band that ends with a row to the totals of the head and to its pictures.
    void close(int64_t row, const Columns& mine) {
        for (int64_t k = 0; k < call.K; k++) mine.received[k] += mine.sums[k];
        for (int64_t x = 0; pictures && x < call.width; x++) {
            const int64_t lo = x * call.K / call.width, hi = ((x + 1) * call.K + call.width - 1) / call.width;
            float total = 0, greatest = 0;
            for (int64_t k = lo; k < hi; k++) {
                total += mine.sums[k];
                greatest = mine.greatest[k] > greatest || mine.greatest[k] != mine.greatest[k] ? mine.greatest[k] : greatest;
            }
            for (int64_t y = first_cell(row, call.height, call.Q); y < past_cell(row, call.height, call.Q); y++) {
                float &mean = mine.mean[y * call.width + x], &most = mine.greatest_of[y * call.width + x];
                mean += total;
                most = greatest > most || greatest != greatest ? greatest : most;
            }
        }
        std::memset(mine.sums, 0, 4 * 2 * up(call.K, TILE));
    }

    // The largest weights of a row, descending, and their keys. If a row sees fewer keys, other keys follow.
    void largest(const Sight& sight, float* s, int64_t span, float inverse, float* weights, int64_t* found) {
        if (span && call.K % TILE && sight.block(sight.past - 1).number == blocks - 1) // the last block has fewer keys
            for (int64_t j = call.K % TILE; j < TILE; j++) s[span - TILE + j] = -1.0f;
        int64_t n = take_largest(s, span, call.top, weights, found, spare);
        for (int64_t i = 0; i < n; i++) {
            weights[i] *= inverse;
            found[i] = sight.block(sight.first + found[i] / TILE).number * TILE + found[i] % TILE;
        }
        for (int64_t key = 0; n < call.top; key++) {
            bool new_one = true;
            for (int64_t i = 0; i < n; i++) new_one &= found[i] != key;
            if (new_one) weights[n] = inverse - inverse, found[n++] = key; // 0, or NaN
        }
    }
};

// Join the columns and pictures of the parts of a head. The next part is `step` numbers further on.
static void join_parts(const hw_attention& call, int64_t head, const float* x, int64_t parts, int64_t step) {
    const int64_t padded = up(call.K, TILE), cells = call.height * call.width;
    for (int64_t part = 0; part < parts; part++, x += step) {
        const float* found = x + 2 * padded;
        for (int64_t k = 0; call.received && k < call.K; k++) call.received[head * call.K + k] = (part ? call.received[head * call.K + k] : 0.0f) + found[k];
        for (int64_t i = 0; i < cells; i++) {
            const int64_t y = i / call.width, column = i % call.width;
            const int64_t rows = ((y + 1) * call.Q + call.height - 1) / call.height - y * call.Q / call.height;
            const int64_t keys = ((column + 1) * call.K + call.width - 1) / call.width - column * call.K / call.width;
            const float mean = found[padded + i] / (float)(rows * keys), greatest = found[padded + cells + i];
            if (call.mean) call.mean[head * cells + i] = (part ? call.mean[head * cells + i] : 0.0f) + mean;
            if (call.greatest) call.greatest[head * cells + i] = part ? (greatest != greatest || greatest > call.greatest[head * cells + i] ? greatest : call.greatest[head * cells + i]) : greatest;
        }
    }
}

template <class T>
static int64_t look(const hw_attention& call) {
    const int64_t all = (call.Q + TILE - 1) / TILE, matrices = call.B * call.G, heads = call.H / call.G;
    const int64_t parts = matrices < 16 ? least(all, (16 + matrices - 1) / matrices) : 1; // parts of each key head
    const int64_t tiles = (all + parts - 1) / parts;                                      // tiles of a part
    const bool columns = call.mean || call.greatest || call.received;
    const int64_t size = columns ? Look<T>::size_of_columns(call) : 0; // numbers for the columns of a head
    float* kept = columns ? (float*)std::aligned_alloc(64, up(4 * call.B * call.H * parts * size, 64)) : nullptr; // [B, G, parts, heads, size]
    if (columns && !kept) return 1;
    const int64_t code = over_with_memory(call.threads, matrices * parts, [&](int64_t piece) {
        const int64_t matrix = piece / parts, first = piece % parts * tiles;
        float* mine = kept + piece * heads * size;
        if (first >= all) return std::memset(mine, 0, 4 * heads * size), true;
        Look<T> look{call, matrix / call.G, matrix % call.G, first, least(all, first + tiles), mine};
        return look.prepare() && look.run();
    });
    if (columns && !code)
        over(call.threads, call.B * call.H, [&](int64_t head) {
            join_parts(call, head, kept + (head / heads * parts * heads + head % heads) * size, parts, heads * size);
        });
    std::free(kept);
    return code;
}

} // namespace ISA
