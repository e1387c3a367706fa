/* SPDX-License-Identifier: Apache-2.0
 * MXFP8 quantisation, row-wise and column-wise, with linear or packed scales.
 */
#include "tensors.h"

static int64_t blocks_in(int64_t length) {
  return (length + 31) / 32;
}

/* Scale rule RCEIL (MXFP8-2): with amax = s * 2^e, 1 <= s < 2, the exponent is e - emax, and one
 * more if s > 1.75. An infinity gives the largest byte (MXFP8-4c), a block of zeros byte 0. */
static int scale_byte(double amax, dropless_dtype format) {
  int exponent;
  if (isinf(amax)) return 254;
  if (amax == 0) return 0;
  const double s = 2 * frexp(amax, &exponent);
  const int byte = exponent - 1 - (format == DROPLESS_E4M3 ? 8 : 15) + (s > 1.75) + 127;
  return byte < 0 ? 0 : byte > 254 ? 254 : byte;
}

/* x / 2^(byte - 127), rounded once to nearest even, saturating (MXFP8-3a). */
static uint8_t encode(double x, int byte, dropless_dtype format) {
  const int digits = format == DROPLESS_E4M3 ? 3 : 2, least = format == DROPLESS_E4M3 ? -6 : -14;
  const double largest = format == DROPLESS_E4M3 ? 448 : 57344;
  int exponent;
  if (isnan(x)) return 0x7F;
  double y = ldexp(fabs(x), 127 - byte);
  if (y > largest) y = largest;
  frexp(y, &exponent);
  exponent = y == 0 || exponent - 1 < least ? least : exponent - 1; /* subnormal codes */
  const int mantissa = (int)nearbyint(ldexp(y, digits - exponent));
  return (uint8_t)((signbit(x) ? 0x80 : 0) | (((exponent - least) << digits) + mantissa));
}

/* One direction of one matrix: where its codes and scales go. */
typedef struct {
  const dropless_tensor *x, *codes, *scales;
  int column_wise, packed, square_tiles;
} direction;

/* Rows and columns of one scale matrix as it is packed: outer index by block (MXFP8-7a). */
static int64_t packed_bytes(const direction* d, int64_t zone) {
  const int64_t outer = d->column_wise ? d->x->shape[1] : zone;
  const int64_t blocks = blocks_in(d->column_wise ? zone : d->x->shape[1]);
  return 512 * ((outer + 127) / 128) * ((blocks + 3) / 4);
}

static int direction_fits(const direction* d, const zones* z) {
  const int64_t rows = d->x->shape[0], columns = d->x->shape[1], e8m0 = 1 << DROPLESS_E8M0;
  int64_t needed = 0;
  for (int64_t g = 0; g < z->groups; ++g) {
    const int64_t zone = zone_begin(z, g + 1) - zone_begin(z, g);
    needed += d->packed ? packed_bytes(d, zone) : blocks_in(zone);
  }
  if (!fits(d->codes, CODES, 2, rows, columns, 1)) return 0;
  if (d->packed) return fits(d->scales, e8m0, 1, ANY, 1, 1) && d->scales->shape[0] >= needed;
  if (!d->column_wise) return fits(d->scales, e8m0, 2, rows, blocks_in(columns), 1);
  return fits(d->scales, e8m0, 2, ANY, columns, 1) && d->scales->shape[0] >= needed;
}

