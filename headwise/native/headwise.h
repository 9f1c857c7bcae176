/* Attention, encoders and decoders on CPUs: the interface of headwise's native kernels. Plain C; every field is 8 bytes wide.

   s = scale q k^T;  s = softcap tanh(s / softcap);  s += bias - slope |i + K - Q - j|;  s = -inf where the mask forbids
   A = exp(s - lse),  lse = log(sum exp(s) + exp(sink));  out = A v

   Strides count elements. A null pointer: not given, or not asked for. Nothing is kept after a call, and nothing is
   written where a call fails. */
#ifndef HEADWISE_H
#define HEADWISE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define HW_API __attribute__((visibility("default")))

enum { HW_FLOAT32, HW_BFLOAT16, HW_FLOAT16, HW_INT8 };
enum { HW_ALL, HW_BAND, HW_BLOCKS };

/* Neighbouring blocks of 64 keys of which a tile of 64 queries sees the same pairs. */
typedef struct {
    int64_t place;  /* how many blocks the runs before it have */
    int64_t number; /* of its first block */
    int64_t words;  /* where the 64 words begin that hold for each of its blocks, or -1 if all pairs are allowed */
} hw_run;

typedef struct {
    void *data;
    int64_t stride[4]; /* batch, head, row, column */
} hw_tensor;

typedef struct {
    int64_t size;    /* sizeof(hw_attention), so that caller and library agree */
    int64_t dtype;   /* of q, out and all gradients: not HW_INT8 */
    int64_t cache_dtype; /* of k and v: as dtype; or HW_INT8, where hw_attention_forward gets H / G * Q <= 16 */
    int64_t threads; /* at most so many */
    int64_t B, H, G, Q, K, D, E;
    hw_tensor q, k, v;     /* [B, H, Q, D], [B, G, K, D], [B, G, K, E] */
    hw_tensor out;         /* [B, H, Q, E]; of the forward pass, where gradients are asked for */
    double scale, softcap; /* softcap 0: none */
    const float *sinks, *slopes; /* [H] */
    hw_tensor k_scale, v_scale; /* [B, G, K, 1], float32: factors on keys and values of HW_INT8 */
    hw_tensor bias;        /* [B, H, Q, K], float32; a stride of 0 broadcasts */
    double dropout;        /* the probability that a weight is dropped; which ones follows from `seed` */
    int64_t seed;

    /* The mask. HW_BAND: low <= key - query <= high, both from 0. HW_BLOCKS: blocks of 64 x 64 with a bit for each pair,
       in runs. */
    int64_t mask, low, high;
    const int64_t *matrix;        /* the first tile of each matrix, at [b * stride[0] + h * stride[1]]; */
    int64_t matrix_stride[2];     /* tile t of a matrix has its queries from 64 t, at most 64 */
    const int64_t *tiles;         /* [tile_count + 1]: where the runs of a tile begin */
    const hw_run *runs;           /* [run_count + 1]: ascending in a tile; of the last, only the place is read */
    const uint64_t *words;        /* [word_count], 64 together: bit j of word i: whether query i sees key j of a block */
    int64_t tile_count, run_count, word_count;

    /* Answers, each [B, H, Q] and contiguous. */
    float *highest, *log_sum; /* lse = highest + log_sum; an empty row has 0 and -inf */
    float *entropy;           /* in nats */
    float *distance;          /* sum of A |i + K - Q - j| */
    int64_t *odd;             /* set to 1 if some output is not finite */

    /* The weights behind these are those before dropout. hw_attention_forward answers received beside highest and
       log_sum, at_keys, and top 1. hw_attention_look answers all of them, and has no outputs. */
    float *received;          /* [B, H, K]: the sum of A over the queries */
    double share;             /* at most 1 */
    int64_t *needed;          /* [B, H, Q]: the fewest keys with this share of the weight on keys */
    int64_t top;              /* at most K and 64 */
    float *top_weights;       /* [B, H, Q, top]: the largest, descending */
    int64_t *top_keys;        /* and their keys */
    int64_t offset_count;
    const int64_t *offsets;   /* [offset_count] */
    float *at_offsets;        /* [B, H, Q, offset_count]: the weight on key i + K - Q - offset; 0 if there is none */
    int64_t key_count;
    const int64_t *keys;      /* [B, H, key_count]; -1: none */
    float *at_keys;           /* [B, H, Q]: the weight on these keys together */
    int64_t height, width;    /* of pictures; cell i is of the rows from floor(i Q / height) to ceil((i + 1) Q / height) */
    float *mean, *greatest;  /* [B, H, height, width]: mean and largest weight of each cell */

    /* Gradients, from highest, log_sum and out of the forward pass. */
    hw_tensor d_out;          /* [B, H, Q, E] */
    hw_tensor d_q, d_k, d_v;  /* as q, k, v */
    hw_tensor d_bias;         /* [B, H, Q, K], float32: what is there is added to */
    float *d_slopes, *d_sinks; /* [H] */
} hw_attention;

