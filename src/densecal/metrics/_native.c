/* Passes over pictures that take NumPy many arrays: histograms, distances in the grid, objects, patches, weighted F.
 *
 * Every function has a counterpart in NumPy, named in its comment, that is used where this file was not compiled and
 * gives the same bits: results are integers, or floats computed by the same operations in the same order. So this file
 * must be compiled without contraction of multiplications and additions, as -std=c11 and MSVC do. Callers pass
 * contiguous arrays of the types that are named here; sizes are checked, values are not.
 */

#include "_native.h"

#define API 3 /* compiled.py knows which it can call */

#define BLOCK 32 /* columns whose distances are searched together */
#define MAX_LIMIT 180

static int check_shape(Py_ssize_t height, Py_ssize_t width) {
    if (height > 0 && width > 0 && width <= INT32_MAX / 4 && height <= INT32_MAX / width)
        return 0;
    PyErr_Format(PyExc_ValueError, "a picture of %zd x %zd pixels", height, width);
    return -1;
}

/* ------------------------------------------------------------------------------------------------ histograms */

#define RUN 16
#define KEYS 512 /* pixels whose bins are found together */

/* The bin of every pixel: its zone, if there are zones, the value of its mask, and its level. */
WIDE static void make_keys(const byte *levels, const byte *mask, const byte *zones, int pixels, uint16_t *keys) {
    if (zones)
        for (int x = 0; x < pixels; x++)
            keys[x] = (uint16_t)((zones[x] & 3) << 9 | (mask[x] != 0) << 8 | levels[x]);
    else
        for (int x = 0; x < pixels; x++)
            keys[x] = (uint16_t)((mask[x] != 0) << 8 | levels[x]);
}

/* Add at most 2^30 pixels to WAYS tables of counts. Most pixels share one bin, where each increment waits for the one
 * before, so neighbours have tables of their own, and equal neighbours, as in most of the background and of objects,
 * are counted together. */
static void count_part(const byte *levels, const byte *mask, const byte *zones, Py_ssize_t pixels, uint32_t *tables) {
    const int bins = zones ? 4 * 512 : 512;
    for (Py_ssize_t first = 0; first < pixels; first += KEYS) {
        uint16_t keys[KEYS];
        int count = pixels - first < KEYS ? (int)(pixels - first) : KEYS, i = 0;
        make_keys(levels + first, mask + first, zones ? zones + first : NULL, count, keys);
        for (; i + RUN <= count; i += RUN) {
            uint64_t fours[RUN / 4], equal = keys[i] * UINT64_C(0x0001000100010001), differ = 0;
            memcpy(fours, keys + i, sizeof fours);
            for (int j = 0; j < RUN / 4; j++)
                differ |= fours[j] ^ equal;
            if (!differ) {
                tables[keys[i]] += RUN;
                continue;
            }
            for (int j = 0; j < RUN; j++)
                tables[j % WAYS * bins + keys[i + j]]++;
        }
        for (; i < count; i++)
            tables[i % WAYS * bins + keys[i]]++;
    }
}

WIDE static void add_counts(const uint32_t *restrict table, int bins, int64_t *restrict counts) {
    for (int bin = 0; bin < bins; bin++)
        counts[bin] += table[bin];
}

/* count_levels(levels, mask, counts, pixels): add pixels to int64 (2, 256); segmentation.count_levels. */
static PyObject *count_levels(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t pixels;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOn", &objects[0], &objects[1], &objects[2], &pixels))
        return NULL;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 512}, "bbQ", "count_levels") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < pixels; first += 1 << 30) {
        uint32_t tables[WAYS * 512] = {0};
        count_part(levels + first, mask + first, NULL, pixels - first < 1 << 30 ? pixels - first : 1 << 30, tables);
        for (int way = 0; way < WAYS; way++)
            add_counts(tables + way * 512, 512, views[2].buf);
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
    Py_RETURN_NONE;
}

/* count_zones(levels, mask, zones, counts, pixels): the same by zone 0 to 3, into int64 (4, 2, 256). */
static PyObject *count_zones(PyObject *self, PyObject *args) {
    PyObject *objects[4];
    Py_ssize_t pixels;
    Py_buffer views[4];
    if (!PyArg_ParseTuple(args, "OOOOn", &objects[0], &objects[1], &objects[2], &objects[3], &pixels))
        return NULL;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, pixels, 4 * 512}, "bbbQ", "count_zones") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf, *zones = views[2].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < pixels; first += 1 << 30) {
        uint32_t tables[WAYS * 4 * 512] = {0};
        Py_ssize_t part = pixels - first < 1 << 30 ? pixels - first : 1 << 30;
        count_part(levels + first, mask + first, zones + first, part, tables);
        for (int way = 0; way < WAYS; way++)
            add_counts(tables + way * 4 * 512, 4 * 512, views[3].buf);
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 4);
    Py_RETURN_NONE;
}

/* count_quadrants(levels, mask, zones, quadrants, by_zone, height, width, cut_y, cut_x): add pixels to int64 (4, 2,
 * 256) by quadrant around the centroid of the mask, and to (4, 2, 256) by zone 0 to 3, if there are zones: both may be
 * None; segmentation.count_quadrants. */
