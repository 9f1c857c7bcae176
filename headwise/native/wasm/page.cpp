// The native encoder in a page: compiled to WebAssembly by build.py, called by headwise/viewer/static/model/encoder.js.
// It holds one model, with its weights as headwise/viewer/carried.py lays them out, and computes one text at a time.
#include "../src/check_encoder.hpp"
#include "../src/encoder.hpp"
#include "../src/look.hpp"

#define PAGE(name) extern "C" __attribute__((export_name(#name)))

namespace hw { // in place of src/pool.cpp: a single thread

void on_threads(int64_t, int64_t pieces, Piece piece, void* work) {
    for (int64_t i = 0; i < pieces; i++) piece(work, i);
}

void* scratch(int slot, int64_t bytes) {
    static void* data[8];
    static int64_t sizes[8];
    if (sizes[slot] < bytes) {
        std::free(data[slot]);
        data[slot] = std::aligned_alloc(64, ISA::up(bytes, 64));
        sizes[slot] = data[slot] ? bytes : 0;
    }
    return data[slot];
}

} // namespace hw

int64_t hw_strip() { return ISA::STRIP_WIDTH; }

namespace {

hw_encoder call; // of the model, and of the text that was run last
int64_t words, kinds;
const float* word; // [words, M], or [words, M] of int8 with a scale for each row
const float* word_scale;
int64_t first[2];
enum { OF_QKV = 6, OF_TEXT = 7 }; // slots of scratch that the kernels leave alone

struct Text { // what is given of a text, and what follows from it
    int32_t* ids;            // [T]
    float *gates;            // [layers, H]
    float *x, *of_words;     // [T, M]
    int64_t *places, *types; // [T], the types all 0
    float *found;            // what look() returns
    int64_t *needed, *keys, *first_keys; // [H, T], [H, T], [H]
} text;

// Tensors behind one another, each from a multiple of 16 bytes.
struct Reader {
    char* at;
    template <class T> T* take(int64_t count) {
        T* found = (T*)at;
        at += ISA::up(count * (int64_t)sizeof(T), 16);
        return found;
    }
    hw_norm norm() { return {take<float>(ISA::padded(call.M)), take<float>(ISA::padded(call.M)), *take<double>(1)}; }
    hw_weights weights(int64_t strip, int64_t K, int64_t N) {
        const int64_t n = ISA::padded(N), bytes = n * ISA::padded(K) * (call.dtype == HW_INT8 ? 1 : 4);
        hw_weights w{take<char>(bytes), strip, take<float>(n), nullptr, nullptr};
        if (call.dtype == HW_INT8) w.scale = take<float>(n), w.offset = take<float>(n);
        return w;
    }
};

} // namespace

PAGE(room) void* room(int bytes) { return std::aligned_alloc(64, ISA::up(bytes, 64)); }

// Take a model from these bytes, which stay in use. Returns how many bytes belong to it, or 0 if there is no memory.
PAGE(load) int load(char* bytes, int dtype, int strip, int M, int H, int F, int activation, int layers, int of_words, int positions, int of_types, double scale) {
    hw_layer* layer = (hw_layer*)std::calloc(layers, sizeof(hw_layer));
    if (!layer) return 0;
    call.size = sizeof call, call.dtype = dtype, call.threads = call.texts = 1, call.scale = scale;
    call.M = M, call.H = H, call.F = F, call.activation = activation, call.layers = layers, call.layer = layer, call.first = first;
    words = of_words, kinds = of_types;
    Reader reader{bytes};
    if (dtype == HW_INT8) word = (float*)reader.take<char>(words * M), word_scale = reader.take<float>(words);
    else word = reader.take<float>(words * M);
    call.embeddings.position = reader.take<float>(positions * M), call.embeddings.type = reader.take<float>(kinds * M);
    call.embeddings.norm = reader.norm();
    for (int i = 0; i < layers; i++) {
        hw_layer& one = layer[i];
        one.qkv = reader.weights(strip, M, 3 * M), one.out = reader.weights(strip, M, M);
        one.up = reader.weights(strip, M, F), one.down = reader.weights(strip, F, M);
        one.attention_norm = reader.norm(), one.mlp_norm = reader.norm();
    }
    return reader.at - bytes;
}