/* Largest magnitude in rows [r0,r1) and columns [c0,c1), NaN left out (MXFP8-4b, "element"). */
static double amax_of(const dropless_tensor* x, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
  double amax = 0;
  for (int64_t r = r0; r < r1; ++r) {
    for (int64_t c = c0; c < c1; ++c) amax = fmax(amax, fabs(get(x, r, c, 0)));
  }
  return amax;
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* One block: outer index is the row (row-wise) or the column (column-wise); `block` counts along
 * the contraction. Rows from real_end on are coded as zero whatever they hold (MXFP8-6a). */
static void quantize_block(const direction* d, int64_t begin, int64_t end, int64_t real,
                           int64_t scale_base, int64_t outer, int64_t block) {
  const int64_t columns = d->x->shape[1];
  const int64_t r0 = d->column_wise ? begin + 32 * block : begin + outer;
  const int64_t r1 = d->column_wise ? least(r0 + 32, end) : r0 + 1;
  const int64_t c0 = d->column_wise ? outer : 32 * block;
  const int64_t c1 = d->column_wise ? outer + 1 : least(c0 + 32, columns);
  const int padding_row = !d->column_wise && r0 >= real; /* its scale byte is 0, MXFP8-8 */
  int64_t a0 = r0, a1 = r1, b0 = c0, b1 = c1;
  if (d->square_tiles) { /* MXFP8-6c: only the amax changes */
    a0 = begin + (r0 - begin) / 32 * 32, a1 = a0 + 32, b0 = c0 / 32 * 32,
    b1 = least(b0 + 32, columns);
  }
  const double amax = padding_row ? 0 : amax_of(d->x, a0, least(a1, real), b0, b1);
  const int byte = scale_byte(amax, d->codes->dtype);
  for (int64_t r = r0; r < r1; ++r) {
    for (int64_t c = c0; c < c1; ++c) {
      const double value = r < real ? get(d->x, r, c, 0) : 0;
      *at(d->codes, r, c, 0) = (char)encode(value, byte, d->codes->dtype);
    }
  }
  if (d->packed) {
    const int64_t across = (blocks_in(d->column_wise ? end - begin : columns) + 3) / 4;
    const int64_t tile = outer / 128 * across + block / 4;
    const int64_t inside = outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4;
    *at(d->scales, scale_base + 512 * tile + inside, 0, 0) = (char)byte;
  } else if (d->column_wise) {
    *at(d->scales, scale_base + block, outer, 0) = (char)byte;
  } else {
    *at(d->scales, r0, block, 0) = (char)byte;
  }
}

static void quantize_direction(const direction* d, const zones* z) {
  int64_t scale_base = 0;
  for (int64_t g = 0; g < z->groups; ++g) {
    const int64_t begin = zone_begin(z, g), end = zone_begin(z, g + 1), zone = end - begin;
    const int64_t outers = d->column_wise ? d->x->shape[1] : zone;
    const int64_t blocks = blocks_in(d->column_wise ? zone : d->x->shape[1]);
    const int64_t bytes = d->packed ? packed_bytes(d, zone) : 0;
    for (int64_t i = 0; i < bytes; ++i) *at(d->scales, scale_base + i, 0, 0) = 0; /* MXFP8-7b */
    for (int64_t outer = 0; outer < outers; ++outer) {
      for (int64_t block = 0; block < blocks; ++block) {
        quantize_block(d, begin, end, real_end(z, g), scale_base, outer, block);
      }
    }
    scale_base += d->packed ? bytes : blocks;
  }
}

dropless_status quantize(void* context, dropless_call* call, dropless_quantize_args* a) {
  const int packed = a->scale_layout == DROPLESS_SCALES_PACKED, tiles = a->square_tiles != 0;
  (void)context;
  REFUSE_IF(!packed && a->scale_layout != DROPLESS_SCALES_LINEAR, "scale_layout is unknown");
  REFUSE_IF(!fits(a->x, FLOATS, 2, ANY, ANY, 1), "x must be [rows,columns], fp32 or bf16");
  REFUSE_IF(a->offsets == NULL && a->counts != NULL, "counts need offsets");
  const zones z = {a->offsets, a->counts, a->offsets != NULL ? a->offsets->shape[0] - 1 : 1,
                   a->x->shape[0]};
  REFUSE_IF(!zones_are_legal(&z), "offsets or counts are illegal");
  const direction both[2] = {{a->x, a->row_codes, a->row_scales, 0, packed, tiles},
                             {a->x, a->column_codes, a->column_scales, 1, packed, tiles}};
  for (int i = 0; i < 2; ++i) {
    const int wanted = both[i].codes != NULL || both[i].scales != NULL;
    REFUSE_IF(wanted && !direction_fits(&both[i], &z), "codes or scales do not fit x");
  }
  /* Each direction from x itself, never from the other one's codes (MXFP8-1c). */
  for (int i = 0; i < 2; ++i) {
    if (both[i].codes != NULL) quantize_direction(&both[i], &z);
  }
  return done(call);
}