static PyObject *count_quadrants(PyObject *self, PyObject *args) {
    PyObject *objects[5];
    Py_ssize_t height, width, cut_y, cut_x;
    Py_buffer views[5];
    if (!PyArg_ParseTuple(args, "OOOOOnnnn", &objects[0], &objects[1], &objects[3], &objects[2], &objects[4], &height,
                          &width, &cut_y, &cut_x) ||
        check_shape(height, width) < 0)
        return NULL;
    Py_ssize_t pixels = height * width;
    cut_x = cut_x < 0 ? 0 : cut_x < width ? cut_x : width;
    const int zoned = objects[3] != Py_None, bins = zoned ? 4 * 512 : 512;
    const char *format = zoned ? "bbQbQ" : "bbQ";
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 4 * 512, pixels, 4 * 512}, format,
                    "count_quadrants") < 0)
        return NULL;
    uint32_t *tables = calloc(4 * WAYS * (size_t)bins, sizeof *tables);
    if (tables) {
        const byte *levels = views[0].buf, *mask = views[1].buf, *zones = zoned ? views[3].buf : NULL;
        int64_t *quadrants = views[2].buf, *by_zone = zoned ? views[4].buf : NULL;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; y < height; y++) {
            Py_ssize_t row = y * width, cut = row + cut_x;
            uint32_t *left = tables + (y < cut_y ? 0 : 2) * WAYS * bins, *right = left + WAYS * bins;
            count_part(levels + row, mask + row, zoned ? zones + row : NULL, cut_x, left);
            count_part(levels + cut, mask + cut, zoned ? zones + cut : NULL, width - cut_x, right);
        }
        for (int quadrant = 0; quadrant < 4; quadrant++) {
            const uint32_t *table = tables + quadrant * WAYS * bins;
            for (int part = 0; part < WAYS * bins / 512; part++) /* way by way, and in each zone by zone */
                add_counts(table + part * 512, 512, quadrants + quadrant * 512);
            for (int way = 0; zoned && way < WAYS; way++)
                add_counts(table + way * bins, bins, by_zone);
        }
        Py_END_ALLOW_THREADS
        free(tables);
    }
    close_arrays(views, zoned ? 5 : 3);
    if (!tables)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* summarize(counts, rows) -> lowest and highest level, number of pixels, sum of their levels, number of rows without
 * any, of counts (rows, 256) with at least one pixel; segmentation.summarize. */
static PyObject *summarize(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t rows;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "On", &object, &rows))
        return NULL;
    if (open_array(object, &view, rows * 256, 8, 0, "summarize") < 0)
        return NULL;
    int64_t levels[256] = {0}, pixels = 0, sum = 0;
    int low = 256, high = -1, empty = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t *counts = (const int64_t *)view.buf + row * 256;
        int64_t any = 0;
        for (int level = 0; level < 256; level++) {
            levels[level] += counts[level];
            any |= counts[level];
        }
        empty += !any;
    }
    for (int level = 0; level < 256; level++) {
        if (!levels[level])
            continue;
        low = low < level ? low : level, high = level;
        pixels += levels[level], sum += level * levels[level];
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("iiLLi", low, high, (long long)pixels, (long long)sum, empty);
}

/* ------------------------------------------------------------------------------------------------ distances */

/* Distance of every pixel along its column to the nearest pixel of the other value, at most `far` (<= 181). */
WIDE static void column_changes(const byte *restrict mask, Py_ssize_t height, Py_ssize_t width, int far,
                                byte *restrict distance) {
    const byte last = (byte)(far - 1);
    memset(distance, far, width);
    for (Py_ssize_t y = 1; y < height; y++) {
        const byte *m = mask + y * width, *above = distance + (y - 1) * width;
        byte *d = distance + y * width;
        for (Py_ssize_t x = 0; x < width; x++) {
            byte next = above[x] < last ? above[x] : last, same = m[x] == m[x - width] ? 255 : 0;
            d[x] = (byte)((next & same) + 1);
        }
    }
    for (Py_ssize_t y = height - 2; y >= 0; y--) {
        const byte *m = mask + y * width, *below = distance + (y + 1) * width;
        byte *d = distance + y * width;
        for (Py_ssize_t x = 0; x < width; x++) {
            byte next = below[x] < last ? below[x] : last, same = m[x] == m[x + width] ? 255 : 0;
            next = (byte)((next & same) + 1);
            d[x] = next < d[x] ? next : d[x];
        }
    }
}

/* Squares of a row of these distances, 0 for sources, behind limit + 1 columns that are out of reach. */
INLINE void square_row(const byte *distance, const byte *sources, Py_ssize_t width, int limit,
                       uint16_t *restrict row) {
    const uint16_t far = (uint16_t)(limit * limit + 1);
    for (Py_ssize_t x = 0; x < width; x++) {
        uint16_t d = distance[x];
        d = d > limit ? far : (uint16_t)(d * d);
        row[limit + 1 + x] = sources[x] ? 0 : d;
    }
}

/* Squared distances of BLOCK pixels: the minimum over dx of dx^2 + row[x + dx]; `row` points at the first pixel.
 * `best` holds the row, or 0 for pixels that do not matter, and then the minimum. */
