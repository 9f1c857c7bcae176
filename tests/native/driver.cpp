// Calls the C interface on small shapes and compares it with the definition, in double: for machines without torch, such as
// an emulated one, and for sanitizers. Two threads do so at once. A line for each instruction set; the exit status is 1 if a
// number is wrong. With the argument `best`, one thread runs only the instruction set that the library chose.
#include "../../headwise/native/headwise.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t B = 1, H = 4, G = 2, K = 133, D = 20, E = 12, TOP = 5;
const char *const DTYPES[] = {"float32", "bfloat16", "float16"}, *const MASKS[] = {"all", "band", "blocks"};
thread_local std::mt19937 draws(0);

// [b, h, rows, columns] of a dtype. Drawn are multiples of 1/64 below 2, which all dtypes have.
struct Array {
    int64_t dtype, shape[4];
    std::vector<uint32_t> words;

    Array(int64_t dtype, int64_t b, int64_t h, int64_t rows, int64_t columns, bool drawn = false)
        : dtype(dtype), shape{b, h, rows, columns}, words(b * h * rows * columns) {
        if (!drawn) return;
        for (int64_t i = 0; i < (int64_t)words.size(); i++) {
            const int number = (int)(draws() % 255) - 127;
            const float x = (number ? number : 1) / 64.0f;
            uint32_t bits;
            std::memcpy(&bits, &x, 4);
            const uint32_t half = (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - (112u << 23)) >> 13;
            if (dtype == HW_FLOAT32) words[i] = bits;
            else ((uint16_t *)words.data())[i] = (uint16_t)(dtype == HW_BFLOAT16 ? bits >> 16 : half);
        }
    }
    double at(int64_t b, int64_t h, int64_t row, int64_t column) const {
        const int64_t i = ((b * shape[1] + h) * shape[2] + row) * shape[3] + column;
        const uint32_t half = ((const uint16_t *)words.data())[i], bits = dtype == HW_FLOAT32 ? words[i] : half << 16;
        if (dtype == HW_FLOAT16) {
            const int exponent = half >> 10 & 31, fraction = half & 1023;
            return (half >> 15 ? -1 : 1) * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
        }
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    operator hw_tensor() { return {words.data(), {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}}; }
};

// HW_BLOCKS, other bits for each head: of each tile blocks 0 and 2 by bits, and of every other tile all of block 1.
struct Blocks {
    std::vector<int64_t> matrix, tiles{0};
    std::vector<hw_run> runs;
    std::vector<uint64_t> words;

