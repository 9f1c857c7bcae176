// Checks of the arguments of decoders.
#pragma once

#include "check_encoder.hpp"

namespace {

// Whether a x b x c x d x M floats can be addressed.
bool fits(int64_t a, int64_t b, int64_t c, int64_t d, int64_t M) {
    __int128 most = 4;
    for (int64_t each : {a, b, c, d, M}) {
        if (each < 1 || each > LARGE) return false;
        if ((most *= each) > LARGE) return false;
    }
    return true;
}

int64_t check_past(const hw_decoder& call) {
    for (int64_t row = 0; row < call.T; row++) {
        const int64_t place = call.places[row / call.width];
        if (place < 0 || place >= call.slots) return PAST;
        for (int64_t slot = 0; slot < place; slot++)
            if (const int64_t by = call.past[row * call.slots + slot]; by < 0 || by >= call.width) return PAST;
    }
    for (int64_t i = 0; call.source_keys && i < call.T / call.width; i++)
        if (call.lengths[i] < 1 || call.lengths[i] > call.source_slots) return PAST;
    return FINE;
}

int64_t check(const hw_decoder& call) {
    if (const int64_t code = check_rows(call, {call.M, call.F, call.H, call.width})) return code;
    if (call.layers < 1 || call.layers > 1 << 20 || call.T % call.width || (call.logits && (call.V < 1 || call.V > 1 << 24))) return SIZES;
    if (call.M % call.H) return HEADS;
    if (!call.layer || !call.keys || !call.values || !call.places || !call.past || !call.x) return MISSING;
    if (call.room < call.T / call.width || !fits(call.layers, call.room, call.slots, call.width, call.M)) return SIZES;
    if (call.source_keys) {
        if (!call.source_values || !call.lengths) return MISSING;
        if (call.source_room < call.T / call.width || !fits(call.layers, call.source_room, call.source_slots, 1, call.M)) return SIZES;
    }
    if (call.cos && !call.sin) return MISSING;
    if (call.cos && (call.turned < 0 || call.turned > call.M / call.H / 2)) return SIZES;
    if (!aligned(4, {call.keys, call.values, call.source_keys, call.source_values, call.cos, call.sin, call.x, call.hidden, call.logits})) return ALIGNMENT;
    if (!aligned(8, {call.layer, call.places, call.past, call.lengths})) return ALIGNMENT;
    for (int64_t i = 0; i < call.layers; i++)
        if (const int64_t code = check_layer(call.layer[i], call.dtype, call.source_keys)) return code;
    if (const int64_t code = check_norm(call.norm)) return code;
    if (call.logits)
        if (const int64_t code = check_weights(call.vocabulary, call.dtype)) return code;
    return check_past(call);
}

} // namespace