INLINE void search_block(const uint16_t *restrict row, int limit, uint16_t *restrict best) {
    uint16_t least = UINT16_MAX;
    for (int x = -limit; x < BLOCK + limit; x++)
        least = row[x] < least ? row[x] : least;
    for (int dx = 1; dx <= limit; dx += 2) { /* two columns at once: past the limit, none is nearer */
        if (dx % 8 == 1) {                   /* no farther column is nearer than this */
            uint16_t most = 0;
            for (int x = 0; x < BLOCK; x++)
                most = best[x] > most ? best[x] : most;
            if (most <= least + dx * dx)
                return;
        }
        const uint16_t *left = row - dx, *right = row + dx;
        const uint16_t step = (uint16_t)(dx * dx), next = (uint16_t)((dx + 1) * (dx + 1));
        for (int x = 0; x < BLOCK; x++) {
            uint16_t nearer = left[x] < right[x] ? left[x] : right[x];
            uint16_t farther = left[x - 1] < right[x + 1] ? left[x - 1] : right[x + 1];
            nearer = (uint16_t)(nearer + step), farther = (uint16_t)(farther + next);
            nearer = nearer < farther ? nearer : farther;
            best[x] = nearer < best[x] ? nearer : best[x];
        }
    }
}

static uint16_t *new_row(Py_ssize_t width, int limit) {
    Py_ssize_t items = width + BLOCK + 2 * (limit + 1);
    uint16_t *row = malloc(items * sizeof *row);
    for (Py_ssize_t x = 0; row && x < items; x++)
        row[x] = (uint16_t)(limit * limit + 1);
    return row;
}

WIDE static void distance_row(const byte *distance, const byte *sources, Py_ssize_t width, int limit, uint16_t *row,
                              uint16_t *result) {
    square_row(distance, sources, width, limit, row);
    for (Py_ssize_t x = 0; x < width; x += BLOCK) {
        uint16_t best[BLOCK];
        memcpy(best, row + limit + 1 + x, sizeof best);
        search_block(row + limit + 1 + x, limit, best);
        memcpy(result + x, best, (width - x < BLOCK ? width - x : BLOCK) * sizeof *best);
    }
}

/* distance_squared(sources, result, height, width, limit): uint16, exact up to limit^2 and limit^2 + 1 beyond;
 * geometry.distance_squared. */
static PyObject *distance_squared(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_ssize_t height, width;
    int limit;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOnni", &objects[0], &objects[1], &height, &width, &limit) ||
        check_shape(height, width) < 0)
        return NULL;
    if (limit < 1 || limit > MAX_LIMIT)
        return PyErr_Format(PyExc_ValueError, "limit: found %d; expected 1 to %d", limit, MAX_LIMIT);
    Py_ssize_t pixels = height * width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels}, "bH", "distance_squared") < 0)
        return NULL;
    byte *columns = malloc(pixels);
    uint16_t *row = new_row(width, limit), *result = views[1].buf;
    int done = columns && row;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        const byte *sources = views[0].buf;
        column_changes(sources, height, width, limit + 1, columns);
        for (Py_ssize_t at = 0; at < pixels; at += width)
            distance_row(columns + at, sources + at, width, limit, row, result + at);
        Py_END_ALLOW_THREADS
    }
    free(columns), free(row);
    close_arrays(views, 2);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* How far the nearest pixel of the other class may be along a column that is 0, 1, 2, ... columns away. The compiler
 * needs the numbers to keep the sums of a block in registers. */
enum { NEAR = 5, FAR_OFF = 15 };
static const byte NEAR_HEIGHTS[NEAR + 1] = {5, 4, 4, 4, 3, 0};
static const byte FAR_HEIGHTS[FAR_OFF + 1] = {15, 14, 14, 14, 14, 14, 13, 13, 12, 12, 11, 10, 9, 7, 5, 0};

/* Add up for each of BLOCK pixels whether none is within NEAR, and whether none is within FAR_OFF. `row` points at the
 * first pixel and holds distances along columns to what is looked for. */
INLINE void add_beyond(const byte *restrict row, byte *restrict zone) {
    for (int x = 0; x < BLOCK; x++) {
        byte past_near = row[x] > NEAR_HEIGHTS[0] ? 1 : 0, past_far = row[x] > FAR_HEIGHTS[0] ? 1 : 0;
        for (int dx = 1; dx <= FAR_OFF; dx++) {
            byte least = row[x - dx] < row[x + dx] ? row[x - dx] : row[x + dx];
            past_far &= least > FAR_HEIGHTS[dx] ? 1 : 0;
            if (dx <= NEAR)
                past_near &= least > NEAR_HEIGHTS[dx] ? 1 : 0;
        }
        zone[x] = (byte)(zone[x] + past_near + past_far);
    }
}

/* Zones of a row, given its distances to the other class along columns. `to_false` and `to_true` get the distances to
 * the next False and to the next True pixel, one of which is always 0, between FAR_OFF columns that are out of reach.
 * */