    Blocks() {
        for (int64_t h = 0; h < H; h++) {
            matrix.push_back(2 * h);
            for (int64_t tile = 0; tile < 2; tile++) {
                for (int64_t block = tile; block < 3; block++) {
                    runs.push_back({(int64_t)runs.size(), block, block == 1 ? -1 : (int64_t)words.size()});
                    for (int r = 0; r < 64 && block != 1; r++) words.push_back(r % 7 ? ((uint64_t)draws() << 32 | draws()) & (block == 2 ? 31 : ~0ull) : 0);
                }
                tiles.push_back((int64_t)runs.size());
            }
        }
        runs.push_back({(int64_t)runs.size(), 0, 0});
    }
    bool sees(int64_t h, int64_t i, int64_t j) const {
        for (int64_t at = tiles[2 * h + i / 64]; at < tiles[2 * h + i / 64 + 1]; at++)
            if (runs[at].number == j / 64) return runs[at].words < 0 || words[runs[at].words + i % 64] >> j % 64 & 1;
        return false;
    }
};

thread_local double worst; // difference of a call, in units of what is allowed
void compare(double found, double expected, double allowed) {
    const double difference = std::fabs(found - expected) / (allowed * (1 + std::fabs(expected)));
    worst = difference <= worst ? worst : difference; // NaN too
}

double check(int64_t Q, int64_t dtype, int64_t mask, bool options, double scale = 0.25) {
    Array q(dtype, B, H, Q, D, true), k(dtype, B, G, K, D, true), v(dtype, B, G, K, E, true), d_out(dtype, B, H, Q, E, true), bias(HW_FLOAT32, B, H, Q, K, true);
    Array out(dtype, B, H, Q, E), d_q(dtype, B, H, Q, D), d_k(dtype, B, G, K, D), d_v(dtype, B, G, K, E), d_bias(HW_FLOAT32, B, H, Q, K);
    Array highest(HW_FLOAT32, B, H, Q, 1), log_sum(HW_FLOAT32, B, H, Q, 1), entropy(HW_FLOAT32, B, H, Q, 1), received(HW_FLOAT32, B, H, 1, K), largest(HW_FLOAT32, B, H, Q, TOP), mean(HW_FLOAT32, B, H, 1, 1);
    std::vector<int64_t> places(B * H * Q * TOP);
    const float sinks[H] = {0.5f, -1.0f, 2.0f, 0.0f}, slopes[H] = {0.5f, 0.25f, 0.02f, -0.01f};
    const Blocks blocks;
    hw_attention call = {};
    call.size = sizeof call, call.dtype = call.cache_dtype = dtype, call.threads = 2;
    call.B = B, call.H = H, call.G = G, call.Q = Q, call.K = K, call.D = D, call.E = E;
    call.q = q, call.k = k, call.v = v, call.out = out, call.scale = scale;
    if (options) call.softcap = 3.0, call.sinks = sinks, call.slopes = slopes, call.bias = bias;
    call.mask = mask, call.low = K - Q - 30, call.high = K - Q;
    call.matrix = blocks.matrix.data(), call.matrix_stride[1] = 1, call.tiles = blocks.tiles.data(), call.runs = blocks.runs.data(), call.words = blocks.words.data();
    call.tile_count = (int64_t)blocks.tiles.size() - 1, call.run_count = (int64_t)blocks.runs.size() - 1, call.word_count = (int64_t)blocks.words.size();
    call.highest = (float *)highest.words.data(), call.log_sum = (float *)log_sum.words.data(), call.entropy = (float *)entropy.words.data();
    int64_t code = hw_attention_forward(&call);
    hw_attention back = call, look = call;
    back.entropy = nullptr, back.d_out = d_out, back.d_q = d_q, back.d_k = d_k, back.d_v = d_v, back.d_bias = d_bias;
    if (!code) code = hw_attention_backward(&back);
    look.out.data = look.highest = look.log_sum = nullptr;
    look.received = (float *)received.words.data(), look.top = TOP, look.top_weights = (float *)largest.words.data(), look.top_keys = places.data();
    look.height = look.width = 1, look.mean = (float *)mean.words.data();
    if (!code) code = hw_attention_look(&look);
    if (code) return std::printf("%s\n", hw_error(code)), INFINITY;

    const double near = dtype == HW_FLOAT32 ? 1e-5 : dtype == HW_BFLOAT16 ? 2e-2 : 2e-3, steep = near * std::fmax(1, scale);
    worst = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t g = 0; g < G; g++) {
            std::vector<double> dk(K * D), dv(K * E);
            for (int64_t h = g * H / G; h < (g + 1) * H / G; h++) {
                std::vector<double> got(K);
                double all = 0;
                for (int64_t i = 0; i < Q; i++) {
                    std::vector<double> s(K), a(K), da(K), dq(D), o(E);
                    double top = options ? sinks[h] : -INFINITY, total = 0, inner = 0, nats = 0, first = 0;
                    for (int64_t j = 0; j < K; j++) {
                        for (int64_t d = 0; d < D; d++) s[j] += scale * q.at(b, h, i, d) * k.at(b, g, j, d);
                        if (options) s[j] = 3 * std::tanh(s[j] / 3);
                        const bool seen = mask == HW_ALL || (mask == HW_BAND ? call.low <= j - i && j - i <= call.high : blocks.sees(h, i, j));
                        a[j] = seen ? s[j] + (options ? bias.at(b, h, i, j) - slopes[h] * std::abs((double)(i + K - Q - j)) : 0) : -INFINITY, top = std::fmax(top, a[j]);
                    }
                    for (double &each : a) each = top == -INFINITY ? 0 : std::exp(each - top), total += each;
                    total += options ? std::exp(sinks[h] - top) : 0;
                    for (int64_t j = 0; j < K; j++) {
                        a[j] = total > 0 ? a[j] / total : 0, got[j] += a[j], all += a[j], first = std::fmax(first, a[j]);
                        nats -= a[j] > 0 ? a[j] * std::log(a[j]) : 0;
                        for (int64_t e = 0; e < E; e++) o[e] += a[j] * v.at(b, g, j, e), da[j] += d_out.at(b, h, i, e) * v.at(b, g, j, e);
                        inner += a[j] * da[j];
                    }
                    const double sink = options ? std::exp(sinks[h] - top) / total : 0;
                    compare(entropy.at(b, h, i, 0), nats - (sink > 0 ? sink * std::log(sink) : 0), 1e-4);
                    compare(largest.at(b, h, i, 0), std::fmax(first, 0), 1e-4);
                    for (int64_t j = 0; j < K; j++) {
                        double ds = a[j] * (da[j] - inner);
                        compare(d_bias.at(b, h, i, j), ds, near);
                        if (options) ds *= 1 - s[j] * s[j] / 9;
                        for (int64_t d = 0; d < D; d++) dq[d] += scale * ds * k.at(b, g, j, d), dk[j * D + d] += scale * ds * q.at(b, h, i, d);
                        for (int64_t e = 0; e < E; e++) dv[j * E + e] += a[j] * d_out.at(b, h, i, e);
                    }
                    for (int64_t e = 0; e < E; e++) compare(out.at(b, h, i, e), o[e], near);
                    for (int64_t d = 0; d < D; d++) compare(d_q.at(b, h, i, d), dq[d], steep);
                }
                for (int64_t j = 0; j < K; j++) compare(received.at(b, h, 0, j), got[j], 1e-4);
                compare(mean.at(b, h, 0, 0), all / (Q * K), 1e-5);
            }
            for (int64_t x = 0; x < K * D; x++) compare(d_k.at(b, g, x / D, x % D), dk[x], steep);
            for (int64_t x = 0; x < K * E; x++) compare(d_v.at(b, g, x / E, x % E), dv[x], near);
        }
    return worst;
}

