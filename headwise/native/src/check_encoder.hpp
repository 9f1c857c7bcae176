// Checks of the arguments of linear layers and encoders.
#pragma once

#include "../headwise.h"
#include "errors.hpp"

#include <initializer_list>

namespace {

// Whether pointers are multiples of so many bytes, or null.
bool aligned(uintptr_t bytes, std::initializer_list<const void*> pointers) {
    for (const void* each : pointers)
        if ((uintptr_t)each % bytes) return false;
    return true;
}

int64_t check_weights(const hw_weights& weights, int64_t dtype) {
    if (weights.strip != hw_strip()) return PACKED;
    if (!weights.data || !weights.bias || (dtype == HW_INT8 && (!weights.scale || !weights.offset))) return MISSING;
    return aligned(4, {weights.data, weights.bias, weights.scale, weights.offset}) ? FINE : ALIGNMENT;
}

int64_t check_norm(const hw_norm& norm) {
    if (!norm.weight || !norm.bias) return MISSING;
    return aligned(4, {norm.weight, norm.bias}) ? FINE : ALIGNMENT;
}

// Check the weights of a layer: those of cross-attention if there is a source, and of a gate if there is one.
int64_t check_layer(const hw_layer& layer, int64_t dtype, bool source) {
    for (const hw_weights* each : {&layer.qkv, &layer.out, &layer.up, &layer.down})
        if (const int64_t code = check_weights(*each, dtype)) return code;
    for (const hw_norm* each : {&layer.attention_norm, &layer.mlp_norm})
        if (const int64_t code = check_norm(*each)) return code;
    if (layer.gate.data)
        if (const int64_t code = check_weights(layer.gate, dtype)) return code;
    if (!source) return FINE;
    for (const hw_weights* each : {&layer.cross_q, &layer.cross_out})
        if (const int64_t code = check_weights(*each, dtype)) return code;
    return check_norm(layer.cross_norm);
}

// The checks that a linear layer and an encoder share. A row of a matrix has at most 2^20 numbers, so that no size
// overflows.
template <class Call>
int64_t check_rows(const Call& call, std::initializer_list<int64_t> widths) {
    if (call.size != sizeof(Call)) return LAYOUT;
    if (call.dtype != HW_FLOAT32 && call.dtype != HW_BFLOAT16 && call.dtype != HW_INT8) return DTYPE;
    if (call.activation < HW_IDENTITY || call.activation > HW_SILU) return ACTIVATION;
    if (call.T < 0 || call.T >= INT64_C(1) << 31 || call.threads < 1 || call.threads >= INT64_C(1) << 31) return SIZES;
    for (int64_t each : widths)
        if (each < 1 || each > 1 << 20) return SIZES;
    return FINE;
}

int64_t check(const hw_linear& call) {
    if (const int64_t code = check_rows(call, {call.K, call.N})) return code;
    if (call.T && (!call.x || !call.y)) return MISSING;
    if (!aligned(4, {call.x, call.y, call.residual})) return ALIGNMENT;
    if (const int64_t code = check_weights(call.weights, call.dtype)) return code;
    return call.residual ? check_norm(call.norm) : (int64_t)FINE;
}

int64_t check(const hw_encoder& call) {
    if (const int64_t code = check_rows(call, {call.M, call.F, call.H})) return code;
    if (call.layers < 0 || call.layers > 1 << 20 || call.texts < 0 || call.texts > LARGE) return SIZES;
    if (call.M % call.H) return HEADS;
    if (!call.first || (call.layers && !call.layer) || (call.T && !call.x)) return MISSING;
    if (!aligned(4, {call.x, call.qkv, call.gates}) || !aligned(8, {call.first, call.layer})) return ALIGNMENT;
    if (call.first[0] || call.first[call.texts] != call.T) return TEXTS;
    for (int64_t i = 0; i < call.texts; i++)
        if (call.first[i + 1] < call.first[i]) return TEXTS;
    if (call.last)
        if (const int64_t code = check_norm(*call.last)) return code;
    if (call.last && !call.layers) return SIZES;
    if (call.cos) {
        if (!call.sin) return MISSING;
        if (call.dtype != HW_FLOAT32) return DTYPE;
        if (call.turned < 0 || call.turned > call.M / call.H / 2) return SIZES;
        for (int64_t i = 0; i < call.texts; i++)
            if (call.first[i + 1] - call.first[i] > call.longest) return TEXTS;
    }
    if (const hw_embeddings& tables = call.embeddings; tables.ids) {
        if (!tables.types || !tables.places || !tables.word || !tables.type || !tables.position) return MISSING;
        if (const int64_t code = check_norm(tables.norm)) return code;
    }
    for (int64_t i = 0; i < call.layers; i++)
        if (const int64_t code = check_layer(call.layer[i], call.dtype, false)) return code;
    return FINE;
}

} // namespace