WIDE static void zone_row(const byte *restrict distance, const byte *restrict mask, Py_ssize_t width,
                          byte *restrict to_false, byte *restrict to_true, byte *restrict zones) {
    for (Py_ssize_t x = 0; x < width; x++) {
        byte inside = mask[x] ? 255 : 0;
        to_false[FAR_OFF + x] = distance[x] & inside;
        to_true[FAR_OFF + x] = distance[x] & (byte)~inside;
    }
    for (Py_ssize_t x = 0; x < width; x += BLOCK) {
        byte zone[BLOCK] = {0};
        for (int value = 0; value < 2; value++) {
            const byte *row = (value ? to_true : to_false) + FAR_OFF + x;
            byte most = 0, least = 255;
            for (int i = 0; i < BLOCK; i++)
                most = row[i] > most ? row[i] : most;
            if (!most) /* all have this value */
                continue;
            for (int i = 0; i < BLOCK; i++)
                least = row[i - FAR_OFF] < least ? row[i - FAR_OFF] : least;
            for (int i = 0; i < BLOCK; i++)
                least = row[i + FAR_OFF] < least ? row[i + FAR_OFF] : least;
            if (least > FAR_OFF)
                memset(zone, 2, sizeof zone);
            else
                add_beyond(row, zone);
        }
        memcpy(zones + x, zone, width - x < BLOCK ? width - x : BLOCK);
    }
}

/* boundary_zones(mask, zones, height, width): 0 up to the distance NEAR from a pixel of the other class, 1 up to
 * FAR_OFF, 2 beyond; levels.boundary_zones. */
static PyObject *boundary_zones(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_ssize_t height, width;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOnn", &objects[0], &objects[1], &height, &width) || check_shape(height, width) < 0)
        return NULL;
    Py_ssize_t pixels = height * width, length = width + BLOCK + 2 * FAR_OFF;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels}, "bB", "boundary_zones") < 0)
        return NULL;
    byte *columns = malloc(pixels + 2 * length);
    if (columns) {
        Py_BEGIN_ALLOW_THREADS
        const byte *mask = views[0].buf;
        byte *zones = views[1].buf, *rows = columns + pixels;
        memset(rows, FAR_OFF + 1, 2 * length);
        column_changes(mask, height, width, FAR_OFF + 1, columns);
        for (Py_ssize_t at = 0; at < pixels; at += width)
            zone_row(columns + at, mask + at, width, rows, rows + length, zones + at);
        Py_END_ALLOW_THREADS
    }
    free(columns);
    close_arrays(views, 2);
    if (!columns)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Add one row of levels above the lowest to their sums. */
WIDE static void sum_row(const byte *restrict levels, const byte *restrict sources, const byte *restrict distance,
                         Py_ssize_t width, int limit, byte low, uint16_t *restrict row, int64_t *restrict sums) {
    int squared = 0;
    for (Py_ssize_t x = 0; x < width; x += BLOCK) {
        const byte *level = levels + x, *source = sources + x;
        byte rest[2][BLOCK], any = 0;
        if (width - x < BLOCK) {
            memset(rest, low, sizeof rest);
            level = memcpy(rest[0], level, width - x);
            source = memcpy(rest[1], source, width - x);
        }
        for (int i = 0; i < BLOCK; i++)
            any |= (byte)((level[i] > low ? 255 : 0) & (source[i] ? 0 : 255));
        if (!any)
            continue; /* most of the background is at the lowest level */
        if (!squared)
            square_row(distance, sources, width, limit, row);
        squared = 1;
        uint16_t best[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            best[i] = level[i] > low ? row[limit + 1 + x + i] : 0;
        search_block(row + limit + 1 + x, limit, best);
        for (int i = 0; i < BLOCK; i++)
            if (best[i])
                sums[best[i]] += level[i] - low;
    }
}

/* sum_by_distance(levels, sources, sums, height, width, limit, low): add levels, less the lowest, to int64 sums by the
 * squared distance to the nearest source, exact up to limit^2 and limit^2 + 1 beyond; sources do not count.
 * structure._sum_by_distance. */
static PyObject *sum_by_distance(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t height, width;
    int limit, low;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOnnii", &objects[0], &objects[1], &objects[2], &height, &width, &limit, &low) ||
        check_shape(height, width) < 0)
        return NULL;
    if (limit < 1 || limit > MAX_LIMIT)
        return PyErr_Format(PyExc_ValueError, "limit: found %d; expected 1 to %d", limit, MAX_LIMIT);
    Py_ssize_t pixels = height * width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, (Py_ssize_t)limit * limit + 2}, "bbQ",
                    "sum_by_distance") < 0)
        return NULL;
    byte *columns = malloc(pixels);
    uint16_t *row = new_row(width, limit);
    int done = columns && row;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        const byte *levels = views[0].buf, *sources = views[1].buf;
        column_changes(sources, height, width, limit + 1, columns);
        for (Py_ssize_t at = 0; at < pixels; at += width)
            sum_row(levels + at, sources + at, columns + at, width, limit, (byte)low, row, views[2].buf);
        Py_END_ALLOW_THREADS
    }
    free(columns), free(row);
    close_arrays(views, 3);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------------ objects */

/* Return the number of True pixels of a row, and add them to the counts of columns. */
WIDE static int64_t add_row(const byte *restrict mask, Py_ssize_t width, byte *restrict columns) {
    int64_t pixels = 0;
    for (Py_ssize_t first = 0; first < width; first += 128) { /* whose number a byte holds */
        int count = width - first < 128 ? (int)(width - first) : 128;
        byte part = 0;
        for (int x = 0; x < count; x++)
            part = (byte)(part + (mask[first + x] ? 1 : 0));
        for (int x = 0; x < count; x++)
            columns[first + x] = (byte)(columns[first + x] + (mask[first + x] ? 1 : 0));
        pixels += part;
    }
    return pixels;
}

/* extent(mask, height, width) -> number of True pixels, sum of their rows and of their columns, first row, row behind
 * the last, first column, column behind the last; structure.extent_of. */