// Layers of encoders and decoders: M is no multiple of a vector, and a head neither.
constexpr int64_t M = 20, HEADS = 2, DEPTH = M / HEADS, F = 27, V = 70, LAYERS = 2, TURNED = 4, LONGEST = 8;
typedef std::vector<double> Row;

float drawn() { return (float)((int)(draws() % 255) - 127) / 256.0f; }

int64_t padded(int64_t n) { return (n + 63) / 64 * 64; }

// Weights are whole numbers from `least` to 127, times a scale of their output.
struct Linear {
    int64_t N, K, dtype, strip = hw_strip();
    std::vector<int8_t> number;
    std::vector<uint32_t> data;
    std::vector<float> bias, scale, offset;

    Linear(int64_t N, int64_t K, int64_t dtype = HW_FLOAT32, int least = -127)
        : N(N), K(K), dtype(dtype), number(N * K), data(padded(N) * padded(K)), bias(padded(N)), scale(padded(N)), offset(padded(N)) {
        const int64_t n_of_unit = dtype == HW_FLOAT32 ? 1 : dtype == HW_BFLOAT16 ? 2 : 4;
        for (int64_t n = 0; n < N; n++) {
            bias[n] = drawn(), scale[n] = (dtype == HW_INT8 ? 1 + n % 3 : 1) / 256.0f;
            for (int64_t k = 0; k < K; k++) {
                const int8_t drawn = (int8_t)(least + (int)(draws() % (128 - least)));
                const int64_t at = ((n / strip * padded(K) + k) / n_of_unit * strip + n % strip) * n_of_unit + k % n_of_unit;
                const float x = drawn * scale[n];
                uint32_t bits;
                std::memcpy(&bits, &x, 4);
                if (dtype == HW_FLOAT32) data[at] = bits;
                else if (dtype == HW_BFLOAT16) ((uint16_t *)data.data())[at] = (uint16_t)(bits >> 16);
                else ((int8_t *)data.data())[at] = drawn;
                number[n * K + k] = drawn, offset[n] += 128.0f * drawn;
            }
        }
    }
    Row of(const Row &x) const {
        Row y(bias.begin(), bias.begin() + N);
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) y[n] += x[k] * number[n * K + k] * scale[n];
        return y;
    }
    operator hw_weights() const { return {data.data(), strip, bias.data(), scale.data(), offset.data()}; }
};

