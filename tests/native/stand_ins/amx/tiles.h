/* AMX tiles in plain C, in place of the compiler's intrinsics, for processors without AMX. Anything that the
 * instructions leave undefined or fault on ends the program: tile products before tiles are configured or with sizes
 * that do not match, and memory accesses beyond a tile. `open_tiles` returns 1 until the program releases its tiles.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps

#define __AMX_INT8__ 1
#define MLF_TILES_PERMITTED 1

#if defined(__GNUC__)
#define UNUSED __attribute__((unused))
#endif

static UNUSED struct {
  int open;
  int rows[8], bytes[8];
  uint8_t data[8][16][64];
} tiles;

int open_tiles(void);
int products_of_tiles(void);
static int products;

int open_tiles(void) { return tiles.open; }
int products_of_tiles(void) { return products; }

static UNUSED void require(int condition) {
  if (!condition) {
    abort();
  }
}

static UNUSED void tile_loadconfig(const void *place) {
  const uint8_t *config = (const uint8_t *)place;
  require(config[0] == 1 && config[1] == 0);
  for (int i = 2; i < 16; ++i) {
    require(config[i] == 0);
  }
  memset(&tiles, 0, sizeof tiles);
  tiles.open = 1;
  for (int i = 0; i < 8; ++i) {
    tiles.bytes[i] = config[16 + 2 * i] | config[17 + 2 * i] << 8;
    tiles.rows[i] = config[48 + i];
    require(tiles.rows[i] <= 16 && tiles.bytes[i] <= 64 && (tiles.rows[i] == 0) == (tiles.bytes[i] == 0));
  }
}

static UNUSED void tile_release(void) { memset(&tiles, 0, sizeof tiles); }

static UNUSED void tile_loadd(int tile, const void *base, long stride) {
  require(tiles.open && tiles.rows[tile] > 0);
  memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    memcpy(tiles.data[tile][row], (const uint8_t *)base + row * stride, (size_t)tiles.bytes[tile]);
  }
}

static UNUSED void tile_stored(int tile, void *base, long stride) {
  require(tiles.open && tiles.rows[tile] > 0);
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    memcpy((uint8_t *)base + row * stride, tiles.data[tile][row], (size_t)tiles.bytes[tile]);
  }
}

static UNUSED void tile_dpbusd(int sums, int a, int b) {
  require(tiles.open && sums != a && sums != b && a != b);
  require(tiles.rows[sums] == tiles.rows[a] && tiles.bytes[sums] == tiles.bytes[b]);
  require(tiles.bytes[a] == 4 * tiles.rows[b]);
  ++products;
  for (int row = 0; row < tiles.rows[sums]; ++row) {
    for (int column = 0; column < tiles.bytes[sums] / 4; ++column) {
      int32_t total;
      memcpy(&total, &tiles.data[sums][row][4 * column], sizeof total);
      for (int k = 0; k < tiles.bytes[a]; ++k) {
        const int32_t product = tiles.data[a][row][k] * (int8_t)tiles.data[b][k / 4][4 * column + k % 4];
        total = (int32_t)((uint32_t)total + (uint32_t)product);
      }
      memcpy(&tiles.data[sums][row][4 * column], &total, sizeof total);
    }
  }
}

static UNUSED float of_bfloat(const uint8_t *place) {
  uint8_t bytes[4] = {0, 0, place[0], place[1]};
  float value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

/* as the instruction, except that subnormal numbers are not flushed to zero */
static UNUSED void tile_dpbf16ps(int sums, int a, int b) {
  require(tiles.open && sums != a && sums != b && a != b);
  require(tiles.rows[sums] == tiles.rows[a] && tiles.bytes[sums] == tiles.bytes[b]);
  require(tiles.bytes[a] == 4 * tiles.rows[b]);
  ++products;
  for (int row = 0; row < tiles.rows[sums]; ++row) {
    for (int column = 0; column < tiles.bytes[sums] / 4; ++column) {
      float total, halves[2] = {0.0f, 0.0f};
      memcpy(&total, &tiles.data[sums][row][4 * column], sizeof total);
      for (int k = 0; k < tiles.bytes[a] / 2; ++k) {
        const float weight = of_bfloat(&tiles.data[b][k / 2][4 * column + 2 * (k % 2)]);
        halves[k % 2] += of_bfloat(&tiles.data[a][row][2 * k]) * weight;
      }
      total += halves[0] + halves[1];
      memcpy(&tiles.data[sums][row][4 * column], &total, sizeof total);
    }
  }
}

#define _tile_dpbf16ps(sums, a, b) tile_dpbf16ps(sums, a, b)
#define _tile_loadconfig(place) tile_loadconfig(place)
#define _tile_release() tile_release()
#define _tile_loadd(tile, base, stride) tile_loadd(tile, base, stride)
#define _tile_stored(tile, base, stride) tile_stored(tile, base, stride)
#define _tile_dpbusd(sums, a, b) tile_dpbusd(sums, a, b)