static PyObject *extent(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onn", &object, &height, &width) || check_shape(height, width) < 0)
        return NULL;
    if (open_array(object, &view, height * width, 1, 0, "extent") < 0)
        return NULL;
    long long pixels = 0, rows = 0, columns = 0;
    Py_ssize_t top = height, bottom = 0, left = width, right = 0;
    byte *counts = calloc(1, width);
    if (counts) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; y < height; y++) {
            int64_t in_row = add_row((const byte *)view.buf + y * width, width, counts);
            pixels += in_row, rows += y * in_row;
            if (in_row) {
                top = y < top ? y : top;
                bottom = y + 1;
            }
            if (y % 255 != 254 && y + 1 < height)
                continue;
            for (Py_ssize_t x = 0; x < width; x++) {
                if (!counts[x])
                    continue;
                columns += (int64_t)x * counts[x];
                left = x < left ? x : left;
                right = x < right ? right : x + 1;
                counts[x] = 0;
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(counts);
    PyBuffer_Release(&view);
    if (!counts)
        return PyErr_NoMemory();
    return Py_BuildValue("LLLnnnn", pixels, rows, columns, top, bottom, left, right);
}

static uint32_t root(uint32_t *parent, uint32_t label) {
    while (parent[label] != label)
        label = parent[label] = parent[parent[label]];
    return label;
}

/* Return how many objects there are, and how many pixels they have, or -1 without memory. Runs of pixels are joined
 * with those they touch in the row above; every joint makes two objects one. */
static int64_t objects_in(const byte *mask, Py_ssize_t height, Py_ssize_t width, int64_t *pixels) {
    Py_ssize_t most = (width + 1) / 2; /* runs in a row */
    Py_ssize_t *runs = malloc(4 * most * sizeof *runs);
    uint32_t *parent = malloc(most * height * sizeof *parent), labels = 0, above_label = 0;
    Py_ssize_t *above = runs, *here = runs + 2 * most, above_count = 0;
    int64_t objects = runs && parent ? 0 : -1;
    for (Py_ssize_t y = 0; objects >= 0 && y < height; y++) {
        const byte *m = mask + y * width, *end = m + width, *at = m;
        Py_ssize_t count = 0, other = 0;
        uint32_t first_label = labels;
        while (at < end) {
            const byte *start = at;
            uint64_t eight; /* background comes in long runs */
            while (start + 8 <= end && (memcpy(&eight, start, 8), eight == 0))
                start += 8;
            while (start < end && !*start)
                start++;
            if (start == end)
                break;
            at = start;
            while (at + 8 <= end && (memcpy(&eight, at, 8), eight == UINT64_C(0x0101010101010101)))
                at += 8; /* so do objects */
            while (at < end && *at)
                at++;
            here[2 * count] = start - m;
            here[2 * count + 1] = at - m; /* the first pixel behind */
            parent[labels] = labels;
            *pixels += at - start;
            objects++;
            while (other < above_count && above[2 * other + 1] < here[2 * count])
                other++;
            for (Py_ssize_t i = other; i < above_count && above[2 * i] <= here[2 * count + 1]; i++) {
                uint32_t a = root(parent, above_label + (uint32_t)i), b = root(parent, labels);
                if (a != b) {
                    parent[a < b ? b : a] = a < b ? a : b;
                    objects--;
                }
            }
            count++, labels++;
        }
        Py_ssize_t *swap = above;
        above = here, here = swap, above_count = count, above_label = first_label;
    }
    free(runs), free(parent);
    return objects;
}

/* count_objects(mask, height, width) -> number of objects, whose pixels touch along edges or at corners, and of all
 * their pixels; scipy.ndimage.label. */
static PyObject *count_objects(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width;
    Py_buffer view;
    int64_t objects, pixels = 0;
    if (!PyArg_ParseTuple(args, "Onn", &object, &height, &width) || check_shape(height, width) < 0)
        return NULL;
    if (open_array(object, &view, height * width, 1, 0, "count_objects") < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    objects = objects_in(view.buf, height, width, &pixels);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return objects < 0 ? PyErr_NoMemory() : Py_BuildValue("LL", (long long)objects, (long long)pixels);
}

/* ------------------------------------------------------------------------------------------------ confidence */

/* The confidence of a level: that of the foreground above 127, else that of the background. */
INLINE byte sure(byte level) { return level > 127 ? level : (byte)~level; }

/* Which pixels have a neighbour of the other class along an axis. The row is one pixel in from both ends of `near`. */
WIDE static void near_row(const byte *levels, Py_ssize_t y, Py_ssize_t height, Py_ssize_t width, byte *near) {
    const byte *m = levels + y * width;
    const byte *above = y ? m - width : m, *below = y + 1 < height ? m + width : m;
    for (Py_ssize_t x = 1; x + 1 < width; x++)
        near[x] = (byte)(((m[x] ^ above[x]) | (m[x] ^ below[x]) | (m[x] ^ m[x - 1]) | (m[x] ^ m[x + 1])) & 128);
    for (Py_ssize_t x = 0; x < width; x += width > 1 ? width - 1 : 1) { /* the ends */
        byte left = m[x > 0 ? x - 1 : x], right = m[x + 1 < width ? x + 1 : x];
        near[x] = (byte)(((m[x] ^ above[x]) | (m[x] ^ below[x]) | (m[x] ^ left) | (m[x] ^ right)) & 128);
    }
}

WIDE static uint64_t far_sum(const byte *levels, const byte *above, const byte *here, const byte *below,
                             Py_ssize_t width, uint64_t *pixels) {
    uint64_t sum = 0, count = 0;
    for (Py_ssize_t first = 0; first < width; first += 256) { /* whose sum 16 bits hold */
        int length = (int)(width - first < 256 ? width - first : 256);
        const byte *a = above + first, *h = here + first, *b = below + first, *level = levels + first;
        byte far[256];
        uint16_t part = 0, kept = 0;
        for (int x = 0; x < length; x++)
            far[x] = (a[x] | h[x - 1] | h[x] | h[x + 1] | b[x]) ? 0 : 255;
        for (int x = 0; x < length; x++)
            part = (uint16_t)(part + (sure(level[x]) & far[x]));
        for (int x = 0; x < length; x++)
            kept = (uint16_t)(kept + (far[x] & 1));
        sum += part, count += kept;
    }
    *pixels += count;
    return sum;
}

/* interior(levels, height, width) -> sum and number of the confidences farther than two steps from a pixel of the
 * other class; cases.level_neighbours. */
static PyObject *interior(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onn", &object, &height, &width) || check_shape(height, width) < 0)
        return NULL;
    if (open_array(object, &view, height * width, 1, 0, "interior") < 0)
        return NULL;
    Py_ssize_t stride = width + 2;
    byte *rows = calloc(4, stride); /* three rows, and one of zeros outside */
    uint64_t sum = 0, count = 0;
    if (rows) {
        Py_BEGIN_ALLOW_THREADS
        const byte *levels = view.buf, *none = rows + 3 * stride + 1;
        near_row(levels, 0, height, width, rows + 1);
        for (Py_ssize_t y = 0; y < height; y++) {
            byte *below = rows + (y + 1) % 3 * stride + 1;
            if (y + 1 < height)
                near_row(levels, y + 1, height, width, below);
            sum += far_sum(levels + y * width, y ? rows + (y + 2) % 3 * stride + 1 : none, rows + y % 3 * stride + 1,
                           y + 1 < height ? below : none, width, &count);
        }
        Py_END_ALLOW_THREADS
    }
    free(rows);
    PyBuffer_Release(&view);
    if (!rows)
        return PyErr_NoMemory();
    return Py_BuildValue("KK", (unsigned long long)sum, (unsigned long long)count);
}

/* Move the sums of `side_y` rows of confidences down by one row. */
WIDE static void move_sums(const byte *restrict entering, const byte *restrict leaving, Py_ssize_t width,
                           uint16_t *restrict sums) {
    if (leaving)
        for (Py_ssize_t x = 0; x < width; x++)
            sums[x] = (uint16_t)(sums[x] + sure(entering[x]) - sure(leaving[x]));
    else
        for (Py_ssize_t x = 0; x < width; x++)
            sums[x] = (uint16_t)(sums[x] + sure(entering[x]));
}

WIDE static void add_shifted(const uint16_t *restrict a, const uint16_t *restrict b, Py_ssize_t count,
                             uint16_t *restrict out) {
    for (Py_ssize_t x = 0; x < count; x++)
        out[x] = (uint16_t)(a[x] + b[x]);
}

WIDE static uint16_t minimum(const uint16_t *values, Py_ssize_t count) {
    uint16_t least = UINT16_MAX;
    for (Py_ssize_t x = 0; x < count; x++)
        least = values[x] < least ? values[x] : least;
    return least;
}

/* Return the least sum of `side` neighbours, made up of sums of 1, 2, 4, ...; there is room for four rows. */
static uint16_t least_patch(const uint16_t *sums, Py_ssize_t width, Py_ssize_t side, uint16_t *room) {
    const uint16_t *power = sums, *total = NULL;
    uint16_t *rows[4] = {room, room + width, room + 2 * width, room + 3 * width};
    Py_ssize_t offset = 0, count = width - side + 1;
    int powers = 0, totals = 0;
    for (Py_ssize_t span = 1; span <= side; span *= 2) {
        if (side & span) {
            if (total) {
                uint16_t *next = rows[2 + totals++ % 2];
                add_shifted(total, power + offset, count, next);
                total = next;
            } else if (2 * span <= side) {
                memcpy(rows[2 + totals % 2], power, count * sizeof *power);
                total = rows[2 + totals++ % 2];
            } else {
                total = power;
            }
            offset += span;
        }
        if (2 * span <= side) {
            uint16_t *next = rows[powers++ % 2];
            add_shifted(power, power + span, width - 2 * span + 1, next);
            power = next;
        }
    }
    return minimum(total, count);
}

/* patch_minimum(levels, height, width, side_y, side_x) -> least sum of the confidences of a patch of at most 257
 * pixels; cases.level_neighbours. */
static PyObject *patch_minimum(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width, side_y, side_x;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onnnn", &object, &height, &width, &side_y, &side_x) || check_shape(height, width) < 0)
        return NULL;
    if (side_y < 1 || side_x < 1 || side_y > height || side_x > width || side_y > 257 / side_x)
        return PyErr_Format(PyExc_ValueError, "a patch of %zd x %zd pixels", side_y, side_x);
    if (open_array(object, &view, height * width, 1, 0, "patch_minimum") < 0)
        return NULL;
    uint16_t *sums = calloc(5 * width, sizeof *sums), least = UINT16_MAX;
    if (sums) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; y < height; y++) {
            const byte *row = (const byte *)view.buf + y * width;
            move_sums(row, y < side_y ? NULL : row - side_y * width, width, sums);
            if (y + 1 < side_y)
                continue;
            uint16_t own = least_patch(sums, width, side_x, sums + width);
            least = own < least ? own : least;
        }
        Py_END_ALLOW_THREADS
    }
    free(sums);
    PyBuffer_Release(&view);
    return sums ? PyLong_FromLong(least) : PyErr_NoMemory();
}

