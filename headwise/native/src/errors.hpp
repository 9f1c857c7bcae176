// The errors of the C interface: their numbers and their messages.
#pragma once

#include <cstdint>

namespace {

enum { FINE, MEMORY, LAYOUT, DTYPE, SIZES, HEADS, MISSING, ALIGNMENT, STRIDES, OVERLAP, MASK, LIMITS, TILES, DROPOUT, ANSWERS, CACHE, ACTIVATION, TEXTS, PAST, PACKED };
const char* const errors[] = {
    "no error",
    "there is not enough memory",
    "the size of the structure is another: the library and its caller are of different versions",
    "the dtype is not known",
    "a size is below 1, or too large",
    "H is not a multiple of G",
    "a pointer is missing",
    "a pointer is not aligned to its dtype",
    "a stride is too large",
    "what is written overlaps itself or what is read",
    "the kind of mask is not known",
    "the limits of a band are too large",
    "the mask has tiles or runs of blocks that do not exist or are out of order",
    "the dropout is not between 0 and 1",
    "a share, a number of largest weights or the size of a picture does not fit the call, or only hw_attention_look answers it",
    "keys and values are of another dtype than queries: int8, which needs factors, is for forward passes of up to 16 rows that share a key head",
    "the activation is not known",
    "texts do not follow one another from 0 to T",
    "a token, its past or a source lies outside of its slots",
    "the weights are packed for another instruction set: pack them again",
};

const int64_t LARGE = INT64_C(1) << 40; // limit of a size, a product of sizes, and the bytes that a tensor spans

} // namespace
