/* Products of bytes and of bfloat16 by tiles (AMX) and portably; the pieces of this file are copied into code that
 * calls them.
 *
 * A kernel configures the tiles once, for all its products, as this takes as long as a dozen of them. It releases them
 * at its end, so that the system need not save them, and other code does not find them in use. Tiles 0 to 3 are sums,
 * 4 and 5 rows of data, 6 and 7 weights; functions do not preserve tiles, as the ABI specifies.
 *
 * Compilers do not know that the instructions read memory, so a barrier orders them.
 */

//: includes
#if defined(__AMX_INT8__) || defined(__AMXINT8__)
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define MLF_TILES /* clang had a name of its own at first */
#endif

//: open
#if defined(MLF_TILES)
$permission

static int32_t mlf_tiles_here;

/* requests tiles when the program is loaded, before it has threads; no tiles are used until then */
__attribute__((constructor)) static void mlf_ask_for_tiles(void) { mlf_tiles_here = mlf_tiles_permitted(); }
#endif

/* sets the sizes of tiles: so many rows of data, and 4 * depth bytes of each. Returns 1, or 0 where there are none. */
static inline int32_t mlf_tiles_open(int32_t rows, int32_t depth) {
#if defined(MLF_TILES)
  if (mlf_tiles_here) {
    uint8_t sizes[64] __attribute__((aligned(64))) = {1};
    for (int32_t tile = 0; tile < 8; ++tile) {
      sizes[16 + 2 * tile] = tile == 4 || tile == 5 ? (uint8_t)(4 * depth) : 64;
      sizes[48 + tile] = tile < 6 ? (uint8_t)rows : (uint8_t)depth;
    }
    __asm__ __volatile__("" ::: "memory");
    _tile_loadconfig(sizes);
    return 1;
  }
#else
  (void)rows;
  (void)depth;
#endif
  return 0;
}

//: close
/* gives the tiles back */
static inline int32_t mlf_tiles_close(int32_t tiles) {
#if defined(MLF_TILES)
  if (tiles) {
    _tile_release();
  }
#else
  (void)tiles;
#endif
  return 0;
}

//: products
/* sums of $across vectors of 16 filters for $down times `rows` pixels: start + data * weights; see mlfc/isa/amx */
static inline void mlf_${name}_${down}x$across(
    int32_t tiles, $sum *sums, const $sum *start, const $data *data, const $weight *weights, int32_t rows,
    int32_t depth, int32_t pixel, int32_t next, int32_t lines, int32_t pitch, int32_t taps, int32_t hop, int32_t steps,
    int32_t wide) {
#if defined(MLF_TILES)
  if (tiles) {
    const $weight *factor = weights;
    __asm__ __volatile__("" ::: "memory");
$begin
    for (int32_t line = 0; line < lines; ++line) {
      for (int32_t tap = 0; tap < taps; ++tap) {
        const $data *values = data + line * pitch + tap * hop;
        for (int32_t step = 0; step < steps; ++step) {
$multiply
          values += $group * depth;
          factor += 16 * $group * depth * wide;
        }
      }
    }
$end
    __asm__ __volatile__("" ::: "memory");
    return;
  }
#else
  (void)tiles;
#endif
  for (int32_t row = 0; row < $down * rows; ++row) {
    const $data *values = data + row / rows * next + row % rows * pixel;
    const $weight *factor = weights;
    $sum *total = sums + row * ($across * 16);
    memcpy(total, start, $across * 16 * sizeof *total);
    for (int32_t line = 0; line < lines; ++line) {
      for (int32_t tap = 0; tap < taps; ++tap) {
        for (int32_t step = 0; step < steps * depth; ++step) {
          const $data *group = values + line * pitch + tap * hop + $group * step;
          for (int32_t c = 0; c < $across * 16; ++c) {
            const $weight *own = factor + $group * c;
            total[c] += $products;
          }
          factor += 16 * $group * wide;
        }
      }
    }
  }
}