enum { HW_IDENTITY, HW_RELU, HW_GELU, HW_GELU_TANH, HW_SILU };

/* The weights of a linear layer with N outputs and K inputs, in strips of s outputs: [N / s, K / n, s, n], N and K rounded
   up to multiples of 64, with zeros: n = 1 float, 2 bf16, or 4 int8. Vectors are float32 [N], rounded up too. */
typedef struct {
    const void *data;
    int64_t strip;       /* s, as hw_strip() answered for the instruction set in use */
    const float *bias;   /* not null */
    const float *scale;  /* of int8: factors on the weights */
    const float *offset; /* of int8: 128 times the sum over K of the int8 weights of an output */
} hw_weights;

typedef struct {
    const float *weight, *bias; /* [M], rounded up as above */
    double eps;
} hw_norm;

/* y = act(x W^T + bias), or LayerNorm(residual + x W^T + bias), of contiguous float32. With HW_BFLOAT16 the products are
   of bf16, with HW_INT8 of int8: each row of x is divided by the scale that makes its largest number 127. Sums are exact
   or float32. */
typedef struct {
    int64_t size, dtype, threads, T, K, N, activation;
    const float *x;        /* [T, K] */
    hw_weights weights;
    const float *residual; /* [T, N]; null: no LayerNorm */
    hw_norm norm;
    float *y;              /* [T, N] */
} hw_linear;

typedef struct {
    hw_weights qkv, out, up, down; /* of M -> 3 M, M -> M, M -> F and F -> M */
    hw_weights cross_q, cross_out; /* of M -> M; read where there is a source */
    hw_weights gate;               /* of M -> F; its data are null without a gate, as in an encoder */
    hw_norm attention_norm, mlp_norm, cross_norm;
} hw_layer;

/* Rows of three tables by their numbers, which must be in the tables, and the LayerNorm of their sum. */
typedef struct {
    const int64_t *ids, *types, *places;  /* [T]; ids null: x is given instead */
    const float *word, *type, *position;  /* [.., M], contiguous */
    hw_norm norm;
} hw_embeddings;

/* Layers of x = LayerNorm(x + out(attention(qkv(x)))), x = LayerNorm(x + down(act(up(x)))), over texts behind one another,
   each of which attends to itself alone. With `last`, the norms stand before the branches, x += out(attention(qkv(
   LayerNorm(x)))), x += down(act(up(LayerNorm(x)))), and the last one behind the layers. */
typedef struct {
    int64_t size, dtype, threads, T, M, H, F, activation, layers, texts;
    double scale;
    const hw_layer *layer;         /* [layers] */
    const int64_t *first;          /* [texts + 1]: where each begins, from 0 to T */
    const hw_norm *last;           /* null: the norms stand behind the branches */
    const float *cos, *sin;        /* [longest, turned], of float32 alone: as in hw_decoder; null: nothing is turned */
    int64_t longest, turned;       /* tokens of a text at most, where they are turned */
    hw_embeddings embeddings;
    const float *gates;            /* [layers, H]: factors on what each head attended to; 0: 0 whatever that is; null: 1 */
    float *x;                      /* [T, M], read if there are no ids, and written */
    void *qkv;                     /* [layers, T, 3 M], written: float32, or bfloat16 where dtype is less; null: not kept */
} hw_encoder;