// Multiples of 1/64 whose largest size in each row is 127/64: no dtype rounds them or their sums, so results are exact.
// They and the weights are so large that a float does not hold the sums of bytes before the offset is subtracted.
double check_linear(int64_t dtype, int64_t T, int64_t threads) {
    const int64_t K = 1100, N = 70;
    Linear weights(N, K, dtype, 64);
    std::fill(weights.bias.begin(), weights.bias.end(), 0.0f);
    std::vector<float> x(T * K), y(T * N);
    for (int64_t i = 0; i < T * K; i++) x[i] = (i % K ? (int)(draws() % 159) - 31 : -127) / 64.0f;
    hw_linear call = {};
    call.size = sizeof call, call.dtype = dtype, call.threads = threads, call.T = T, call.K = K, call.N = N;
    call.x = x.data(), call.weights = weights, call.y = y.data();
    if (const int64_t code = hw_linear_forward(&call)) return std::printf("%s\n", hw_error(code)), INFINITY;
    worst = 0;
    for (int64_t t = 0; t < T; t++) {
        const Row expected = weights.of(Row(x.begin() + t * K, x.begin() + (t + 1) * K));
        for (int64_t n = 0; n < N; n++) compare(y[t * N + n], (float)expected[n], 1e-12);
    }
    return worst;
}

struct Norm {
    std::vector<float> weight = std::vector<float>(padded(M)), bias = weight;

    explicit Norm(bool shifted = true) {
        for (int64_t i = 0; i < M; i++) weight[i] = 1 + drawn(), bias[i] = shifted ? drawn() : 0;
    }
    Row of(Row x, bool rms = false) const {
        double mean = 0, variance = 0;
        for (double each : x) mean += rms ? 0 : each / M;
        for (double each : x) variance += (each - mean) * (each - mean) / M;
        for (int64_t i = 0; i < M; i++) x[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + bias[i];
        return x;
    }
    operator hw_norm() const { return {weight.data(), bias.data(), 1e-5}; }
};

struct Angles {
    std::vector<float> cos, sin;
    Angles() {
        for (int64_t i = 0; i < LONGEST * TURNED; i++) cos.push_back(std::cos(0.3f * i)), sin.push_back(std::sin(0.3f * i));
    }
    void turn(Row &x, int64_t place, int64_t parts) const { // of the first parts of M
        for (int64_t h = 0; h < parts * HEADS; h++)
            for (int64_t i = 0; i < TURNED; i++) {
                double &a = x[h * DEPTH + i], &b = x[h * DEPTH + i + TURNED];
                const double c = cos[place * TURNED + i], s = sin[place * TURNED + i], was = a;
                a = a * c - b * s, b = b * c + was * s;
            }
    }
};

struct Parts {
    int64_t dtype;
    Linear qkv{3 * M, M, dtype}, out{M, M, dtype}, cross_q{M, M, dtype}, cross_out{M, M, dtype}, gate{F, M, dtype}, up{F, M, dtype}, down{M, F, dtype};
    Norm attention, cross, mlp;