/* ------------------------------------------------------------------------------------------------ weighted F */

#define REACH 3 /* of the Gaussian, structure.GAUSSIAN_REACH */
#define SPAN 4  /* columns and rows to the nearest pixel of an object in reach of the Gaussian */

enum { FAR = 127 };

/* Row step to the nearest True pixel of the column, the upper of two equally near; FAR beyond SPAN. */
WIDE static void column_steps(const byte *mask, Py_ssize_t height, Py_ssize_t width, signed char *step,
                              byte *reached) {
    for (Py_ssize_t y = 0; y < height; y++) /* `reached` holds the distance upward meanwhile */
        for (Py_ssize_t x = 0; x < width; x++) {
            byte above = y ? reached[(y - 1) * width + x] : SPAN + 1;
            byte next = above < SPAN + 1 ? (byte)(above + 1) : SPAN + 1;
            reached[y * width + x] = mask[y * width + x] ? 0 : next;
        }
    for (Py_ssize_t y = height - 1; y >= 0; y--)
        for (Py_ssize_t x = 0; x < width; x++) {
            byte up = reached[y * width + x];
            signed char below = y + 1 < height ? step[(y + 1) * width + x] : FAR;
            byte down = below < 0 || below > SPAN ? SPAN + 1 : (byte)(below + 1);
            step[y * width + x] = up ? (signed char)down : 0; /* the distance downward meanwhile */
        }
    for (Py_ssize_t i = 0; i < height * width; i++) {
        byte up = reached[i], down = (byte)step[i], least = up < down ? up : down;
        reached[i] = least <= REACH;
        step[i] = (signed char)(least > SPAN ? FAR : up <= down ? -(signed char)up : (signed char)down);
    }
}