/* One more token in each hypothesis of several texts, by layers of x += out(attention(norm(x))), then the same of a
   source, then x += down(act(up(norm(x)))) or, with a gate, x += down(act(gate(norm(x))) up(norm(x))). A row is a hypothesis, `width` behind one another for each text. Keys and
   values stand where the steps before left them: each hypothesis knows which one of its text wrote each slot of its past,
   so that none of them moves when a beam search goes on. */
typedef struct {
    int64_t size, dtype, threads, T, M, H, F, activation, layers, width, V;
    int64_t rms;                   /* 1: the norms are RMSNorm, whose biases are 0; 0: LayerNorm */
    double scale, cross_scale;
    const hw_layer *layer;         /* [layers] */
    float *keys, *values;          /* [layers, room, slots, width, M]: the slot of the token is written */
    int64_t room, slots;
    const int64_t *places;         /* [T / width]: the slot of the token of each text */
    const int64_t *past;           /* [T, slots]: which hypothesis wrote a slot, for those before that one */
    const float *source_keys, *source_values; /* [layers, source_room, source_slots, M]; null: there is no source */
    int64_t source_room, source_slots;
    const int64_t *lengths;        /* [T / width]: tokens of each source, at least 1 */
    const float *cos, *sin;        /* [slots, turned]: by these dimension i and i + turned of each head of queries and
                                      keys are turned in every slot; null: not at all */
    int64_t turned;                /* at most M / H / 2 */
    hw_norm norm;                  /* behind the layers */
    hw_weights vocabulary;         /* of M -> V; not read where there are no logits */
    const float *x;                /* [T, M] */
    float *hidden;                 /* [T, M], written; null: not asked for */
    float *logits;                 /* [T, V], written; null: not asked for */
} hw_decoder;

/* y = x / (1 - dropout) where a number is kept, else 0. Which ones are kept follows from `seed` and their places, so the
   same call on the gradient of y answers that of x. */
typedef struct {
    int64_t size, dtype, threads, N; /* dtype: not HW_INT8 */
    double dropout;
    int64_t seed;
    const void *x; /* [N] */
    void *y;       /* [N], written: x itself, or apart from it */
} hw_dropout;

/* The number of this file (build.py) with which the library was compiled. */
HW_API int64_t hw_interface(void);
/* The instruction sets that were compiled, from the plainest; null past the last. */
HW_API const char *hw_isa_name(int64_t which);
/* Whether this machine has one; which is in use; take one (0, or -1 if this machine lacks it). */
HW_API int64_t hw_isa_here(int64_t which);
HW_API int64_t hw_isa_used(void);
HW_API int64_t hw_isa_use(int64_t which);
/* How many outputs of packed weights the instruction set in use reads next to one another. */
HW_API int64_t hw_strip(void);

/* GOMP_parallel of the OpenMP runtime whose threads are to do the work; null: threads of our own, which sleep when idle. */
HW_API void hw_threads_of(void (*parallel)(void (*)(void *), void *, unsigned, unsigned));

/* 0, or the number of an error, in words by hw_error. */
HW_API int64_t hw_attention_forward(const hw_attention *call);
HW_API int64_t hw_attention_backward(const hw_attention *call);
HW_API int64_t hw_attention_look(const hw_attention *call);
HW_API int64_t hw_linear_forward(const hw_linear *call);
HW_API int64_t hw_encoder_forward(const hw_encoder *call);
HW_API int64_t hw_decoder_step(const hw_decoder *call);
HW_API int64_t hw_dropout_of(const hw_dropout *call);
HW_API const char *hw_error(int64_t code);

#ifdef __cplusplus
}
#endif
#endif