    explicit Parts(int64_t dtype = HW_FLOAT32) : dtype(dtype) {}
    Row feed(const Row &x, bool gated) const {
        Row a = (gated ? gate : up).of(x), b = up.of(x);
        for (int64_t i = 0; i < F; i++) a[i] = a[i] / (1 + std::exp(-a[i])) * (gated ? b[i] : 1);
        return down.of(a);
    }
};

void add(Row &x, const Row &y) {
    for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
}

Row part(const Row &x, int64_t which) { return Row(x.begin() + which * M, x.begin() + (which + 1) * M); }

Row attended(const Row &q, const std::vector<Row> &keys, const std::vector<Row> &values, double scale) {
    Row out(M);
    for (int64_t h = 0; h < HEADS; h++) {
        Row a(keys.size());
        double total = 0;
        for (size_t j = 0; j < keys.size(); j++) {
            for (int64_t d = h * DEPTH; d < (h + 1) * DEPTH; d++) a[j] += scale * q[d] * keys[j][d];
            total += a[j] = std::exp(a[j]);
        }
        for (size_t j = 0; j < keys.size(); j++)
            for (int64_t d = h * DEPTH; d < (h + 1) * DEPTH; d++) out[d] += a[j] / total * values[j][d];
    }
    return out;
}

double check_encoder(bool before, int64_t threads, int64_t dtype = HW_FLOAT32) {
    const std::vector<int64_t> first{0, 5, 5, 6, 13};
    const int64_t T = first.back();
    std::vector<Parts> parts;
    for (int64_t i = 0; i < LAYERS; i++) parts.emplace_back(dtype);
    const Norm last;
    const hw_norm last_norm = last;
    const Angles angles;
    std::vector<hw_layer> layers;
    for (const Parts &each : parts) layers.push_back({each.qkv, each.out, each.up, each.down, {}, {}, {}, each.attention, each.mlp, {}});
    std::vector<float> x(T * M), qkv(LAYERS * T * 3 * M);
    for (float &each : x) each = drawn();
    std::vector<Row> rows;
    for (int64_t t = 0; t < T; t++) rows.emplace_back(x.begin() + t * M, x.begin() + (t + 1) * M);
    hw_encoder call = {};
    call.size = sizeof call, call.dtype = dtype, call.threads = threads, call.T = T, call.M = M, call.H = HEADS, call.F = F, call.activation = HW_SILU;
    call.layers = LAYERS, call.texts = (int64_t)first.size() - 1, call.scale = 0.3, call.layer = layers.data(), call.first = first.data();
    if (before) call.last = &last_norm, call.cos = angles.cos.data(), call.sin = angles.sin.data(), call.longest = LONGEST, call.turned = TURNED;
    call.x = x.data(), call.qkv = before ? nullptr : qkv.data();
    if (const int64_t code = hw_encoder_forward(&call)) return std::printf("%s\n", hw_error(code)), INFINITY;
    for (const Parts &layer : parts) {
        std::vector<Row> q;
        for (int64_t text = 0; text < call.texts; text++)
            for (int64_t t = first[text]; t < first[text + 1]; t++) {
                q.push_back(layer.qkv.of(before ? layer.attention.of(rows[t]) : rows[t]));
                if (before) angles.turn(q.back(), t - first[text], 2);
            }
        for (int64_t text = 0; text < call.texts; text++) {
            std::vector<Row> keys, values;
            for (int64_t t = first[text]; t < first[text + 1]; t++) keys.push_back(part(q[t], 1)), values.push_back(part(q[t], 2));
            for (int64_t t = first[text]; t < first[text + 1]; t++) {
                add(rows[t], layer.out.of(attended(q[t], keys, values, call.scale)));
                if (!before) rows[t] = layer.attention.of(rows[t]);
                add(rows[t], layer.feed(before ? layer.mlp.of(rows[t]) : rows[t], false));
                if (!before) rows[t] = layer.mlp.of(rows[t]);
            }
        }
    }
    worst = 0;
    for (int64_t t = 0; t < T; t++) {
        const Row expected = before ? last.of(rows[t]) : rows[t];
        for (int64_t i = 0; i < M; i++) compare(x[t * M + i], expected[i], dtype == HW_FLOAT32 ? 2e-5 : dtype == HW_BFLOAT16 ? 5e-2 : 0.25);
    }
    return worst;
}

// Two texts of two hypotheses, the second of which begins two steps later; with a source or, with RMSNorm and a gate, without.
double check_decoder(bool source, int64_t threads) {
    const int64_t texts = 2, width = 2, T = texts * width, slots = 6, room = 3, sources = 5;
    const std::vector<Parts> parts(LAYERS);
    const Norm last(source);
    std::vector<Norm> plain;
    for (int64_t i = 0; i < 2 * LAYERS; i++) plain.emplace_back(false);
    const Linear vocabulary(V, M);
    const Angles angles;
    std::vector<hw_layer> layers;
    for (int64_t i = 0; i < LAYERS; i++) {
        const Parts &each = parts[i];
        layers.push_back({each.qkv, each.out, each.up, each.down, each.cross_q, each.cross_out, each.gate, each.attention, each.mlp, each.cross});
        if (source) layers.back().gate = {};
        else layers.back().attention_norm = plain[2 * i], layers.back().mlp_norm = plain[2 * i + 1];
    }
    std::vector<float> keys(LAYERS * room * slots * width * M, NAN), values = keys, source_keys(LAYERS * texts * sources * M), source_values = source_keys;
    std::vector<float> x(T * M), hidden(T * M), logits(T * V);
    for (float &each : source_keys) each = drawn();
    for (float &each : source_values) each = drawn();
    const std::vector<int64_t> lengths{5, 2};
    std::vector<int64_t> places(texts), past(T * slots, -1);
    std::vector<std::vector<Row>> read(T); // what each hypothesis has read
    hw_decoder call = {};
    call.size = sizeof call, call.threads = threads, call.T = T, call.M = M, call.H = HEADS, call.F = F, call.activation = HW_SILU, call.layers = LAYERS;
    call.width = width, call.V = V, call.rms = !source, call.scale = 0.3, call.cross_scale = 0.2, call.layer = layers.data();
    call.keys = keys.data(), call.values = values.data(), call.room = room, call.slots = slots, call.places = places.data(), call.past = past.data();
    if (source) call.source_keys = source_keys.data(), call.source_values = source_values.data(), call.source_room = texts, call.source_slots = sources, call.lengths = lengths.data();
    call.cos = angles.cos.data(), call.sin = angles.sin.data(), call.turned = TURNED, call.norm = last, call.vocabulary = vocabulary;
    call.x = x.data(), call.hidden = hidden.data(), call.logits = logits.data();
    worst = 0;
    for (int64_t step = 0; step < 5; step++) {
        for (float &each : x) each = drawn();
        const std::vector<std::vector<Row>> before = read;
        const std::vector<int64_t> past_before = past;
        for (int64_t r = 0; r < T; r++) {
            const int64_t from = r / width * width + (int64_t)draws() % width;
            read[r] = step == 2 && r >= width ? std::vector<Row>() : before[from];
            std::copy(past_before.begin() + from * slots, past_before.begin() + (from + 1) * slots, past.begin() + r * slots);
            places[r / width] = (int64_t)read[r].size();
            read[r].emplace_back(x.begin() + r * M, x.begin() + (r + 1) * M);
        }
        if (const int64_t code = hw_decoder_step(&call)) return std::printf("%s\n", hw_error(code)), INFINITY;
        for (int64_t r = 0; r < T; r++) {
            past[r * slots + places[r / width]] = r % width;
            std::vector<Row> rows = read[r];
            for (int64_t l = 0; l < LAYERS; l++) {
                const Parts &layer = parts[l];
                std::vector<Row> k, v, k_source, v_source;
                for (int64_t i = 0; i < lengths[r / width]; i++) {
                    const int64_t at = ((l * texts + r / width) * sources + i) * M;
                    k_source.emplace_back(source_keys.begin() + at, source_keys.begin() + at + M);
                    v_source.emplace_back(source_values.begin() + at, source_values.begin() + at + M);
                }
                for (size_t t = 0; t < rows.size(); t++) {
                    Row q = layer.qkv.of((source ? layer.attention : plain[2 * l]).of(rows[t], !source));
                    angles.turn(q, (int64_t)t, 2);
                    k.push_back(part(q, 1)), v.push_back(part(q, 2));
                    add(rows[t], layer.out.of(attended(q, k, v, call.scale)));
                    if (source) add(rows[t], layer.cross_out.of(attended(layer.cross_q.of(layer.cross.of(rows[t])), k_source, v_source, call.cross_scale)));
                    add(rows[t], layer.feed((source ? layer.mlp : plain[2 * l + 1]).of(rows[t], !source), !source));
                }
            }
            const Row expected = last.of(rows.back(), !source), scores = vocabulary.of(expected);
            for (int64_t i = 0; i < M; i++) compare(hidden[r * M + i], expected[i], 2e-5);
            for (int64_t i = 0; i < V; i++) compare(logits[r * V + i], scores[i], 1e-4);
        }
    }
    return worst;
}

// Each number is kept or not, the same ones of x and of its gradient, and a part of 1 - dropout of them is kept.
double check_dropout(int64_t dtype) {
    constexpr int64_t N = 20011;
    Array x(dtype, 1, 1, 1, N, true), y(dtype, 1, 1, 1, N), d_y(dtype, 1, 1, 1, N, true), d_x(dtype, 1, 1, 1, N);
    hw_dropout call = {sizeof call, dtype, 2, N, 0.25, 7, x.words.data(), y.words.data()}, back = call;
    back.x = d_y.words.data(), back.y = d_x.words.data();
    int64_t code = hw_dropout_of(&call);
    if (!code) code = hw_dropout_of(&back);
    if (code) return std::printf("%s\n", hw_error(code)), INFINITY;
    const double near = dtype == HW_FLOAT32 ? 1e-6 : dtype == HW_BFLOAT16 ? 1e-2 : 1e-3;
    worst = 0;
    int64_t many = 0;
    for (int64_t i = 0; i < N; i++) {
        const bool kept = y.at(0, 0, 0, i) != 0;
        many += kept;
        compare(y.at(0, 0, 0, i), kept ? x.at(0, 0, 0, i) / 0.75 : 0, near);
        compare(d_x.at(0, 0, 0, i), kept ? d_y.at(0, 0, 0, i) / 0.75 : 0, near);
    }
    compare((double)many / N, 0.75, 0.01);
    return worst;
}

// What is wrong; "" if nothing is.
std::string check_all() {
    std::string wrong;
    const auto near = [&](double found, const std::string &what) {
        if (!(found <= 1)) wrong += " " + what + ": " + std::to_string(found) + " times as far off as is allowed;";
    };
    for (int64_t i = 0; i < 36; i++) {
        const int64_t Q = i % 2 ? 70 : 2, options = i / 2 % 2, mask = i / 4 % 3, dtype = i / 12; // a few rows go another way
        near(check(Q, dtype, mask, options), std::string(DTYPES[dtype]) + ", " + std::to_string(Q) + " queries, mask " + MASKS[mask] + (options ? ", options" : ""));
    }
    for (int64_t i = 0; i < 8; i++) {
        const int64_t Q = i % 2 ? 70 : 2, dtype = i / 2 % 2;
        near(check(Q, dtype, HW_BAND, false, i / 4 ? 1e-40 : 1e10), std::string(DTYPES[dtype]) + ", " + std::to_string(Q) + " queries, scale " + (i / 4 ? "1e-40" : "1e10"));
    }
    for (int64_t i = 0; i < 8; i++) {
        const int64_t other = i % 2, decodes = i / 2 % 2;
        near(decodes ? check_decoder(other, 1 + i / 4) : check_encoder(other, 1 + i / 4), std::string(decodes ? "decoder " : "encoder ") + std::to_string(other));
    }
    for (int64_t dtype : {HW_FLOAT32, HW_BFLOAT16, HW_INT8}) {
        for (int64_t T : {1, 5, 103}) near(check_linear(dtype, T, 2), "linear of " + std::to_string(T) + " rows, dtype " + std::to_string(dtype));
        if (dtype != HW_FLOAT32) near(check_encoder(false, 2, dtype), "encoder, dtype " + std::to_string(dtype));
    }
    for (int64_t dtype = 0; dtype < 3; dtype++) near(check_dropout(dtype), std::string("dropout of ") + DTYPES[dtype]);
    return wrong;
}

} // namespace

int main(int count, char **arguments) {
    const bool alone = count > 1 && !std::strcmp(arguments[1], "best");
    bool failed = false;
    const int64_t best = hw_isa_used();
    for (int64_t which = 0; hw_isa_name(which); which++) {
        std::printf("%s:", hw_isa_name(which));
        if (hw_isa_use(which)) {
            std::printf(" not on this machine\n");
            continue;
        }
        if (alone && which != best) {
            std::printf(" here\n");
            continue;
        }
        std::string wrong, of_other;
        std::thread other([&] { if (!alone) of_other = check_all(); });
        wrong = check_all();
        other.join();
        failed |= !(wrong + of_other).empty();
        std::printf("%s%s done%s\n", wrong.c_str(), of_other.c_str(), which == best ? ", chosen by itself" : "");
    }
    return failed;
}