/* Which background pixels have an object within REACH rows and columns. `reached` tells where one is within REACH
 * rows, and has REACH columns more on both sides. */
WIDE static void find_near(const byte *restrict mask, const byte *restrict reached, Py_ssize_t width,
                           byte *restrict near) {
    for (Py_ssize_t x = 0; x < width; x++) {
        byte any = 0;
        for (int shift = 0; shift <= 2 * REACH; shift++)
            any |= reached[x + shift];
        near[x] = (byte)(any & (mask[x] ? 0 : 255));
    }
}

/* Return the error of the nearest pixel of the object: of equally near ones the lowest column, then the lowest row.
 * `step` is the row step to the nearest pixel in the own column, or FAR; `levels` is the row of the pixel. */
static double nearest_error(const byte *levels, const signed char *step, const double *errors, Py_ssize_t x,
                            Py_ssize_t width) {
    int least = INT32_MAX;
    const byte *nearest = levels;
    Py_ssize_t left = x < SPAN ? 0 : x - SPAN, right = x + SPAN < width ? x + SPAN : width - 1;
    for (Py_ssize_t other = left; other <= right; other++) {
        int dy = step[other], dx = (int)(other - x), distance = dx * dx + dy * dy;
        if (dy != FAR && distance < least) {
            least = distance;
            nearest = levels + dy * width + other;
        }
    }
    return errors[*nearest];
}

/* The errors of a row of the object; those of the background are 0, or near the object those of its nearest pixel. */
static void spread_row(const byte *levels, const byte *mask, const byte *near, const signed char *step,
                       const double *errors, Py_ssize_t width, double *row) {
    for (Py_ssize_t x = 0; x < width; x++) {
        uint64_t eight; /* background comes in long runs */
        if (x + 8 <= width && (memcpy(&eight, mask + x, 8), eight == 0)) {
            memset(row + x, 0, 8 * sizeof *row);
            x += 7;
        } else {
            double error = errors[levels[x]];
            row[x] = mask[x] ? error : 0.0;
        }
    }
    for (Py_ssize_t x = 0; x < width; x++) {
        uint64_t eight;
        if (x + 8 <= width && (memcpy(&eight, near + x, 8), eight == 0))
            x += 7;
        else if (near[x])
            row[x] = nearest_error(levels, step, errors, x, width);
    }
}

/* Return the sum over the object of the errors, or of the blurred errors where these are smaller, in units of 2^-42.
 * The `rows` are the 2 * REACH + 1 rows around, from REACH columns to the left on. Columns are blurred first, then the
 * row. */