// Where to write the ids of a text of 1 to `positions` tokens, int32 [T], and the gates, float [layers, H], each from a
// multiple of 16 bytes. Null if there is no memory.
PAGE(begin) void* begin(int T) {
    const int64_t n = T * call.M, of_heads = call.H * T;
    Reader reader{(char*)hw::scratch(OF_TEXT, 16 * n + 44 * of_heads + 20 * T + 4 * call.layers * call.H + 8 * call.H + 200)};
    call.qkv = hw::scratch(OF_QKV, 12 * n * call.layers);
    if (!reader.at || !call.qkv) return nullptr;
    call.T = first[1] = T;
    text = {reader.take<int32_t>(T), reader.take<float>(call.layers * call.H), reader.take<float>(n), reader.take<float>(n), reader.take<int64_t>(T), reader.take<int64_t>(T),
            reader.take<float>(2 * n + 7 * of_heads), reader.take<int64_t>(of_heads), reader.take<int64_t>(of_heads), reader.take<int64_t>(call.H)};
    return text.ids;
}

// Run the model on the text. Returns 0, or the number of an error.
PAGE(run) int run() {
    for (int64_t t = 0; t < call.T; t++) {
        const int64_t id = text.ids[t];
        if (id < 0 || id >= words) return SIZES;
        text.places[t] = t, text.types[t] = 0;
        float* to = text.of_words + t * call.M;
        if (call.dtype == HW_FLOAT32) std::memcpy(to, word + id * call.M, 4 * call.M);
        else for (int64_t j = 0; j < call.M; j++) to[j] = ((const int8_t*)word)[id * call.M + j] * word_scale[id];
    }
    hw_embeddings& tables = call.embeddings;
    tables.ids = tables.places = text.places, tables.types = text.types, tables.word = text.of_words; // the words of the text
    call.x = text.x, call.gates = text.gates;
    if (const int64_t code = check(call)) return code;
    return call.dtype == HW_INT8 ? ISA::encoder<ISA::Int8>(call) : ISA::encoder<ISA::Float32>(call);
}

PAGE(hidden) const float* hidden() { return call.x; } // [T, M]

// Queries and keys of a layer, [2, H, T, D], and then of each row, [7, H, T]: entropy, distance, the weight on the key before
// and on the first one, how many keys hold 90 %, the largest weight, and its key. Null if there is no memory.
PAGE(look) const float* look(int layer) {
    const int64_t T = call.T, D = call.M / call.H, all = call.H * T, before = 1;
    float *q = text.found, *rows = q + 2 * all * D, *to = q;
    for (int64_t part = 0; part < 2; part++)
        for (int64_t h = 0; h < call.H; h++)
            for (int64_t t = 0; t < T; t++, to += D) ISA::floats_of(call.dtype == HW_INT8 ? HW_BFLOAT16 : HW_FLOAT32, call.qkv, ((layer * T + t) * 3 + part) * call.M + h * D, 1, D, to);
    for (int64_t h = 0; h < call.H; h++) text.first_keys[h] = 0;
    hw_attention one{};
    one.threads = one.B = 1, one.H = one.G = call.H, one.Q = one.K = T, one.D = one.E = D, one.scale = call.scale;
    one.q = {q, {0, T * D, D, 1}}, one.k = {q + all * D, {0, T * D, D, 1}};
    one.entropy = rows, one.distance = rows + all;
    one.offset_count = 1, one.offsets = &before, one.at_offsets = rows + 2 * all;
    one.key_count = 1, one.keys = text.first_keys, one.at_keys = rows + 3 * all;
    one.share = 0.9, one.needed = text.needed;
    one.top = 1, one.top_weights = rows + 5 * all, one.top_keys = text.keys;
    if (ISA::look<ISA::Float32>(one)) return nullptr;
    for (int64_t i = 0; i < all; i++) rows[4 * all + i] = (float)text.needed[i], rows[6 * all + i] = (float)text.keys[i];
    return q;
}

PAGE(error) const char* error(int code) { return errors[code]; }