WIDE static int64_t blur_block(const double *const *rows, const double *g, const byte *mask, int count) {
    const double *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3], *e = rows[4], *f = rows[5], *h = rows[6];
    double column[BLOCK + 2 * REACH], unit[BLOCK];
    for (int x = 0; x < BLOCK + 2 * REACH; x++)
        column[x] = g[0] * d[x] + g[1] * (c[x] + e[x]) + g[2] * (b[x] + f[x]) + g[3] * (a[x] + h[x]);
    for (int x = 0; x < BLOCK; x++) {
        const double *m = column + REACH + x, own = d[REACH + x];
        double blurred = g[0] * m[0] + g[1] * (m[-1] + m[1]) + g[2] * (m[-2] + m[2]) + g[3] * (m[-3] + m[3]);
        unit[x] = (own < blurred ? own : blurred) * 4398046511104.0 + 0.5;
    }
    int64_t sum = 0;
    for (int x = 0; x < count; x++)
        sum += mask[x] ? (int64_t)unit[x] : 0;
    return sum;
}

/* Return whether any pixel of the object is at a level up to `last`. */
WIDE static int has_upto(const byte *levels, const byte *mask, byte last, int count) {
    byte any = 0;
    for (int x = 0; x < count; x++)
        any |= (byte)((levels[x] <= last ? 255 : 0) & (mask[x] ? 255 : 0));
    return any;
}

/* missed(levels, mask, errors, gaussian, height, width, first, last) -> the sum over the rows first to last - 1 of the
 * errors on the object, or of the blurred errors where these are smaller, in units of 2^-42, as high * 2^21 + low;
 * structure._missed. `errors` are those of the 256 levels, not below 0 if the level occurs; `gaussian` the weights at
 * the distances 0 to REACH. */
static PyObject *missed(PyObject *self, PyObject *args) {
    PyObject *objects[4];
    Py_ssize_t height, width, first, last;
    Py_buffer views[4];
    if (!PyArg_ParseTuple(args, "OOOOnnnn", &objects[0], &objects[1], &objects[2], &objects[3], &height, &width,
                          &first, &last) ||
        check_shape(height, width) < 0)
        return NULL;
    if (first < 0 || last > height)
        return PyErr_Format(PyExc_ValueError, "rows %zd to %zd of %zd", first, last, height);
    Py_ssize_t pixels = height * width, stride = width + 2 * REACH + BLOCK;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 256, REACH + 1}, "bbqq", "missed") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf;
    const double *errors = views[2].buf;
    const int side = 2 * REACH + 1; /* rows under the blur */
    double *ring = calloc((size_t)(side + 1) * stride, sizeof *ring), *zeros = ring + side * stride;
    signed char *step = malloc(pixels);
    byte *reached = malloc(pixels), *padded = calloc(2, stride), *near = padded + stride;
    int64_t high = 0, low = 0;
    int done = ring && step && reached && padded;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        int last_level = 255; /* with an error: where there are only higher ones, there is nothing to add */
        while (last_level >= 0 && errors[last_level] <= 0)
            last_level--;
        column_steps(mask, height, width, step, reached);
        Py_ssize_t lead = first < REACH ? 0 : first - REACH;
        for (Py_ssize_t y = first; last_level >= 0 && y < last; y++) {
            for (; lead <= y + REACH && lead < height; lead++) {
                Py_ssize_t at = lead * width;
                memcpy(padded + REACH, reached + at, width);
                find_near(mask + at, padded, width, near);
                spread_row(levels + at, mask + at, near, step + at, errors, width, ring + lead % side * stride + REACH);
            }
            for (Py_ssize_t x = 0; x < width; x += BLOCK) {
                int count = width - x < BLOCK ? (int)(width - x) : BLOCK;
                const byte *own = mask + y * width + x;
                if (!has_upto(levels + y * width + x, own, (byte)last_level, count))
                    continue;
                const double *rows[2 * REACH + 1];
                for (int i = 0; i < side; i++) {
                    Py_ssize_t row = y - REACH + i;
                    rows[i] = (row < 0 || row >= height ? zeros : ring + row % side * stride) + x;
                }
                int64_t part = blur_block(rows, views[3].buf, own, count);
                high += part >> 21, low += part & ((1 << 21) - 1);
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(ring), free(step), free(reached), free(padded);
    close_arrays(views, 4);
    if (!done)
        return PyErr_NoMemory();
    return Py_BuildValue("LL", (long long)high, (long long)low);
}

/* ------------------------------------------------------------------------------------------------ the module */

static PyMethodDef methods[] = {
    {"count_levels", count_levels, METH_VARARGS, NULL},
    {"count_zones", count_zones, METH_VARARGS, NULL},
    {"count_quadrants", count_quadrants, METH_VARARGS, NULL},
    {"distance_squared", distance_squared, METH_VARARGS, NULL},
    {"boundary_zones", boundary_zones, METH_VARARGS, NULL},
    {"sum_by_distance", sum_by_distance, METH_VARARGS, NULL},
    {"summarize", summarize, METH_VARARGS, NULL},
    {"extent", extent, METH_VARARGS, NULL},
    {"count_objects", count_objects, METH_VARARGS, NULL},
    {"interior", interior, METH_VARARGS, NULL},
    {"patch_minimum", patch_minimum, METH_VARARGS, NULL},
    {"missed", missed, METH_VARARGS, NULL},
    {"tally", tally, METH_VARARGS, NULL},
    {"tally_classes", tally_classes, METH_VARARGS, NULL},
    {"rank_classes", rank_classes, METH_VARARGS, NULL},
    {"winners", winners, METH_VARARGS, NULL},
    {"count_pairs", count_pairs, METH_VARARGS, NULL},
    {"often_reached", often_reached, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "API", API) < 0)
        Py_CLEAR(self);
    return self;
}
